#pragma once
// c10d's asynchronous collectives with what it lacks: unequal parts, labels, sums of low precision
// in float32. Which backend moves the data is the process group's affair.

#include <fairshard/comm/group.h>
#include <fairshard/comm/work.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fairshard::comm {

/// How values of ranks become one.
enum class ReduceOp { kSum, kAvg, kMin, kMax };

/// How a tensor is divided among N ranks: rank r has the elements from bounds[r] to bounds[r + 1].
/// Empty: N equal parts.
using Bounds = std::vector<int64_t>;

// All functions here are collective: every rank of the group calls them, in the same order, with
// tensors of the same size and dtype, and the same label. Direct exchange finds and names a
// difference. They return at once; results are valid after Work::wait(). Tensors are dense and
// contiguous, and are neither read nor written by the caller until then. `label` names the call in
// error messages.
//
// CPU tensors are taken by every group: where it has no backend for them (NCCL alone), they travel
// by way of its own device. Direct exchange sums float16 and bfloat16 in float32.

/// Every rank's tensor becomes the reduction of all.
Work all_reduce(const Group& group, const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                const std::string& label = "");

/// Every rank's tensor becomes that of `root`.
Work broadcast(const Group& group, const at::Tensor& tensor, int root,
               const std::string& label = "");

/// `output` becomes the inputs of all ranks, one after another. `input` may be this rank's own part
/// of `output`.
Work all_gather(const Group& group, const at::Tensor& output, const at::Tensor& input,
                const std::string& label = "", const Bounds& bounds = {});

/// `output` becomes this rank's part of the reduction of all inputs; an input has a part per rank.
/// `output` may be this rank's own part of `input`, which is in any case overwritten. It may also
/// be float32 while the input is float16 or bfloat16: low precision on the wire and, by direct
/// exchange, full precision in the sum.
Work reduce_scatter(const Group& group, const at::Tensor& output, const at::Tensor& input,
                    ReduceOp op = ReduceOp::kSum, const std::string& label = "",
                    const Bounds& bounds = {});

/// Every rank r sends `input` to rank (r + distance) mod N, and `output` becomes that of rank
/// (r - distance) mod N. Only these two take part in what a rank does: others may be behind.
Work shift(const Group& group, const at::Tensor& output, const at::Tensor& input, int distance,
           const std::string& label = "");

/// Returns when every rank has come here.
void barrier(const Group& group, const std::string& label = "");

}  // namespace fairshard::comm
