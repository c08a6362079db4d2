// DirectBackend's collectives: which parts of a tensor go where.
#include "direct_backend.h"
#include "parts.h"
#include "reduce.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

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

/// start(i) for i = 0, ..., count - 1 as one.
template <typename Start>
DirectBackend::WorkPtr coalesced(int rank, size_t count, const Start& start) {
  std::vector<DirectBackend::WorkPtr> works;
  for (size_t i = 0; i < count; ++i) {
    works.push_back(start(i));
  }
  return c10::make_intrusive<CoalescedWork>(rank, std::move(works));
}

}  // namespace

using WorkPtr = DirectBackend::WorkPtr;

WorkPtr DirectBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors, "broadcast");
  check_root(options.rootRank, size_, "broadcast");
  const Call call = make_call(Kind::kBroadcast, tensor, tensor.numel(), options.rootRank);
  Lender lender;
  Parcels parcels(size_);
  if (rank_ == call.root) {
    parcels.sent.assign(size_, Lender::source(tensor));
  } else {
    parcels.received[call.root] = lender.target(tensor);
  }
  return exchange(call, options.timeout, {tensor}, lender, parcels);
}

WorkPtr DirectBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all_reduce");
  check_reducible(tensor, options.reduceOp, "all_reduce");
  Call call = make_call(Kind::kAllReduce, tensor, tensor.numel());
  call.op = options.reduceOp;
  Lender lender;
  const at::Tensor flat = lender.both(tensor);
  const bool is_short = static_cast<int64_t>(flat.nbytes()) <= kOneRoundBytes;
  const Tensors parts = is_short ? Tensors(size_, flat) : split_evenly(flat, size_);
  const auto then = is_short ? SegmentedReduce::Then::kKeep : SegmentedReduce::Then::kGather;
  return reduce_parts(call, options.timeout, tensor, lender, parts[rank_], parts, then);
}

WorkPtr DirectBackend::allreduce_coalesced(Tensors& tensors,
                                           const c10d::AllreduceCoalescedOptions& options) {
  return coalesced(rank_, tensors.size(), [&](size_t i) {
    Tensors one{tensors[i]};
    return allreduce(one, options);
  });
}

WorkPtr DirectBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "reduce");
  check_root(options.rootRank, size_, "reduce");
  check_reducible(tensor, options.reduceOp, "reduce");
  Call call = make_call(Kind::kReduce, tensor, tensor.numel(), options.rootRank);
  call.op = options.reduceOp;
  Lender lender;
  // The root's part is everything, and others have none.
  Tensors parts(size_, at::empty({0}, tensor.options().device(at::kCPU)));
  parts[call.root] = rank_ == call.root ? lender.both(tensor) : Lender::source(tensor);
  return reduce_parts(call, options.timeout, tensor, lender, parts[rank_], parts);
}

WorkPtr DirectBackend::gather_parts(const Tensors& outputs, const Tensors& results,
                                    const at::Tensor& input, const Lender& lender,
                                    Timeout timeout) {
  const at::Tensor& own = outputs[rank_];
  TORCH_CHECK_VALUE(own.numel() == input.numel(), "all_gather: the input has ", input.numel(),
                    " elements, but the output has ", own.numel(), " for those of rank ", rank_);
  TORCH_CHECK_TYPE(own.scalar_type() == input.scalar_type(), "all_gather: the output is ",
                   own.scalar_type(), ", the input ", input.scalar_type());
  const Sizes sizes = sizes_of(outputs);
  Call call = make_call(Kind::kAllGather, input, total(sizes));
  call.parts = are_equal(sizes) ? Sizes() : sizes;
  Parcels parcels(size_);
  parcels.sent.assign(size_, Lender::source(input));
  parcels.received = outputs;
  return exchange(call, timeout, results, lender, parcels);
}

WorkPtr DirectBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& options) {
  const Tensors& results = one_each(outputs, size_, "all_gather");
  Lender lender;
  const Tensors parts = lender.targets(results);
  return gather_parts(parts, results, only(inputs, "all_gather"), lender, options.timeout);
}

WorkPtr DirectBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_, "all_gather: the output has ",
                    output.numel(), " elements, but ", size_, " ranks have ",
                    input.numel() * size_);
  Lender lender;
  const Tensors parts = split_evenly(lender.target(output), size_);
  return gather_parts(parts, {output}, input, lender, options.timeout);
}

WorkPtr DirectBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  return coalesced(rank_, inputs.size(), [&](size_t i) {
    std::vector<Tensors> of_ranks(1);  // the lists are by rank here, and by tensor elsewhere
    for (const Tensors& list : outputs) {
      TORCH_CHECK_VALUE(list.size() == inputs.size(), "all_gather_coalesced: there are ",
                        inputs.size(), " inputs, but a list of ", list.size(), " outputs");
      of_ranks[0].push_back(list[i]);
    }
    Tensors one{inputs[i]};
    return allgather(of_ranks, one, options);
  });
}

