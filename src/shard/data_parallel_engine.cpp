#include "weak_registry.h"
#include <fairshard/comm/broadcast_all.h>
#include <fairshard/comm/collectives.h>
#include <fairshard/shard/agree.h>
#include <fairshard/shard/data_parallel_engine.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
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
  check_same_parameters(group_, parameters_,
                        options.static_graph() ? "a static_graph" : "no static_graph");
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
  blocks_.forget();
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
  blocks_.set_groups(flat_groups_);
  std::vector<ReducedGroup> groups;
  groups.reserve(flat_groups_.size());
  for (const auto& group : flat_groups_) {
    groups.push_back({group, ShardedStep::of(group->parameters()[0].tensor)});
  }
  for (const Parameter& parameter : parameters_) {
    blocks_.rename(parameter);
  }
  const bool is_sharded = !steps.empty() && options_.shard_gradients();
  reducer_ = std::make_unique<GradReducer>(
      std::move(groups), ReducerOptions()
                             .mode(is_sharded ? GradientMode::kSharded : GradientMode::kReplicated)
                             .static_graph(options_.static_graph())
                             .buckets_in_flight(options_.buckets_in_flight())
                             .wire_dtype(options_.reduce_dtype())
                             .comm_hook(comm_hook_)
                             .after_reduction([weak = std::weak_ptr(buffers_)] {
                               if (const auto buffers = weak.lock()) {
                                 buffers->broadcast(0);
                               }
                             }));
  set_sync(is_sync_);
}

// A forward.

void DataParallelEngine::before_forward(bool is_training) {
  // Also with modules in evaluation mode (frozen statistics, no dropout) a backward may follow.
  const bool is_learning = at::GradMode::is_enabled();
  if (is_learning) {
    connect();
  } else if (!is_current()) {
    wait_for_parameters();
    return;
  }
  for (const auto& group : flat_groups_) {
    if (group->schedule()) {
      group->schedule()->begin_forward(is_training, blocks_.are_known());
      if (is_learning && group->options().step_in_backward() && group->has_masters()) {
        group->update_masters();
      }
    }
  }
  if (is_learning) {
    set_sync(is_sync_);  // a model that shares parameters may have been within no_sync()
    reducer_->prepare();
  }
  if (!is_learning || !is_training || !blocks_.are_known()) {
    wait_for_parameters();
  }
  blocks_.wait_for_rest();
  if (is_learning && is_training && join_ && is_sync_ && !buffers_->tensors.empty()) {
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
  return blocks_.reshards() || std::any_of(steps_.begin(), steps_.end(), [](const auto& weak) {
           const auto step = weak.lock();
           return step && step->options().overlap_gather();
         });
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

void DataParallelEngine::set_comm_hook(std::shared_ptr<c10d::CommHookInterface> hook) {
  TORCH_CHECK(!comm_hook_, "a communication hook is registered already: there can be one only");
  comm_hook_ = std::move(hook);
  try {
    if (reducer_ || !find_steps().empty()) {
      reducer_.reset();
      connect();
    }
  } catch (...) {
    comm_hook_.reset();
    throw;
  }
}

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
  // At once, and not in the first forward or backward, which a rank without inputs does not have.
  TORCH_CHECK(!blocks_.reshards(), "release_parameters cannot be used within join()");
  TORCH_CHECK(!options_.static_graph(),
              "static_graph cannot be used within join(), where a rank "
              "without inputs uses no parameters");
  for (const auto& group : flat_groups_) {
    TORCH_CHECK(!group->options().step_in_backward(),
                "step_in_backward cannot be used within join()");
  }
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
