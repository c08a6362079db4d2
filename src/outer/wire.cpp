#include "wire.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace fairshard::outer {
namespace {

constexpr int64_t kInt8Block = 256;
constexpr int64_t kScaleBytes = 4;

int64_t blocks_of(int64_t length) { return (length + kInt8Block - 1) / kInt8Block; }

}  // namespace

at::Tensor encode_int8(const at::Tensor& values) {
  const int64_t length = values.numel();
  const int64_t blocks = blocks_of(length);
  const at::Tensor padded = at::zeros({blocks * kInt8Block}, values.options().dtype(at::kFloat));
  padded.narrow(0, 0, length).copy_(values);
  const at::Tensor rows = padded.view({blocks, kInt8Block});
  const at::Tensor scales = rows.abs().amax({1}, /*keepdim=*/true).div_(127);
  // A block of zeros has scale 0, and codes 0 whatever they are divided by.
  const at::Tensor codes = rows.div(scales.clamp_min(1e-30)).round_().to(at::kChar);
  return at::cat({scales.view(-1).view(at::kByte), codes.view(-1).view(at::kByte)});
}

at::Tensor decode_int8(const at::Tensor& message, int64_t length) {
  const int64_t blocks = blocks_of(length);
  const at::Tensor scales = message.narrow(0, 0, blocks * kScaleBytes).clone().view(at::kFloat);
  const at::Tensor codes = message.narrow(0, blocks * kScaleBytes, blocks * kInt8Block);
  return codes.view(at::kChar)
      .view({blocks, kInt8Block})
      .to(at::kFloat)
      .mul_(scales.view({blocks, 1}))
      .view(-1)
      .narrow(0, 0, length);
}

PendingAverage::PendingAverage(const comm::Group& inter_node, const at::Tensor& values,
                               WireFormat format, const at::Tensor& error, const std::string& label)
    : format_(format), options_(values.options()), length_(values.numel()) {
  if (inter_node.size() == 1 || format == WireFormat::kFloat32) {
    format_ = WireFormat::kFloat32;
    sent_ = values.clone();
    work_ = comm::all_reduce(inter_node, sent_, comm::ReduceOp::kAvg, label);
    return;
  }
  error.add_(values);
  if (format == WireFormat::kBFloat16) {
    sent_ = error.to(at::kBFloat16);
    error.sub_(sent_);
    work_ = comm::all_reduce(inter_node, sent_, comm::ReduceOp::kAvg, label);
    return;
  }
  sent_ = encode_int8(error);
  error.sub_(decode_int8(sent_, length_));
  messages_ = at::empty({inter_node.size(), sent_.numel()}, sent_.options());
  work_ = comm::all_gather(inter_node, messages_, sent_, label);
}

const at::Tensor& PendingAverage::wait() {
  if (result_.defined()) {
    return result_;
  }
  work_.wait();
  if (format_ == WireFormat::kInt8) {
    // In the order of nodes, so that all get the same bits.
    at::Tensor sum = decode_int8(messages_[0], length_);
    for (int64_t node = 1; node < messages_.size(0); ++node) {
      sum = sum.add_(decode_int8(messages_[node], length_));
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
