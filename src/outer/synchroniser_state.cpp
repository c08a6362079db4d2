// What a Synchroniser writes to a checkpoint, and takes from it.
#include "synchroniser_impl.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <c10/util/Exception.h>

#include <utility>

namespace fairshard::outer {
namespace {

std::string numbered(const char* name, size_t bucket) { return c10::str(name, ".", bucket); }

double scalar_of(const std::map<std::string, double>& scalars, const std::string& name) {
  const auto found = scalars.find(name);
  TORCH_CHECK_VALUE(found != scalars.end(), "the state of the outer optimizer has no '", name, "'");
  return found->second;
}

/// The tensor of this name, for buffers that look like `example`; undefined if there is none.
at::Tensor optional_tensor(const OuterState& state, const std::string& name,
                           const at::TensorOptions& options, int64_t length) {
  const auto found = state.tensors.find(name);
  if (found == state.tensors.end()) {
    return {};
  }
  TORCH_CHECK_VALUE(found->second.numel() == length, "'", name,
                    "' in the state of the outer optimizer has ", found->second.numel(),
                    " elements, but this rank needs ", length,
                    ": it is of another rank, another number of ranks per node, or other options");
  return found->second.to(options).clone();
}

}  // namespace

/// Buffers that are there whatever has happened.
std::map<std::string, at::Tensor> Synchroniser::Impl::named_buffers() const {
  std::map<std::string, at::Tensor> result;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const auto& [name, tensor] :
         {std::pair("outer", buckets_[b].outer), std::pair("momentum", buckets_[b].momentum),
          std::pair("error", buckets_[b].error)}) {
      if (tensor.defined()) {
        result.emplace(numbered(name, b), tensor);
      }
    }
  }
  return result;
}

OuterState Synchroniser::Impl::state() {
  const at::NoGradGuard no_grad;
  OuterState state;
  state.tensors = named_buffers();
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].pending) {
      state.tensors.emplace(numbered("pending", b), buckets_[b].pending->wait());
    }
  }
  state.scalars = scalars();
  if (gossip) {
    for (size_t b = 0; b < gossip->excess().size(); ++b) {
      state.tensors.emplace(numbered("excess", b), gossip->excess()[b]);
    }
    for (size_t b = 0; b < gossip->arrived().size(); ++b) {
      state.tensors.emplace(numbered("incoming", b), gossip->arrived()[b]);
    }
  }
  for (auto& [name, tensor] : state.tensors) {
    tensor = tensor.clone();
  }
  return state;
}

void Synchroniser::Impl::load_state(const OuterState& state) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : named_buffers()) {
    const at::Tensor loaded = optional_tensor(state, name, buffer.options(), buffer.numel());
    TORCH_CHECK_VALUE(loaded.defined(), "the state of the outer optimizer has no '", name,
                      "': it is that of other parameters or options");
    buffer.copy_(loaded);
  }
  std::vector<at::Tensor> excess;
  std::vector<at::Tensor> incoming;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    OuterBucket& bucket = buckets_[b];
    const int64_t length = bucket.end - bucket.begin;
    const auto at_work = at::device(bucket.device).dtype(bucket.dtype);
    const auto at_rest = at_work.device(state_device(bucket));
    const at::Tensor pending = optional_tensor(state, numbered("pending", b), at_rest, length);
    bucket.pending.reset();
    if (pending.defined()) {
      bucket.pending = std::make_unique<PendingAverage>(pending);
    }
    for (const auto& [name, list] :
         {std::pair("excess", &excess), std::pair("incoming", &incoming)}) {
      const at::Tensor found = optional_tensor(state, numbered(name, b), at_work, length);
      if (found.defined()) {
        list->push_back(found);
      }
    }
  }
  set_counts(state.scalars);
  if (gossip) {
    gossip->load(scalar_of(state.scalars, "push_sum_weight"), std::move(excess),
                 scalar_of(state.scalars, "arriving_push_sum_weight"), std::move(incoming));
  }
}

std::map<std::string, double> Synchroniser::Impl::scalars() {
  std::map<std::string, double> result = {
      {"nodes", nodes.count()},
      {"calls", static_cast<double>(report.calls)},
      {"averages", static_cast<double>(report.averages)},
      {"slow_steps", static_cast<double>(report.slow_steps)},
  };
  if (gossip) {
    result["mixes"] = static_cast<double>(gossip->mixes);
    result["push_sum_weight"] = gossip->weight();
    result["arriving_push_sum_weight"] = gossip->arriving_weight();
  }
  return result;
}

void Synchroniser::Impl::set_counts(const std::map<std::string, double>& scalars) {
  report.calls = static_cast<int64_t>(scalar_of(scalars, "calls"));
  report.averages = static_cast<int64_t>(scalar_of(scalars, "averages"));
  report.slow_steps = static_cast<int64_t>(scalar_of(scalars, "slow_steps"));
  if (gossip) {
    gossip->mixes = static_cast<int64_t>(scalar_of(scalars, "mixes"));
  }
}

}  // namespace fairshard::outer
