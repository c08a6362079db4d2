#include "optimizer_access.h"
#include <fairshard/comm/collectives.h>
#include <fairshard/optim/consolidate.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fairshard {
namespace {

using parts::StateFields;
using shard::FlatGroup;
using shard::Slice;
using torch::optim::Optimizer;
using WholeStates = std::vector<std::pair<at::Tensor, StateFields>>;

/// Of each parameter of the OSS, that of the plain optimizer.
std::unordered_map<const c10::TensorImpl*, at::Tensor> counterparts(OssBase& sharded,
                                                                    Optimizer& whole) {
  auto& ours = sharded.param_groups();
  auto& theirs = whole.param_groups();
  TORCH_CHECK_VALUE(ours.size() == theirs.size(), "the OSS has ", ours.size(),
                    " parameter group(s), the plain optimizer ", theirs.size());
  std::unordered_map<const c10::TensorImpl*, at::Tensor> result;
  for (size_t i = 0; i < ours.size(); ++i) {
    const auto& own = ours[i].params();
    const auto& plain = theirs[i].params();
    TORCH_CHECK_VALUE(own.size() == plain.size(), "group ", i, " of the OSS has ", own.size(),
                      " parameter(s), that of the plain optimizer ", plain.size());
    for (size_t j = 0; j < own.size(); ++j) {
      TORCH_CHECK_VALUE(own[j].sizes() == plain[j].sizes(), "parameter ", j, " of group ", i,
                        " has sizes ", own[j].sizes(), " in the OSS, and ", plain[j].sizes(),
                        " in the plain optimizer");
      result.emplace(own[j].unsafeGetTensorImpl(), plain[j]);
    }
  }
  return result;
}

void copy_options(const parts::OptimizerAccess& from, const parts::OptimizerAccess& to) {
  std::string json = "[";
  for (const auto& group : from.groups()) {
    json += (json.size() > 1 ? "," : "") + group.options;
  }
  to.set_options(json + "]");
}

/// Elements in the order in which those of `like` lie in memory.
at::Tensor memory_of(const at::Tensor& value, const at::Tensor& like) {
  const at::Tensor ordered =
      value.strides() == like.strides()
          ? value
          : at::empty_strided(like.sizes(), like.strides(), value.options()).copy_(value);
  return ordered.as_strided({ordered.numel()}, {1});
}

/// What this rank has of one bucket, and what all have.
class GatheredBucket {
 public:
  GatheredBucket(FlatGroup& group, size_t bucket, const parts::OptimizerAccess& access)
      : group_(group), layout_(group.layout().buckets()[bucket]) {
    for (const Slice& slice : group.slices()) {
      if (slice.piece.bucket == bucket) {
        own_.emplace_back(&slice, access.state(slice.values));
      }
    }
  }

  /// The fields of all parameters, under their numbers in the group.
  std::map<size_t, StateFields> gather(const std::vector<std::string>& names) {
    std::map<size_t, StateFields> result;
    for (const std::string& name : names) {
      name == "step" ? gather_steps(result) : gather_field(name, result);
    }
    return result;
  }

 private:
  const at::Tensor* own_field(const StateFields& state, const std::string& name) const {
    const auto found = state.find(name);
    return found == state.end() ? nullptr : std::get_if<at::Tensor>(&found->second);
  }

  /// Of each slot, the largest number that a rank has; 0 where nobody has any.
  at::Tensor largest(const std::string& what, const std::string& name,
                     const std::function<double(const at::Tensor&)>& number) {
    const at::Tensor numbers = at::zeros({static_cast<int64_t>(layout_.slots.size())}, at::kDouble);
    for (const auto& [slice, state] : own_) {
      if (const at::Tensor* const value = own_field(state, name)) {
        numbers[slot_of(slice->piece.parameter)].fill_(number(*value));
      }
    }
    comm::all_reduce(group_.group(), numbers, comm::ReduceOp::kMax, what + " of '" + name + "'")
        .wait();
    return numbers;
  }

  int64_t slot_of(size_t parameter) const {
    for (size_t i = 0; i < layout_.slots.size(); ++i) {
      if (layout_.slots[i].parameter == parameter) {
        return static_cast<int64_t>(i);
      }
    }
    TORCH_INTERNAL_ASSERT(false);
  }

