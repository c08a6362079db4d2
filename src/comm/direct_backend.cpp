#include "direct_backend.h"

#include "backends.h"
#include "exchange.h"
#include "label.h"
#include "peers.h"
#include "reduce.h"
#include "segmented_reduce.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace fairshard::comm {

namespace {

using Tensors = DirectBackend::Tensors;

/// Below this size an all-reduce sends everything to everybody: one round instead of two.
constexpr int64_t kOneRoundBytes = 64 << 10;

at::Tensor& only(std::vector<at::Tensor>& tensors, const char* name) {
  TORCH_CHECK_VALUE(tensors.size() == 1, name, ": one tensor is expected, but there are ",
                    tensors.size());
  return tensors[0];
}

/// A tensor for each rank.
const Tensors& one_each(const std::vector<Tensors>& lists, int ranks, const char* name) {
  TORCH_CHECK_VALUE(lists.size() == 1 && lists[0].size() == static_cast<size_t>(ranks), name,
                    ": a list of ", ranks, " tensors is expected, one for each rank");
  return lists[0];
}

void check_root(int64_t root, int ranks, const char* name) {
  TORCH_CHECK_VALUE(root >= 0 && root < ranks, name, ": root ", root, " is not in a group of ",
                    ranks);
}

void check_reducible(const at::Tensor& tensor, RedOp op, const char* name) {
  TORCH_CHECK_TYPE(is_reducible(tensor.scalar_type(), op), name, ": tensors of dtype ",
                   tensor.scalar_type(), " cannot be reduced",
                   op == RedOp::AVG ? " to an average" : "");
}

/// Flat parts, the last ones shorter or empty if the tensor does not divide.
Tensors split_evenly(const at::Tensor& flat, int ranks) {
  const int64_t length = (flat.numel() + ranks - 1) / ranks;
  Tensors parts;
  for (int i = 0; i < ranks; ++i) {
    const int64_t begin = std::min(i * length, flat.numel());
    parts.push_back(flat.slice(0, begin, std::min(begin + length, flat.numel())));
  }
  return parts;
}

Tensors split_by(const at::Tensor& flat, const std::vector<int64_t>& sizes) {
  Tensors parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(flat.narrow(0, begin, size));
    begin += size;
  }
  return parts;
}

/// How many elements each rank has of a tensor that is divided by rows (none given: evenly).
std::vector<int64_t> sizes_of_rows(const at::Tensor& tensor, const std::vector<int64_t>& rows,
                                   int ranks) {
  const int64_t all = tensor.dim() == 0 ? 1 : tensor.size(0);
  const int64_t row = all == 0 ? 0 : tensor.numel() / all;
  std::vector<int64_t> sizes(rows.empty() ? std::vector<int64_t>(ranks, all / ranks) : rows);
  TORCH_CHECK_VALUE(sizes.size() == static_cast<size_t>(ranks) &&
                        std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == all,
                    "all_to_all: ", all, " rows cannot be divided among ", ranks, " ranks",
                    rows.empty() ? "" : c10::str(" as ", c10::Join(", ", rows)));
  std::transform(sizes.begin(), sizes.end(), sizes.begin(), [&](int64_t n) { return n * row; });
  return sizes;
}

/// What Call::parts says of such tensors.
std::vector<int64_t> unequal_sizes(const Tensors& parts) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& part : parts) {
    sizes.push_back(part.numel());
  }
  const bool are_equal =
      std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) == sizes.end();
  return are_equal ? std::vector<int64_t>() : sizes;
}

uint64_t bytes_to_peers(const Call& call, const Tensors& sent) {
  uint64_t bytes = 0;
  for_each_peer(call, [&](int peer) { bytes += sent[peer].defined() ? sent[peer].nbytes() : 0; });
  return bytes;
}

}  // namespace

