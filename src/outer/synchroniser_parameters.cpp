// What a Synchroniser keeps together: parameters, or slices of them, and buffers for them.
#include "synchroniser_impl.h"
#include <fairshard/shard/agree.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace fairshard::outer {

std::vector<int64_t> fragments_of(const Parameters& parameters, int fragments) {
  Parameters all = parameters;
  assign_fragments(all, fragments);
  std::vector<int64_t> result;
  result.reserve(all.size());
  for (const auto& parameter : all) {
    result.push_back(parameter.group);
  }
  return result;
}

void Synchroniser::Impl::add(const Parameters& more) {
  Parameters selected = select_parameters(more);
  TORCH_CHECK_VALUE(!selected.empty(), "there are no parameters to synchronise");
  const auto count = static_cast<int>(selected.size());
  assign_fragments(selected,
                   parameters.empty() ? options.fragments() : std::min(options.fragments(), count));
  std::vector<Whole> wholes;
  wholes.reserve(selected.size());
  for (const auto& parameter : selected) {
    wholes.push_back({parameter.name, parameter.tensor});
  }
  take(selected, wholes);
}

/// There may be none: of a small model some ranks own nothing. What is frozen has buckets of its
/// own, as layouts give them to whole parameters.
void Synchroniser::Impl::add(const std::vector<NodeSlice>& slices) {
  for (const bool is_trained : {true, false}) {
    Parameters own;
    std::vector<Whole> wholes;
    for (const NodeSlice& slice : slices) {
      if (slice.parameter.requires_grad() == is_trained) {
        own.push_back({c10::str(slice.name, "[", slice.begin, ":", slice.end, "]"), slice.values,
                       slice.fragment});
        wholes.push_back({slice.name, slice.parameter, slice.begin});
      }
    }
    take(own, wholes);
  }
}

void Synchroniser::Impl::take(const Parameters& more, const std::vector<Whole>& wholes) {
  const at::NoGradGuard no_grad;
  if (report.calls > 0 && gossip) {
    average({});  // new parameters have no share in what is under way
  }
  const size_t first = parameters.size();
  shard::check_same_parameters(nodes.inter_node(), more);
  parameters.insert(parameters.end(), more.begin(), more.end());
  wholes_.insert(wholes_.end(), wholes.begin(), wholes.end());
  if (more.empty()) {
    return;
  }
  for (OuterBucket& bucket : lay_out(parameters, first, part(), parts(), options)) {
    bucket.is_frozen = !has_trained(bucket);
    make_buffers(bucket);
    buckets_.push_back(std::move(bucket));
  }
}

void Synchroniser::Impl::make_buffers(OuterBucket& bucket) {
  const at::Device device = state_device(bucket);
  const int64_t begin = options.shard_buffers() ? bucket.begin : 0;
  const int64_t end = options.shard_buffers() ? bucket.end : bucket.length();
  if (optimizer_->uses_outer() || sends_differences()) {
    bucket.outer = pack(bucket, parameters, {}, begin, end).to(device);
  }
  if (optimizer_->uses_momentum()) {
    bucket.momentum = at::zeros_like(bucket.outer);
  }
  if (sends_differences()) {
    bucket.error = at::zeros_like(own_outer(bucket));
  }
}

}  // namespace fairshard::outer
