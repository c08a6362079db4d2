#include <fairshard/comm/collectives.h>
#include <fairshard/shard/model_blocks.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <utility>

namespace fairshard::shard {
namespace {

/// Has a block's values in place, before its forward or its backward.
void unshard_block(const std::vector<std::shared_ptr<FlatGroup>>& groups, size_t block) {
  for (const auto& group : groups) {
    if (group->schedule()) {
      group->schedule()->start_block(block);
    }
  }
  for (const auto& group : groups) {
    if (group->schedule()) {
      group->schedule()->wait_for_block(block);
    }
  }
}

}  // namespace

std::vector<size_t> agree_on_call_order(const comm::Group& group, size_t count,
                                        const std::vector<size_t>& called) {
  // Rank 0's positions from 1 on, and whether any rank calls a block.
  const at::Tensor words = at::zeros({2, static_cast<int64_t>(count)}, at::kLong);
  auto* const positions = words.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < called.size(); ++i) {
    positions[called[i]] = group.rank() == 0 ? static_cast<int64_t>(i) + 1 : 0;
    positions[count + called[i]] = 1;
  }
  comm::all_reduce(group, words, comm::ReduceOp::kMax, "order of blocks").wait();
  std::vector<size_t> order;
  for (size_t i = 0; i < count; ++i) {
    if (positions[count + i] != 0) {
      order.push_back(i);
    }
  }
  // What rank 0 does not call comes last.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) { return positions[i] == 0 ? INT64_MAX : positions[i]; };
    return key(a) < key(b);
  });
  return order;
}

void ModelBlocks::set_groups(std::vector<std::shared_ptr<FlatGroup>> groups) {
  groups_ = std::move(groups);
  places_.clear();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& members = groups_[g]->parameters();
    for (size_t i = 0; i < members.size(); ++i) {
      places_[members[i].tensor.unsafeGetTensorImpl()] = {g, i};
    }
  }
  buckets_of_block_.clear();
  buckets_of_no_block_.clear();
  forget();
}

void ModelBlocks::rename(const Parameter& parameter) {
  const auto found = places_.find(parameter.tensor.unsafeGetTensorImpl());
  if (found != places_.end()) {
    groups_[found->second.group]->rename(found->second.number, parameter.name);
  }
}

bool ModelBlocks::reshards() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->schedule() != nullptr; });
}

void ModelBlocks::set(const std::vector<std::vector<at::Tensor>>& blocks,
                      const std::vector<size_t>& order) {
  std::vector<std::vector<std::vector<size_t>>> uses(
      groups_.size(), std::vector<std::vector<size_t>>(blocks.size()));
  std::unordered_map<const c10::TensorImpl*, Place> unused = places_;
  blocks_.assign(blocks.size(), {});
  for (const size_t block : order) {
    for (const at::Tensor& parameter : blocks[block]) {
      const auto found = places_.find(parameter.unsafeGetTensorImpl());
      if (found != places_.end()) {
        blocks_[block].push_back(found->second);
        uses[found->second.group][block].push_back(found->second.number);
        unused.erase(found->first);
      }
    }
  }
  no_block_.clear();
  for (const auto& [parameter, place] : unused) {
    no_block_.push_back(place);
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g]->schedule()) {
      groups_[g]->schedule()->set_blocks(std::move(uses[g]), order);
    }
  }
  are_known_ = true;
  indexed_version_ = -1;
}

/// Finds the buckets of blocks, again if a layout has changed.
void ModelBlocks::index() {
  int version = 0;
  for (const auto& group : groups_) {
    version += group->layout_version();
  }
  if (!are_known_ || std::exchange(indexed_version_, version) == version) {
    return;
  }
  const auto buckets_of = [&](const std::vector<Place>& parameters) {
    std::set<std::pair<size_t, size_t>> buckets;
    for (const auto& [group, number] : parameters) {
      buckets.emplace(group, groups_[group]->layout().bucket_of(number));
    }
    std::vector<Place> result;
    // The last buckets were started first.
    std::transform(buckets.rbegin(), buckets.rend(), std::back_inserter(result),
                   [](const auto& bucket) { return Place{bucket.first, bucket.second}; });
    return result;
  };
  buckets_of_block_.clear();
  std::transform(blocks_.begin(), blocks_.end(), std::back_inserter(buckets_of_block_), buckets_of);
  buckets_of_no_block_ = buckets_of(no_block_);
}

void ModelBlocks::wait_for_rest() {
  index();
  for (const Place& bucket : buckets_of_no_block_) {
    groups_[bucket.group]->wait_for_bucket(bucket.number);
  }
}

void ModelBlocks::before(size_t block) {
  unshard_block(groups_, block);
  if (block < buckets_of_block_.size()) {
    for (const Place& bucket : buckets_of_block_[block]) {
      groups_[bucket.group]->wait_for_bucket(bucket.number);
    }
  }
}

void ModelBlocks::after(size_t block, const std::vector<at::Tensor>& outputs) {
  if (!at::GradMode::is_enabled()) {
    return;
  }
  for (const at::Tensor& output : outputs) {
    if (output.grad_fn()) {
      output.register_hook(
          [groups = groups_, block](const at::Tensor&) { unshard_block(groups, block); });
    }
  }
  for (const auto& group : groups_) {
    if (group->schedule()) {
      group->schedule()->after_block(block);
    }
  }
}

void ModelBlocks::wait_for(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    const auto found = places_.find(parameter.unsafeGetTensorImpl());
    if (found != places_.end()) {
      const auto& [group, number] = found->second;
      groups_[group]->wait_for_bucket(groups_[group]->layout().bucket_of(number));
    }
  }
}

}  // namespace fairshard::shard