/// Lends flat host memory for tensors: their own where it can be, else a copy.
class DirectBackend::Lender {
 public:
  at::Tensor source(const at::Tensor& tensor) const {
    check(tensor);
    return tensor.variable_data().to(at::kCPU).contiguous().view(-1);
  }
  at::Tensor target(const at::Tensor& tensor) {
    check(tensor);
    if (is_lent_itself(tensor)) {
      return tensor.variable_data().view(-1);
    }
    return copied(tensor, at::empty({tensor.numel()}, tensor.options().device(at::kCPU)));
  }
  at::Tensor both(const at::Tensor& tensor) {
    const at::Tensor values = source(tensor);
    return is_lent_itself(tensor) ? values : copied(tensor, values);
  }
  Tensors sources(const Tensors& tensors) const {
    Tensors result;
    for (const at::Tensor& tensor : tensors) {
      result.push_back(source(tensor));
    }
    return result;
  }
  Tensors targets(const Tensors& tensors) {
    Tensors result;
    for (const at::Tensor& tensor : tensors) {
      result.push_back(target(tensor));
    }
    return result;
  }
  const DirectWork::Copies& copies() const { return copies_; }

 private:
  static void check(const at::Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.defined(), "a tensor of a collective is undefined");
    TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, "a tensor of a collective is ",
                     tensor.layout(), ", but must be dense");
  }
  static bool is_lent_itself(const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.is_contiguous();
  }
  at::Tensor copied(const at::Tensor& tensor, at::Tensor host) {
    copies_.emplace_back(tensor.variable_data(), host);
    return host;
  }

  DirectWork::Copies copies_;
};

DirectBackend::DirectBackend(c10::intrusive_ptr<c10d::Backend> transport, std::string bind)
    : c10d::Backend(transport->getRank(), transport->getSize()),
      transport_(std::move(transport)),
      bind_(std::move(bind)) {}

DirectBackend::~DirectBackend() = default;

c10::intrusive_ptr<c10d::Backend::Options> DirectBackend::getBackendOptions() {
  return transport_->getBackendOptions();
}

Call DirectBackend::make_call(Kind kind, const at::Tensor& whole) const {
  Call call;
  call.kind = kind;
  call.dtype = whole.scalar_type();
  call.numel = whole.numel();
  call.label = LabelScope::current();
  call.rank = rank_;
  call.size = size_;
  return call;
}

DirectBackend::WorkPtr DirectBackend::start(Call call, std::chrono::milliseconds timeout,
                                            const Tensors& results, const Lender& lender,
                                            const Build& build) {
  const std::lock_guard lock(mutex_);
  call.sequence = sequence_++;
  if (const std::string failure = progress_.failure(); !failure.empty()) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str(call.describe(), ": this group has failed before: ", failure));
  }
  if (timeout.count() <= 0) {
    timeout = getBackendOptions()->timeout;
  }
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  auto work =
      c10::make_intrusive<DirectWork>(call, build(call), deadline, results, lender.copies());
  progress_.submit(work);
  return work;
}

DirectBackend::WorkPtr DirectBackend::broadcast(Tensors& tensors,
                                                const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors, "broadcast");
  check_root(options.rootRank, size_, "broadcast");
  Call call = make_call(Kind::kBroadcast, tensor);
  call.root = static_cast<int>(options.rootRank);
  Lender lender;
  Parcels parcels(size_);
  if (rank_ == call.root) {
    parcels.sent.assign(size_, lender.source(tensor));
  } else {
    parcels.received[call.root] = lender.target(tensor);
  }
  sent_bytes_ += bytes_to_peers(call, parcels.sent);
  return start(call, options.timeout, {tensor}, lender, [&](const Call& numbered) {
    return std::make_shared<Exchange>(transport_, numbered, parcels);
  });
}