  /// All owners of a parameter have counted alike.
  void gather_steps(std::map<size_t, StateFields>& result) {
    const at::Tensor steps =
        largest("steps", "step", [](const at::Tensor& step) { return step.item<double>() + 1; });
    for (size_t i = 0; i < layout_.slots.size(); ++i) {
      const auto step = steps[static_cast<int64_t>(i)].item<double>();
      if (step > 0) {
        result[layout_.slots[i].parameter].emplace("step", at::tensor(step - 1, at::kFloat));
      }
    }
  }

  void gather_field(const std::string& name, std::map<size_t, StateFields>& result) {
    const at::Tensor dtypes = largest("dtypes", name, [](const at::Tensor& value) {
      return static_cast<double>(value.scalar_type()) + 1;
    });
    const auto code = static_cast<int>(dtypes.max().item<double>());
    if (code == 0) {
      return;
    }
    const int rank = group_.group().rank();
    const auto options = group_.parameters()[layout_.slots[0].parameter].tensor.options().dtype(
        static_cast<at::ScalarType>(code - 1));
    const at::Tensor own = at::zeros({layout_.bounds[rank + 1] - layout_.bounds[rank]}, options);
    for (const auto& [slice, state] : own_) {
      if (const at::Tensor* const value = own_field(state, name)) {
        own.narrow(0, slice->piece.offset, slice->piece.numel())
            .copy_(memory_of(*value, slice->values));
      }
    }
    const at::Tensor all = at::zeros({layout_.length()}, options);
    comm::all_gather(group_.group(), all, own, "optimizer state '" + name + "'", layout_.bounds)
        .wait();
    for (size_t i = 0; i < layout_.slots.size(); ++i) {
      if (dtypes[static_cast<int64_t>(i)].item<double>() > 0) {
        const auto& parameter = group_.parameters()[layout_.slots[i].parameter];
        result[layout_.slots[i].parameter].emplace(
            name, shard::view_of(parameter, layout_.slots[i], all).clone());
      }
    }
  }

  FlatGroup& group_;
  const shard::Bucket& layout_;
  std::vector<std::pair<const Slice*, StateFields>> own_;
};

}  // namespace

void consolidate_state(OssBase& sharded, Optimizer& whole, int root) {
  const auto& groups = sharded.flat_groups();
  const auto plain = counterparts(sharded, whole);
  const auto from = access_to(sharded);
  const auto to = access_to(whole);
  const auto names = state_field_names(sharded.base());  // the same on all ranks
  const at::NoGradGuard no_grad;
  WholeStates states;
  for (const auto& group : groups) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !group->has_masters(),
        "consolidate_state: the OSS has master weights, which a plain optimizer has not. Save a "
        "fairshard::Checkpoint");
    TORCH_CHECK_VALUE(root >= 0 && root < group->group().size(), "root is ", root,
                      ", but must be a rank of a group of ", group->group().size());
    for (size_t bucket = 0; bucket < group->layout().buckets().size(); ++bucket) {
      auto gathered = GatheredBucket(*group, bucket, from).gather(names);
      for (auto& [parameter, fields] : gathered) {
        if (group->group().rank() == root) {
          const at::Tensor& own = group->parameters()[parameter].tensor;
          states.emplace_back(plain.at(own.unsafeGetTensorImpl()), std::move(fields));
        }
      }
    }
  }
  copy_options(from, to);
  if (!groups.empty() && groups.front()->group().rank() == root) {
    to.set_states(states);
  }
}

void load_state(OssBase& sharded, Optimizer& whole) {
  const auto plain = counterparts(sharded, whole);
  const auto from = access_to(whole);
  const auto to = access_to(sharded);
  const at::NoGradGuard no_grad;
  WholeStates states;
  for (const auto& group : sharded.flat_groups()) {
    for (const auto& [piece, values] : group->slices()) {
      const at::Tensor& parameter = group->parameters()[piece.parameter].tensor;
      StateFields own;
      for (const auto& [name, value] : from.state(plain.at(parameter.unsafeGetTensorImpl()))) {
        const at::Tensor& tensor = std::get<at::Tensor>(value);
        own.emplace(name, name == "step" ? tensor.clone()
                                         : memory_of(tensor, parameter)
                                               .slice(0, piece.begin, piece.end)
                                               .clone()
                                               .as_strided(values.sizes(), values.strides()));
      }
      if (!own.empty()) {
        states.emplace_back(values, std::move(own));
      }
    }
  }
  copy_options(from, to);
  to.set_states(states);
  sharded.sharded_step().freeze_layout();
}

}  // namespace fairshard
