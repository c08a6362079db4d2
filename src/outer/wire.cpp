#include "wire.h"

#include "codes.h"

#include <ATen/ops/empty.h>

namespace fairshard::outer {

PendingAverage::PendingAverage(const comm::Group& inter_node, const at::Tensor& values,
                               WireFormat format, const at::Tensor& error, const std::string& label)
    : format_(format), options_(values.options()), length_(values.numel()) {
  if (inter_node.size() == 1 || format == WireFormat::kFloat32) {
    format_ = WireFormat::kFloat32;
    sent_ = values.clone();
    work_ = comm::all_reduce(inter_node, sent_, comm::ReduceOp::kAvg, label);
    return;
  }
  const Code* const code = code_of(format);
  if (code) {
    error.mul_(code->kept_error).add_(values);
    sent_ = code->encode(error);
    error.sub_(code->decode(sent_, length_));
    messages_ = at::empty({inter_node.size(), sent_.numel()}, sent_.options());
    work_ = comm::all_gather(inter_node, messages_, sent_, label);
    return;
  }
  error.add_(values);
  sent_ = error.to(at::kBFloat16);
  error.sub_(sent_);
  work_ = comm::all_reduce(inter_node, sent_, comm::ReduceOp::kAvg, label);
}

const at::Tensor& PendingAverage::wait() {
  if (result_.defined()) {
    return result_;
  }
  work_.wait();
  if (messages_.defined()) {
    const Code& code = *code_of(format_);
    // In the order of nodes, so that all get the same bits.
    at::Tensor sum = code.decode(messages_[0], length_);
    for (int64_t node = 1; node < messages_.size(0); ++node) {
      sum = sum.add_(code.decode(messages_[node], length_));
    }
    result_ = sum.div_(static_cast<double>(messages_.size(0))).to(options_.dtype());
    messages_.reset();
  } else {
    result_ = sent_.to(options_.dtype());
  }
  sent_.reset();
  return result_;
}

}  // namespace fairshard::outer