DirectBackend::WorkPtr DirectBackend::allreduce(Tensors& tensors,
                                                const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all_reduce");
  check_reducible(tensor, options.reduceOp, "all_reduce");
  Call call = make_call(Kind::kAllReduce, tensor);
  call.op = options.reduceOp;
  Lender lender;
  const at::Tensor flat = lender.both(tensor);
  const bool is_short = static_cast<int64_t>(flat.nbytes()) <= kOneRoundBytes;
  const Tensors parts = is_short ? Tensors(size_, flat) : split_evenly(flat, size_);
  sent_bytes_ += bytes_to_peers(call, parts) +
                 (is_short ? 0 : static_cast<uint64_t>(size_ - 1) * parts[rank_].nbytes());
  const auto then = is_short ? SegmentedReduce::Then::kKeep : SegmentedReduce::Then::kGather;
  return start(call, options.timeout, {tensor}, lender, [&](const Call& numbered) {
    return std::make_shared<SegmentedReduce>(transport_, numbered, parts[rank_], parts, then,
                                             staging_);
  });
}

DirectBackend::WorkPtr DirectBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  std::vector<WorkPtr> works;
  for (const at::Tensor& tensor : tensors) {
    Tensors one{tensor};
    works.push_back(allreduce(one, options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

DirectBackend::WorkPtr DirectBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "reduce");
  check_root(options.rootRank, size_, "reduce");
  check_reducible(tensor, options.reduceOp, "reduce");
  Call call = make_call(Kind::kReduce, tensor);
  call.op = options.reduceOp;
  call.root = static_cast<int>(options.rootRank);
  Lender lender;
  // The root's part is everything, and others have none.
  Tensors parts(size_, at::empty({0}, tensor.options().device(at::kCPU)));
  parts[call.root] = rank_ == call.root ? lender.both(tensor) : lender.source(tensor);
  sent_bytes_ += bytes_to_peers(call, parts);
  return start(call, options.timeout, {tensor}, lender, [&](const Call& numbered) {
    return std::make_shared<SegmentedReduce>(transport_, numbered, parts[rank_], parts,
                                             SegmentedReduce::Then::kKeep, staging_);
  });
}

DirectBackend::WorkPtr DirectBackend::start_gather(const at::Tensor& whole, const Tensors& outputs,
                                                   const at::Tensor& input,
                                                   std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(outputs[rank_].numel() == input.numel(), "all_gather: the input has ",
                    input.numel(), " elements, but the output has ", outputs[rank_].numel(),
                    " for those of rank ", rank_);
  TORCH_CHECK_TYPE(outputs[rank_].scalar_type() == input.scalar_type(),
                   "all_gather: the output is ", outputs[rank_].scalar_type(), ", the input ",
                   input.scalar_type());
  Call call = make_call(Kind::kAllGather, input);
  call.parts = unequal_sizes(outputs);
  call.numel =
      std::accumulate(outputs.begin(), outputs.end(), int64_t{0},
                      [](int64_t sum, const at::Tensor& output) { return sum + output.numel(); });
  Lender lender;
  Parcels parcels(size_);
  parcels.sent.assign(size_, lender.source(input));
  parcels.received =
      whole.defined() ? split_evenly(lender.target(whole), size_) : lender.targets(outputs);
  sent_bytes_ += bytes_to_peers(call, parcels.sent);
  return start(call, timeout, whole.defined() ? Tensors{whole} : outputs, lender,
               [&](const Call& numbered) {
                 return std::make_shared<Exchange>(transport_, numbered, parcels);
               });
}

DirectBackend::WorkPtr DirectBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  return start_gather({}, one_each(outputs, size_, "all_gather"), only(inputs, "all_gather"),
                      options.timeout);
}

DirectBackend::WorkPtr DirectBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_, "all_gather: the output has ",
                    output.numel(), " elements, but ", size_, " ranks have ",
                    input.numel() * size_);
  const at::Tensor flat = output.is_contiguous() ? output.view(-1) : output.reshape(-1);
  return start_gather(output, split_evenly(flat, size_), input, options.timeout);
}

