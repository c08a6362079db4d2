#include "weak_registry.h"
#include <fairshard/comm/broadcast_all.h>
#include <fairshard/comm/collectives.h>
#include <fairshard/shard/agree.h>
#include <fairshard/shard/data_parallel_engine.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace fairshard::shard {
namespace {

/// Which parameters are in flat groups of no ShardedStep.
WeakRegistry<c10::TensorImpl, FlatGroup>& replicated() {
  static WeakRegistry<c10::TensorImpl, FlatGroup> groups;
  return groups;
}

bool is_trained(const Parameter& parameter) {
  return parameter.tensor.requires_grad() && parameter.tensor.numel() > 0;
}

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

/// Those of the last forward. Note [Buffers]: they are made alike when a backward ends, so that the
/// next forward has rank 0's, in training and in an evaluation, which then needs no collective.
struct DataParallelEngine::Buffers {
  comm::Group group;
  std::vector<at::Tensor> tensors;

  void broadcast(int root) const {
    if (!tensors.empty()) {
      comm::broadcast_all(group, tensors, root, "buffers");
    }
  }
};

DataParallelEngine::DataParallelEngine(comm::Group group, std::vector<Parameter> parameters,
                                       const std::vector<at::Tensor>& buffers,
                                       const EngineOptions& options)
    : group_(std::move(group)),
      options_(options),
      parameters_(std::move(parameters)),
      buffers_(std::make_shared<Buffers>(
          Buffers{group_, options.broadcast_buffers() ? buffers : std::vector<at::Tensor>()})) {
  TORCH_CHECK_VALUE(!parameters_.empty(), "the model has no parameters to train");
  check_same_parameters(group_, parameters_);
  if (options.sync_at_startup()) {
    std::vector<at::Tensor> all = buffers;
    for (const Parameter& parameter : parameters_) {
      all.push_back(parameter.tensor);
    }
    comm::broadcast_all(group_, all, 0, "model");
  }
}

DataParallelEngine::~DataParallelEngine() = default;

// Which flat groups the parameters are in.

void DataParallelEngine::set_parameters(std::vector<Parameter> parameters) {
  parameters_ = std::move(parameters);
  are_parameters_new_ = true;
  knows_blocks_ = false;
}

bool DataParallelEngine::is_current() const {
  return reducer_ && !are_parameters_new_ && registry_version_ == ShardedStep::registry_version();
}

std::vector<std::shared_ptr<ShardedStep>> DataParallelEngine::find_steps() const {
  std::vector<std::shared_ptr<ShardedStep>> steps;
  for (const Parameter& parameter : parameters_) {
    auto step = ShardedStep::of(parameter.tensor);
    if (step && std::find(steps.begin(), steps.end(), step) == steps.end()) {
      steps.push_back(std::move(step));
    }
  }
  return steps;
}

/// A trainable parameter that no optimizer has would silently stay as it is, with unreduced
/// gradients.
void DataParallelEngine::check_all_owned() const {
  for (const Parameter& parameter : parameters_) {
    TORCH_CHECK(
        !is_trained(parameter) || ShardedStep::of(parameter.tensor), "parameter '", parameter.name,
        "' requires a gradient, but is in no OSS (no sharded optimizer has it): give it to one "
        "or freeze it");
  }
}

/// Flat groups of parameters that no ShardedStep has: those that other models have made for shared
/// parameters, and one of this model's own for the rest.
std::vector<std::shared_ptr<FlatGroup>> DataParallelEngine::replicated_groups() {
  if (is_replicated_ && !are_parameters_new_) {
    return flat_groups_;
  }
  if (are_parameters_new_) {
    check_same_parameters(group_, parameters_);
    reducer_.reset();
    flat_groups_.clear();  // so that they are found no more, unless another model has them
  }
  std::vector<std::shared_ptr<FlatGroup>> groups;
  std::vector<Parameter> rest;
  for (const Parameter& parameter : parameters_) {
    auto found = replicated().find(parameter.tensor.unsafeGetTensorImpl());
    if (!found) {
      rest.push_back(parameter);
    } else if (std::find(groups.begin(), groups.end(), found) == groups.end()) {
      groups.push_back(std::move(found));
    }
  }
  if (!rest.empty()) {
    groups.push_back(std::make_shared<FlatGroup>(
        group_, rest, FlatOptions().layout(LayoutOptions().bucket_bytes(options_.bucket_bytes()))));
    for (const Parameter& parameter : groups.back()->parameters()) {
      replicated().add(parameter.tensor.unsafeGetTensorImpl(), groups.back());
    }
  }
  return groups;
}

/// Those that have any of this model's parameters.
std::vector<std::shared_ptr<FlatGroup>> DataParallelEngine::groups_of(
    const std::vector<std::shared_ptr<ShardedStep>>& steps) const {
  std::set<const c10::TensorImpl*> ours;
  for (const Parameter& parameter : parameters_) {
    ours.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  std::vector<std::shared_ptr<FlatGroup>> groups;
  for (const auto& step : steps) {
    step->check_has_parameters();
    for (const auto& group : step->flat_groups()) {
      const auto& members = group->parameters();
      if (std::any_of(members.begin(), members.end(), [&](const Parameter& member) {
            return ours.count(member.tensor.unsafeGetTensorImpl()) > 0;
          })) {
        groups.push_back(group);
      }
    }
  }
  return groups;
}

void DataParallelEngine::connect() {
  if (is_current()) {
    return;
  }
  if (std::any_of(steps_.begin(), steps_.end(), [](const auto& step) { return step.expired(); })) {
    // An OSS that is gone may have left parameters on their way.
    for (const auto& group : flat_groups_) {
      group->wait_for_values();
    }
  }
  const auto registry_version = ShardedStep::registry_version();
  const auto steps = find_steps();
  if (!steps.empty()) {
    check_all_owned();
  }
  auto groups = steps.empty() ? replicated_groups() : groups_of(steps);
  is_replicated_ = steps.empty();
  if (groups != flat_groups_ || !reducer_) {
    flat_groups_ = std::move(groups);
    make_reducer(steps);
  }
  registry_version_ = registry_version;
  are_parameters_new_ = false;
}

void DataParallelEngine::make_reducer(const std::vector<std::shared_ptr<ShardedStep>>& steps) {
  steps_.assign(steps.begin(), steps.end());
  places_.clear();
  knows_blocks_ = false;
  buckets_of_block_.clear();
  buckets_of_no_block_.clear();
  std::vector<ReducedGroup> groups;
  for (size_t g = 0; g < flat_groups_.size(); ++g) {
    const auto& members = flat_groups_[g]->parameters();
    for (size_t i = 0; i < members.size(); ++i) {
      places_[members[i].tensor.unsafeGetTensorImpl()] = {g, i};
    }
    groups.push_back({flat_groups_[g], ShardedStep::of(members[0].tensor)});
  }
  for (const Parameter& parameter : parameters_) {
    // Errors name parameters as the model does.
    const auto found = places_.find(parameter.tensor.unsafeGetTensorImpl());
    if (found != places_.end()) {
      flat_groups_[found->second.group]->rename(found->second.number, parameter.name);
    }
  }
  const bool is_sharded = !steps.empty() && options_.shard_gradients();
  reducer_ = std::make_unique<GradReducer>(
      std::move(groups), ReducerOptions()
                             .mode(is_sharded ? GradientMode::kSharded : GradientMode::kReplicated)
                             .buckets_in_flight(options_.buckets_in_flight())
                             .wire_dtype(options_.reduce_dtype())
                             .after_reduction([weak = std::weak_ptr(buffers_)] {
                               if (const auto buffers = weak.lock()) {
                                 buffers->broadcast(0);
                               }
                             }));
  set_sync(is_sync_);
}

// A forward.

void DataParallelEngine::before_forward(bool is_training) {
  const bool is_learning = is_training && at::GradMode::is_enabled();
  if (is_learning) {
    connect();
  } else if (!is_current()) {
    wait_for_parameters();
    return;
  }
  for (const auto& group : flat_groups_) {
    if (group->schedule()) {
      TORCH_CHECK(!join_, "release_parameters cannot be used within join()");
      group->schedule()->begin_forward(is_training, knows_blocks_);
      if (is_learning && group->options().step_in_backward() && group->has_masters()) {
        group->update_masters();
      }
    }
  }
  if (is_learning) {
    set_sync(is_sync_);  // a model that shares parameters may have been within no_sync()
    reducer_->prepare();
  }
  if (!is_learning || !knows_blocks_) {
    wait_for_parameters();
  }
  index_blocks();
  for (const Place& bucket : buckets_of_no_block_) {
    wait_for_bucket(bucket);
  }
  if (is_learning && join_ && is_sync_ && !buffers_->tensors.empty()) {
    // Those of the first rank that still has inputs.
    buffers_->broadcast(join_->announce(Join::Action::kForward).leader);
  }
}

void DataParallelEngine::after_forward(std::vector<at::Tensor> buffers, bool do_reshard) {
  for (const auto& group : flat_groups_) {
    if (group->schedule()) {
      group->schedule()->end_forward(do_reshard);
    }
  }
  if (options_.broadcast_buffers() && at::GradMode::is_enabled()) {
    buffers_->tensors = std::move(buffers);
  }
}

// Blocks.

bool DataParallelEngine::uses_blocks() const {
  return reshards() || std::any_of(steps_.begin(), steps_.end(), [](const auto& weak) {
           const auto step = weak.lock();
           return step && step->options().overlap_gather();
         });
}

bool DataParallelEngine::reshards() const {
  return std::any_of(flat_groups_.begin(), flat_groups_.end(),
                     [](const auto& group) { return group->schedule() != nullptr; });
}

std::vector<size_t> DataParallelEngine::agree_on_call_order(
    size_t count, const std::vector<size_t>& called) const {
  // Rank 0's positions from 1 on, and whether any rank calls a block.
  const at::Tensor words = at::zeros({2, static_cast<int64_t>(count)}, at::kLong);
  auto* const positions = words.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < called.size(); ++i) {
    positions[called[i]] = group_.rank() == 0 ? static_cast<int64_t>(i) + 1 : 0;
    positions[count + called[i]] = 1;
  }
  comm::all_reduce(group_, words, comm::ReduceOp::kMax, "order of blocks").wait();
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

void DataParallelEngine::set_blocks(const std::vector<std::vector<at::Tensor>>& blocks,
                                    const std::vector<size_t>& order) {
  std::vector<std::vector<std::vector<size_t>>> uses(
      flat_groups_.size(), std::vector<std::vector<size_t>>(blocks.size()));
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
  for (size_t g = 0; g < flat_groups_.size(); ++g) {
    if (flat_groups_[g]->schedule()) {
      flat_groups_[g]->schedule()->set_blocks(std::move(uses[g]), order);
    }
  }
  knows_blocks_ = true;
  indexed_version_ = -1;
}

/// Finds the buckets of blocks, again if a layout has changed.
void DataParallelEngine::index_blocks() {
  int version = 0;
  for (const auto& group : flat_groups_) {
    version += group->layout_version();
  }
  if (!knows_blocks_ || std::exchange(indexed_version_, version) == version) {
    return;
  }
  const auto buckets_of = [&](const std::vector<Place>& parameters) {
    std::set<std::pair<size_t, size_t>> buckets;
    for (const auto& [group, number] : parameters) {
      buckets.emplace(group, flat_groups_[group]->layout().bucket_of(number));
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

void DataParallelEngine::before_block(size_t block) {
  unshard_block(flat_groups_, block);
  if (block < buckets_of_block_.size()) {
    for (const Place& bucket : buckets_of_block_[block]) {
      wait_for_bucket(bucket);
    }
  }
}

void DataParallelEngine::after_block(size_t block, const std::vector<at::Tensor>& outputs) {
  if (!at::GradMode::is_enabled()) {
    return;
  }
  for (const at::Tensor& output : outputs) {
    if (output.grad_fn()) {
      output.register_hook(
          [groups = flat_groups_, block](const at::Tensor&) { unshard_block(groups, block); });
    }
  }
  for (const auto& group : flat_groups_) {
    if (group->schedule()) {
      group->schedule()->after_block(block);
    }
  }
}

void DataParallelEngine::wait_for(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    const auto found = places_.find(parameter.unsafeGetTensorImpl());
    if (found != places_.end()) {
      const auto& [group, number] = found->second;
      flat_groups_[group]->wait_for_bucket(flat_groups_[group]->layout().bucket_of(number));
    }
  }
}

void DataParallelEngine::wait_for_parameters() {
  if (!is_current()) {  // what no training forward has found yet may have been stepped before one
    for (const auto& step : find_steps()) {
      step->wait_for_parameters();
    }
  }
  for (const auto& group : flat_groups_) {
    group->wait_for_values();
  }
}

// Gradients.

void DataParallelEngine::set_sync(bool is_on) {
  is_sync_ = is_on;
  if (reducer_) {
    reducer_->set_sync(is_on && options_.reduce_in_backward());
  }
}

void DataParallelEngine::reduce() {
  connect();
  reducer_->reduce();
}

void DataParallelEngine::clear_gradients() {
  for (const auto& group : flat_groups_) {
    group->gradients().clear();
  }
}

void DataParallelEngine::broadcast_buffers(const std::vector<at::Tensor>& buffers, int root) const {
  comm::broadcast_all(group_, buffers, root, "buffers");
}

// Ranks that run out of inputs.

void DataParallelEngine::begin_join() {
  connect();
  join_ = std::make_shared<Join>(group_);
  reducer_->set_join(join_);
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (const auto step = steps_[i].lock()) {
      step->set_join(join_, static_cast<int>(i));
    }
  }
}

void DataParallelEngine::follow_others() {
  while (follow_next()) {
  }
}

/// Does this rank's share of what the others do next. Returns whether there was anything.
bool DataParallelEngine::follow_next() {
  const auto said = join_->follow();
  if (said.action == Join::Action::kNothing) {
    return false;
  }
  if (said.action == Join::Action::kForward) {
    buffers_->broadcast(said.leader);
    return true;
  }
  if (said.action == Join::Action::kReduce) {
    reducer_->reduce();
    return true;
  }
  const auto step = steps_.at(static_cast<size_t>(said.details[0])).lock();
  TORCH_CHECK(step, "join(): other ranks step an OSS that is gone on this one");
  step->follow(said);
  return true;
}

void DataParallelEngine::end_join(const std::vector<at::Tensor>& buffers, bool has_failed) {
  const int leader = join_->last().leader;
  join_.reset();
  reducer_->set_join(nullptr);
  for (const auto& weak : steps_) {
    if (const auto step = weak.lock()) {
      step->set_join(nullptr, 0);
    }
  }
  if (!has_failed && leader >= 0) {
    broadcast_buffers(buffers, leader);
    if (is_replicated_) {
      for (const auto& group : flat_groups_) {
        group->broadcast(leader);  // ranks that joined early have not stepped since
      }
    }
  }
}

}  // namespace fairshard::shard