WorkPtr DirectBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllgatherOptions& options) {
  return coalesced(rank_, inputs.size(),
                   [&](size_t i) { return _allgather_base(outputs.at(i), inputs[i], options); });
}

WorkPtr DirectBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs, "gather");
  check_root(options.rootRank, size_, "gather");
  const Call call = make_call(Kind::kGather, input, input.numel(), options.rootRank);
  Lender lender;
  Parcels parcels(size_);
  Tensors results;
  parcels.sent[call.root] = Lender::source(input);
  if (rank_ == call.root) {
    results = one_each(outputs, size_, "gather");
    parcels.received = lender.targets(results);
  }
  return exchange(call, options.timeout, results, lender, parcels);
}

WorkPtr DirectBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                               const c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs, "scatter");
  check_root(options.rootRank, size_, "scatter");
  const Call call = make_call(Kind::kScatter, output, output.numel(), options.rootRank);
  Lender lender;
  Parcels parcels(size_);
  if (rank_ == call.root) {
    parcels.sent = Lender::sources(one_each(inputs, size_, "scatter"));
  }
  parcels.received[call.root] = lender.target(output);
  return exchange(call, options.timeout, {output}, lender, parcels);
}

WorkPtr DirectBackend::scatter_sums(const at::Tensor& output, const Tensors& parts,
                                    const c10d::ReduceScatterOptions& options) {
  const at::Tensor& own = parts[rank_];
  check_reducible(own, options.reduceOp, "reduce_scatter");
  TORCH_CHECK_VALUE(own.numel() == output.numel(), "reduce_scatter: the output has ",
                    output.numel(), " elements, but the part of rank ", rank_, " has ",
                    own.numel());
  TORCH_CHECK_TYPE(
      output.scalar_type() == own.scalar_type() || widens(own.scalar_type(), output.scalar_type()),
      "reduce_scatter: the output is ", output.scalar_type(), ", the input ", own.scalar_type());
  const Sizes sizes = sizes_of(parts);
  Call call = make_call(Kind::kReduceScatter, own, total(sizes));
  call.op = options.reduceOp;
  call.parts = are_equal(sizes) ? Sizes() : sizes;
  Lender lender;
  const at::Tensor target = lender.target(output);
  return reduce_parts(call, options.timeout, output, lender, target, parts);
}

WorkPtr DirectBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ReduceScatterOptions& options) {
  const Tensors& parts = one_each(inputs, size_, "reduce_scatter");
  return scatter_sums(only(outputs, "reduce_scatter"), Lender::sources(parts), options);
}

WorkPtr DirectBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_, "reduce_scatter: the input has ",
                    input.numel(), " elements, but ", size_, " ranks get ", output.numel() * size_);
  return scatter_sums(output, split_evenly(Lender::source(input), size_), options);
}

WorkPtr DirectBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  return coalesced(rank_, inputs.size(), [&](size_t i) {
    return _reduce_scatter_base(outputs.at(i), inputs[i], options);
  });
}

WorkPtr DirectBackend::exchange_all(const Tensors& outputs, const Tensors& inputs,
                                    const Tensors& results, const Lender& lender, Timeout timeout) {
  TORCH_CHECK_VALUE(outputs[rank_].numel() == inputs[rank_].numel(), "all_to_all: rank ", rank_,
                    " sends ", inputs[rank_].numel(), " elements to itself, but expects ",
                    outputs[rank_].numel());
  Parcels parcels(size_);
  parcels.sent = inputs;
  parcels.received = outputs;
  const Call call = make_call(Kind::kAllToAll, inputs[rank_], 0);
  return exchange(call, timeout, results, lender, parcels);
}

WorkPtr DirectBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                const c10d::AllToAllOptions& options) {
  one_each({outputs}, size_, "all_to_all");
  one_each({inputs}, size_, "all_to_all");
  Lender lender;
  const Tensors targets = lender.targets(outputs);
  return exchange_all(targets, Lender::sources(inputs), outputs, lender, options.timeout);
}

WorkPtr DirectBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                     std::vector<int64_t>& output_rows,
                                     std::vector<int64_t>& input_rows,
                                     const c10d::AllToAllOptions& options) {
  Lender lender;
  const auto received = sizes_of_rows(output, output_rows, size_);
  const Tensors targets = split_by(lender.target(output), received);
  const Tensors sources = split_by(Lender::source(input), sizes_of_rows(input, input_rows, size_));
  return exchange_all(targets, sources, {output}, lender, options.timeout);
}

WorkPtr DirectBackend::barrier(const c10d::BarrierOptions& options) {
  const Call call = make_call(Kind::kBarrier, at::empty({0}, at::kByte), 0);
  return exchange(call, options.timeout, {}, {}, Parcels(size_));
}

void DirectBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) {
  barrier(options)->wait();
}

}  // namespace fairshard::comm
