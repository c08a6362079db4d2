#include <fairshard/comm/broadcast_all.h>
#include <fairshard/nn/sharded_data_parallel.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace fairshard {
namespace {

std::vector<shard::Parameter> parameters_of(const torch::nn::Module& module) {
  std::vector<shard::Parameter> result;
  for (const auto& item : module.named_parameters()) {
    result.push_back({item.key(), item.value()});
  }
  return result;
}

/// A trainable parameter that no optimizer has would silently stay as it is, with unreduced
/// gradients.
void check_all_owned(const torch::nn::Module& module,
                     const std::vector<std::shared_ptr<shard::FlatParameters>>& parts) {
  std::unordered_set<const c10::TensorImpl*> owned;
  for (const auto& part : parts) {
    for (const auto& parameter : part->parameters()) {
      owned.insert(parameter.tensor.unsafeGetTensorImpl());
    }
  }
  for (const auto& item : module.named_parameters()) {
    TORCH_CHECK_VALUE(!item.value().requires_grad() || item.value().numel() == 0 ||
                          owned.count(item.value().unsafeGetTensorImpl()) > 0,
                      "parameter '", item.key(),
                      "' requires a gradient, but no sharded optimizer has it: give it to "
                      "an OSS, or freeze it with requires_grad_(false)");
  }
}

std::vector<std::shared_ptr<shard::ReleasedValues>> released_of(
    const std::vector<std::shared_ptr<shard::FlatParameters>>& parts) {
  std::vector<std::shared_ptr<shard::ReleasedValues>> result;
  for (const auto& part : parts) {
    if (part->released()) {
      result.push_back(part->released());
    }
  }
  return result;
}

/// Has a block's values in place, before its forward or its backward.
void bring_block(const std::vector<std::shared_ptr<shard::ReleasedValues>>& released,
                 size_t block) {
  for (const auto& values : released) {
    values->start_block(block);
  }
  for (const auto& values : released) {
    values->wait_for_block(block);
  }
}

}  // namespace

DataParallelBase::DataParallelBase(comm::Group group, std::shared_ptr<torch::nn::Module> module,
                                   const std::vector<std::reference_wrapper<OssBase>>& optimizers,
                                   const DataParallelOptions& options)
    : group_(std::move(group)),
      module_(std::move(module)),
      optimizers_(optimizers),
      options_(options) {
  const bool is_replicated = options.mode() == DataParallelMode::kReplicated;
  TORCH_CHECK_VALUE(is_replicated == optimizers.empty(), "ShardedDataParallel: the mode is ",
                    is_replicated ? "replicated, which takes no OSS, but got "
                                  : "sharded, which needs at least one OSS, but got ",
                    optimizers.size());
  if (is_replicated) {
    const auto plan = shard::PlanOptions().bucket_bytes(options.bucket_bytes());
    parts_.push_back(std::make_shared<shard::FlatParameters>(group_, parameters_of(*module_),
                                                             shard::FlatOptions().plan(plan)));
  }
  find_parts();
  if (options.sync_models_at_startup()) {
    for (const auto& part : parts_) {
      part->broadcast(0);
    }
    sync_buffers(0);
  }
}

/// Takes up what the optimizers have, and what they got since the last time.
void DataParallelBase::find_parts() {
  std::vector<std::shared_ptr<shard::FlatParameters>> parts;
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    OssBase& optimizer = optimizers_[i];
    optimizer.number_ = static_cast<int>(i);
    parts.insert(parts.end(), optimizer.parts().begin(), optimizer.parts().end());
    if (optimizer.has_state()) {
      for (const auto& part : optimizer.parts()) {
        part->settle();
      }
    }
  }
  if (optimizers_.empty()) {
    parts = parts_;
    take_new_parameters(parts);
  }
  if (reducer_ && parts == parts_) {
    return;
  }
  check_all_owned(*module_, parts);
  parts_ = std::move(parts);
  released_ = released_of(parts_);
  blocks_told_ = 0;
  for (const auto& part : parts_) {
    for (size_t i = 0; i < part->parameters().size(); ++i) {
      places_[part->parameters()[i].tensor.unsafeGetTensorImpl()] = {part.get(), i};
    }
  }
  const bool is_sharded = options_.mode() == DataParallelMode::kGradients;
  const bool is_sync = !reducer_ || reducer_->sync();
  reducer_ = std::make_unique<shard::GradReducer>(
      parts_,
      shard::ReducerOptions()
          .mode(is_sharded ? shard::GradientMode::kSharded : shard::GradientMode::kReplicated)
          .buckets_in_flight(options_.buckets_in_flight())
          .wire_dtype(options_.reduce_dtype()));
  reducer_->set_sync(is_sync);
  if (!buffer_group_ && !module_->buffers().empty() && overlaps_gather()) {
    buffer_group_ = group_.duplicate();
  }
}

bool DataParallelBase::overlaps_gather() const {
  return std::any_of(optimizers_.begin(), optimizers_.end(),
                     [](const OssBase& optimizer) { return optimizer.options_.overlap_gather(); });
}

/// In the replicated mode nobody else tells of parameters that the module got since.
void DataParallelBase::take_new_parameters(
    std::vector<std::shared_ptr<shard::FlatParameters>>& parts) {
  const size_t count = module_->parameters().size();
  if (count == std::exchange(parameters_seen_, count) || !reducer_) {
    return;
  }
  std::vector<shard::Parameter> added;
  for (const auto& parameter : parameters_of(*module_)) {
    if (places_.count(parameter.tensor.unsafeGetTensorImpl()) == 0 &&
        parameter.tensor.is_floating_point() && parameter.tensor.numel() > 0) {
      added.push_back(parameter);
    }
  }
  if (!added.empty()) {
    parts.push_back(std::make_shared<shard::FlatParameters>(
        group_, added,
        shard::FlatOptions().plan(shard::PlanOptions().bucket_bytes(options_.bucket_bytes()))));
  }
}