DirectBackend::WorkPtr DirectBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                          Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  // The lists are by rank here, and by tensor elsewhere.
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_ranks;
    for (const Tensors& list : outputs) {
      TORCH_CHECK_VALUE(list.size() == inputs.size(), "all_gather_coalesced: there are ",
                        inputs.size(), " inputs, but a list of ", list.size(), " outputs");
      of_ranks.push_back(list[i]);
    }
    std::vector<Tensors> lists{of_ranks};
    works.push_back(
        start_gather({}, one_each(lists, size_, "all_gather"), inputs[i], options.timeout));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

DirectBackend::WorkPtr DirectBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_allgather_base(outputs.at(i), inputs[i], options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

DirectBackend::WorkPtr DirectBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs, "gather");
  check_root(options.rootRank, size_, "gather");
  Call call = make_call(Kind::kGather, input);
  call.root = static_cast<int>(options.rootRank);
  Lender lender;
  Parcels parcels(size_);
  Tensors results;
  parcels.sent[call.root] = lender.source(input);
  if (rank_ == call.root) {
    results = one_each(outputs, size_, "gather");
    parcels.received = lender.targets(results);
  }
  sent_bytes_ += bytes_to_peers(call, parcels.sent);
  return start(call, options.timeout, results, lender, [&](const Call& numbered) {
    return std::make_shared<Exchange>(transport_, numbered, parcels);
  });
}

DirectBackend::WorkPtr DirectBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs, "scatter");
  check_root(options.rootRank, size_, "scatter");
  Call call = make_call(Kind::kScatter, output);
  call.root = static_cast<int>(options.rootRank);
  Lender lender;
  Parcels parcels(size_);
  if (rank_ == call.root) {
    parcels.sent = lender.sources(one_each(inputs, size_, "scatter"));
  }
  parcels.received[call.root] = lender.target(output);
  sent_bytes_ += bytes_to_peers(call, parcels.sent);
  return start(call, options.timeout, {output}, lender, [&](const Call& numbered) {
    return std::make_shared<Exchange>(transport_, numbered, parcels);
  });
}

DirectBackend::WorkPtr DirectBackend::start_reduce_scatter(const at::Tensor& output,
                                                           const at::Tensor& whole,
                                                           const Tensors& inputs, RedOp op,
                                                           std::chrono::milliseconds timeout) {
  const at::Tensor& own = inputs[rank_];
  check_reducible(own, op, "reduce_scatter");
  TORCH_CHECK_VALUE(own.numel() == output.numel(), "reduce_scatter: the output has ",
                    output.numel(), " elements, but the part of rank ", rank_, " has ",
                    own.numel());
  const bool widens = output.scalar_type() == at::kFloat &&
                      (own.scalar_type() == at::kHalf || own.scalar_type() == at::kBFloat16);
  TORCH_CHECK_TYPE(output.scalar_type() == own.scalar_type() || widens,
                   "reduce_scatter: the output is ", output.scalar_type(), ", the input ",
                   own.scalar_type());
  Call call = make_call(Kind::kReduceScatter, own);
  call.op = op;
  call.parts = unequal_sizes(inputs);
  call.numel =
      std::accumulate(inputs.begin(), inputs.end(), int64_t{0},
                      [](int64_t sum, const at::Tensor& input) { return sum + input.numel(); });
  Lender lender;
  const Tensors parts =
      whole.defined() ? split_evenly(lender.source(whole), size_) : lender.sources(inputs);
  const at::Tensor target = lender.target(output);
  sent_bytes_ += bytes_to_peers(call, parts);
  return start(call, timeout, {output}, lender, [&](const Call& numbered) {
    return std::make_shared<SegmentedReduce>(transport_, numbered, target, parts,
                                             SegmentedReduce::Then::kKeep, staging_);
  });
}

