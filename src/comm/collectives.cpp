#include "reduce.h"
#include "state.h"
#include <fairshard/comm/collectives.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace fairshard::comm {
namespace {

void check_member(const Group& group, const char* name) {
  TORCH_CHECK_VALUE(group.rank() >= 0, name, ": this process is not in the group");
}

void check_tensor(const at::Tensor& tensor, const char* name, const char* argument,
                  const std::string& label) {
  const std::string where = c10::str(name, label.empty() ? "" : " '" + label + "'", ": ", argument);
  TORCH_CHECK_VALUE(tensor.defined(), where, " is an undefined tensor");
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, where, " is a ", tensor.layout(),
                   " tensor, but must be dense");
  TORCH_CHECK_VALUE(tensor.is_contiguous(), where, " of sizes ", tensor.sizes(), " and strides ",
                    tensor.strides(), " is not contiguous");
}

void check_reducible(const at::Tensor& tensor, ReduceOp op, const char* name,
                     const std::string& label) {
  TORCH_CHECK_TYPE(is_reducible(tensor.scalar_type(), op), name,
                   label.empty() ? "" : " '" + label + "'", ": tensors of dtype ",
                   tensor.scalar_type(), " cannot be reduced",
                   op == ReduceOp::kAvg ? " to an average" : "");
}

bool are_equal_parts(const Bounds& bounds) {
  for (size_t i = 2; i < bounds.size(); ++i) {
    if (bounds[i] - bounds[i - 1] != bounds[1] - bounds[0]) {
      return false;
    }
  }
  return true;
}

void check_bounds(const Group& group, const at::Tensor& whole, const at::Tensor& part,
                  const Bounds& bounds, const std::string& where) {
  TORCH_CHECK_VALUE(bounds.size() == static_cast<size_t>(group.size()) + 1, where, "a group of ",
                    group.size(), " needs ", group.size() + 1, " bounds, but got ", bounds.size());
  TORCH_CHECK_VALUE(std::is_sorted(bounds.begin(), bounds.end()) && bounds.front() == 0 &&
                        bounds.back() == whole.numel(),
                    where, "the bounds must ascend from 0 to ", whole.numel(), ", but are ",
                    c10::Join(", ", bounds));
  const int64_t own = bounds[group.rank() + 1] - bounds[group.rank()];
  TORCH_CHECK_VALUE(part.numel() == own, where, "the smaller tensor has ", part.numel(),
                    " elements, but the part of rank ", group.rank(), " has ", own);
}

void check_parts(const Group& group, const at::Tensor& whole, const at::Tensor& part,
                 const Bounds& bounds, const char* name, const std::string& label) {
  const std::string where = c10::str(name, label.empty() ? "" : " '" + label + "'", ": ");
  if (!bounds.empty()) {
    check_bounds(group, whole, part, bounds, where);
  } else {
    TORCH_CHECK_VALUE(whole.numel() == part.numel() * group.size(), where, "the larger tensor has ",
                      whole.numel(), " elements and the smaller ", part.numel(),
                      ", but a group of ", group.size(), " needs ", part.numel() * group.size());
  }
  TORCH_CHECK_VALUE(whole.device() == part.device(), name, ": tensors on ", whole.device(), " and ",
                    part.device(), " cannot meet in one collective");
}

Call make_call(Kind kind, const at::Tensor& whole, const std::string& label,
               const Bounds& bounds = {}) {
  return {.kind = kind,
          .dtype = whole.scalar_type(),
          .numel = whole.numel(),
          .bounds = are_equal_parts(bounds) ? Bounds() : bounds,
          .label = label};
}

}  // namespace

Work all_reduce(const Group& group, const at::Tensor& tensor, ReduceOp op,
                const std::string& label) {
  check_member(group, "all_reduce");
  check_tensor(tensor, "all_reduce", "the tensor", label);
  check_reducible(tensor, op, "all_reduce", label);
  if (group.size() == 1) {
    return {};
  }
  Call call = make_call(Kind::kAllReduce, tensor, label);
  call.op = op;
  return group.state().start(call, tensor, tensor, group.timeout());
}

Work broadcast(const Group& group, const at::Tensor& tensor, int root, const std::string& label) {
  check_member(group, "broadcast");
  check_tensor(tensor, "broadcast", "the tensor", label);
  TORCH_CHECK_VALUE(root >= 0 && root < group.size(), "broadcast: root ", root,
                    " is not a rank of a group of ", group.size());
  if (group.size() == 1) {
    return {};
  }
  Call call = make_call(Kind::kBroadcast, tensor, label);
  call.root = root;
  return group.state().start(call, tensor, tensor, group.timeout());
}

Work all_gather(const Group& group, const at::Tensor& output, const at::Tensor& input,
                const std::string& label, const Bounds& bounds, int number) {
  check_member(group, "all_gather");
  check_tensor(output, "all_gather", "the output", label);
  check_tensor(input, "all_gather", "the input", label);
  check_parts(group, output, input, bounds, "all_gather", label);
  TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), "all_gather: the output is ",
                   output.scalar_type(), ", the input ", input.scalar_type());
  if (group.size() == 1) {
    output.view(-1).copy_(input.view(-1));
    return {};
  }
  Call call = make_call(Kind::kAllGather, output, label, bounds);
  call.root = number;
  return group.state().start(call, output, input, group.timeout());
}

Work reduce_scatter(const Group& group, const at::Tensor& output, const at::Tensor& input,
                    ReduceOp op, const std::string& label, const Bounds& bounds) {
  check_member(group, "reduce_scatter");
  check_tensor(output, "reduce_scatter", "the output", label);
  check_tensor(input, "reduce_scatter", "the input", label);
  check_parts(group, input, output, bounds, "reduce_scatter", label);
  check_reducible(input, op, "reduce_scatter", label);
  const bool widens = output.scalar_type() == at::kFloat &&
                      (input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16);
  TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type() || widens,
                   "reduce_scatter: the output is ", output.scalar_type(), ", the input ",
                   input.scalar_type());
  if (group.size() == 1) {
    output.view(-1).copy_(input.view(-1));
    return {};
  }
  Call call = make_call(Kind::kReduceScatter, input, label, bounds);
  call.op = op;
  return group.state().start(call, output, input, group.timeout());
}

Work shift(const Group& group, const at::Tensor& output, const at::Tensor& input, int distance,
           const std::string& label) {
  check_member(group, "shift");
  check_tensor(output, "shift", "the output", label);
  check_tensor(input, "shift", "the input", label);
  TORCH_CHECK_VALUE(output.sizes() == input.sizes() && output.options().type_equal(input.options()),
                    "shift: the output is ", output.scalar_type(), output.sizes(), ", the input ",
                    input.scalar_type(), input.sizes());
  TORCH_CHECK_VALUE(distance >= 0 && distance < group.size(), "shift: distance ", distance,
                    " is not below the group's size of ", group.size());
  if (distance == 0) {
    output.copy_(input);
    return {};
  }
  Call call = make_call(Kind::kShift, input, label);
  call.root = distance;
  return group.state().start(call, output, input, group.timeout());
}

void barrier(const Group& group, const std::string& label) {
  check_member(group, "barrier");
  if (group.size() > 1) {
    const at::Tensor none = at::empty({0}, at::kByte);
    group.state().start(make_call(Kind::kBarrier, none, label), none, none, group.timeout()).wait();
  }
}

}  // namespace fairshard::comm