void DataParallelBase::zero_grad(bool set_to_none) {
  module_->zero_grad(set_to_none);
  for (const auto& part : parts_) {
    part->gradients().clear();
  }
}

void DataParallelBase::reduce() { reducer_->reduce(); }

/// Tells what each of the blocks that forwards have waited for uses.
void DataParallelBase::tell_blocks() {
  blocks_told_ = blocks_.size();
  for (const auto& part : parts_) {
    if (!part->released()) {
      continue;
    }
    std::vector<std::vector<size_t>> uses(blocks_.size());
    for (size_t i = 0; i < blocks_.size(); ++i) {
      for (const auto& parameter : blocks_[i]->parameters()) {
        const auto found = places_.find(parameter.unsafeGetTensorImpl());
        if (found != places_.end() && found->second.part == part.get()) {
          uses[i].push_back(found->second.number);
        }
      }
    }
    part->released()->set_blocks(std::move(uses));
  }
}

void DataParallelBase::done_with(const torch::nn::Module& block, torch::nn::AnyValue& output) {
  if (!released_.empty()) {
    const auto* const tensor = output.try_get<at::Tensor>();
    TORCH_CHECK_TYPE(tensor, "release_parameters: ", block.name(),
                     " returns no tensor, which would tell when its backward begins");
    done_with(block, *tensor);
  }
}

void DataParallelBase::done_with(const torch::nn::Module& block, const at::Tensor& output) {
  const auto found = block_numbers_.find(&block);
  if (found == block_numbers_.end() || !at::GradMode::is_enabled()) {
    return;
  }
  is_done_with_any_ = true;
  const size_t number = found->second;
  if (output.grad_fn()) {
    output.register_hook(
        [parts = parts_, number](const at::Tensor&) { bring_block(released_of(parts), number); });
  }
  for (const auto& values : released_) {
    values->after_block(number);
  }
}

void DataParallelBase::wait_for(const torch::nn::Module& block) {
  if (!released_.empty()) {
    const auto [place, is_new] = block_numbers_.try_emplace(&block, blocks_.size());
    if (is_new) {
      blocks_.push_back(&block);
    }
    bring_block(released_, place->second);
  }
  for (const auto& parameter : block.parameters()) {
    of_blocks_.insert(parameter.unsafeGetTensorImpl());
    wait_for_value_of(parameter);
  }
}

void DataParallelBase::wait_for_value_of(const at::Tensor& parameter) {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  if (found != places_.end()) {
    found->second.part->wait_for_value(found->second.number);
  }
}

/// Forward will wait for the others block by block.
void DataParallelBase::wait_for_what_is_in_no_block() {
  for (const auto& parameter : module_->parameters()) {
    if (of_blocks_.count(parameter.unsafeGetTensorImpl()) == 0) {
      wait_for_value_of(parameter);
    }
  }
}

void DataParallelBase::before_forward() {
  if (options_.waits_by_block()) {
    wait_for_what_is_in_no_block();
  }
  for (const auto& values : released_) {
    values->begin_forward(module_->is_training());
  }
  find_parts();
  if (blocks_told_ < blocks_.size()) {
    tell_blocks();
  }
  reducer_->prepare();
  if (options_.broadcast_buffers() && module_->is_training() && reducer_->sync() &&
      !module_->buffers().empty()) {
    const auto& join = parts_[0]->join;
    sync_buffers(join ? join->announce(shard::Join::Action::kForward).leader : 0);
  }
}

void DataParallelBase::after_forward() {
  if (blocks_told_ == 0 && is_done_with_any_) {
    tell_blocks();
  }
  for (const auto& values : released_) {
    values->end_forward(is_done_with_any_);
  }
}

void DataParallelBase::sync_buffers(int root) {
  comm::broadcast_all(buffer_group_.value_or(group_), module_->buffers(), root, "buffers");
}

DataParallelBase::Join::Join(DataParallelBase& owner)
    : owner_(owner), exceptions_(std::uncaught_exceptions()) {
  owner_.find_parts();
  const auto join = std::make_shared<shard::Join>(owner_.group_);
  for (const auto& part : owner_.parts_) {
    part->join = join;
  }
}

DataParallelBase::Join::~Join() noexcept(false) {
  // A loop that an exception has ended does not follow the others: they get an error.
  const bool is_unwinding = std::uncaught_exceptions() > exceptions_;
  while (!is_unwinding && owner_.follow_others()) {
  }
  const int leader = owner_.parts_[0]->join->last().leader;
  for (const auto& part : owner_.parts_) {
    part->join.reset();
  }
  if (!is_unwinding && leader >= 0) {
    owner_.sync_buffers(leader);
    if (owner_.optimizers_.empty()) {
      owner_.parts_[0]->broadcast(leader);  // ranks that joined early have not stepped since
    }
  }
}

/// Does this rank's share of what the others do next. Returns whether there was anything.
bool DataParallelBase::follow_others() {
  using Action = shard::Join::Action;
  const auto said = parts_[0]->join->follow();
  const auto optimizer = [&]() -> OssBase& {
    return optimizers_.at(static_cast<size_t>(said.details[0]));
  };
  switch (said.action) {
    case Action::kNothing:
      return false;
    case Action::kForward:
      sync_buffers(said.leader);
      break;
    case Action::kReduce:
      reducer_->reduce();
      break;
    case Action::kClip:
      optimizer().clip_grad_norm(said.details[1], said.details[2]);
      break;
    case Action::kStep:
      optimizer().step();
      break;
  }
  return true;
}

}  // namespace fairshard