DirectBackend::WorkPtr DirectBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
  return start_reduce_scatter(only(outputs, "reduce_scatter"), {},
                              one_each(inputs, size_, "reduce_scatter"), options.reduceOp,
                              options.timeout);
}

DirectBackend::WorkPtr DirectBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_, "reduce_scatter: the input has ",
                    input.numel(), " elements, but ", size_, " ranks get ", output.numel() * size_);
  return start_reduce_scatter(output, input, split_evenly(input.reshape(-1), size_),
                              options.reduceOp, options.timeout);
}

DirectBackend::WorkPtr DirectBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_reduce_scatter_base(outputs.at(i), inputs[i], options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

DirectBackend::WorkPtr DirectBackend::start_all_to_all(const Tensors& outputs,
                                                       const Tensors& inputs,
                                                       const Tensors& results, const Lender& lender,
                                                       std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(outputs[rank_].numel() == inputs[rank_].numel(), "all_to_all: rank ", rank_,
                    " sends ", inputs[rank_].numel(), " elements to itself, but expects ",
                    outputs[rank_].numel());
  Call call = make_call(Kind::kAllToAll, inputs[rank_]);
  call.numel = 0;
  Parcels parcels(size_);
  parcels.sent = inputs;
  parcels.received = outputs;
  sent_bytes_ += bytes_to_peers(call, inputs);
  return start(call, timeout, results, lender, [&](const Call& numbered) {
    return std::make_shared<Exchange>(transport_, numbered, parcels);
  });
}

DirectBackend::WorkPtr DirectBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                               const c10d::AllToAllOptions& options) {
  one_each({outputs}, size_, "all_to_all");
  one_each({inputs}, size_, "all_to_all");
  Lender lender;
  const Tensors targets = lender.targets(outputs);
  return start_all_to_all(targets, lender.sources(inputs), outputs, lender, options.timeout);
}

DirectBackend::WorkPtr DirectBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<int64_t>& output_rows,
                                                    std::vector<int64_t>& input_rows,
                                                    const c10d::AllToAllOptions& options) {
  Lender lender;
  const Tensors targets =
      split_by(lender.target(output), sizes_of_rows(output, output_rows, size_));
  const Tensors sources = split_by(lender.source(input), sizes_of_rows(input, input_rows, size_));
  return start_all_to_all(targets, sources, {output}, lender, options.timeout);
}

DirectBackend::WorkPtr DirectBackend::start_barrier(std::chrono::milliseconds timeout) {
  const Call call = make_call(Kind::kBarrier, at::empty({0}, at::kByte));
  return start(call, timeout, {}, {}, [&](const Call& numbered) {
    return std::make_shared<Exchange>(transport_, numbered, Parcels(size_));
  });
}

DirectBackend::WorkPtr DirectBackend::barrier(const c10d::BarrierOptions& options) {
  return start_barrier(options.timeout);
}

void DirectBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) {
  start_barrier(options.timeout)->wait();
}

DirectBackend::WorkPtr DirectBackend::send(Tensors& tensors, int receiver, int tag) {
  return transport_->send(tensors, receiver, tag);
}

DirectBackend::WorkPtr DirectBackend::recv(Tensors& tensors, int sender, int tag) {
  return transport_->recv(tensors, sender, tag);
}

DirectBackend::WorkPtr DirectBackend::recvAnysource(Tensors& tensors, int tag) {
  return transport_->recvAnysource(tensors, tag);
}

uint64_t DirectBackend::getSequenceNumberForGroup() {
  const std::lock_guard lock(mutex_);
  return sequence_;
}

c10::intrusive_ptr<c10d::Backend> DirectBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const std::vector<int>& ranks,
                                                       const c10::intrusive_ptr<Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) {
    return nullptr;
  }
  return make_direct(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                     bind_, (options ? options : getBackendOptions())->timeout);
}

void DirectBackend::shutdown() { progress_.stop(); }

}  // namespace fairshard::comm
