#include <fairshard/nn/sharded_data_parallel.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
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

std::vector<const c10::TensorImpl*> addresses_of(const torch::nn::Module& module) {
  std::vector<const c10::TensorImpl*> result;
  for (const at::Tensor& parameter : module.parameters()) {
    result.push_back(parameter.unsafeGetTensorImpl());
  }
  return result;
}

bool has_any_of(const OssBase& optimizer, const std::vector<const c10::TensorImpl*>& parameters) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (std::find(parameters.begin(), parameters.end(), parameter.unsafeGetTensorImpl()) !=
          parameters.end()) {
        return true;
      }
    }
  }
  return false;
}

shard::EngineOptions engine_options(const DataParallelOptions& options) {
  const auto reduce_dtype = options.reduce_dtype().value_or(at::kFloat);
  TORCH_CHECK_VALUE(at::isFloatingType(reduce_dtype), "reduce_dtype is ", reduce_dtype,
                    ", but must be a floating-point type");
  return shard::EngineOptions()
      .shard_gradients(options.mode() == DataParallelMode::kGradients)
      .broadcast_buffers(options.broadcast_buffers())
      .sync_at_startup(options.sync_models_at_startup())
      .bucket_bytes(options.bucket_bytes())
      .static_graph(options.static_graph())
      .buckets_in_flight(options.buckets_in_flight())
      .reduce_dtype(options.reduce_dtype());
}

}  // namespace

DataParallelBase::DataParallelBase(const comm::Group& group,
                                   std::shared_ptr<torch::nn::Module> module,
                                   const std::vector<std::reference_wrapper<OssBase>>& optimizers,
                                   const DataParallelOptions& options)
    : module_(std::move(module)),
      options_(options),
      engine_(group, parameters_of(*module_), module_->buffers(), engine_options(options)),
      seen_parameters_(addresses_of(*module_)) {
  const bool is_replicated = options.mode() == DataParallelMode::kReplicated;
  TORCH_CHECK_VALUE(is_replicated == optimizers.empty(), "ShardedDataParallel: the mode is ",
                    is_replicated ? "replicated, which takes no OSS, but got "
                                  : "sharded, which needs at least one OSS, but got ",
                    optimizers.size());
  for (const OssBase& optimizer : optimizers) {
    TORCH_CHECK_VALUE(has_any_of(optimizer, seen_parameters_),
                      "ShardedDataParallel: an OSS that was given has none of the module's "
                      "parameters: is it that of another model?");
  }
  if (!is_replicated) {
    engine_.connect();
  }
}

void DataParallelBase::zero_grad(bool set_to_none) {
  module_->zero_grad(set_to_none);
  if (set_to_none) {
    engine_.clear_gradients();
  }
}

void DataParallelBase::join(const std::function<void()>& loop) {
  engine_.begin_join();
  bool has_failed = true;
  // A loop that an exception has ended does not follow the others: they get an error.
  try {
    loop();
    engine_.follow_others();
    has_failed = false;
  } catch (...) {
    engine_.end_join({}, has_failed);
    throw;
  }
  engine_.end_join(module_->buffers(), has_failed);
}

// Blocks. A Sequential has its children; other modules say by wait_for() and done_with() what is
// one.

size_t DataParallelBase::number_of(const torch::nn::Module& block) {
  auto found = block_numbers_.find(&block);
  if (found == block_numbers_.end()) {
    block_numbers_.clear();
    for (const auto& module : module_->modules(/*include_self=*/true)) {
      block_numbers_.emplace(module.get(), block_numbers_.size());
    }
    is_called_.resize(block_numbers_.size(), false);
    found = block_numbers_.find(&block);
    TORCH_CHECK_VALUE(found != block_numbers_.end(), "ShardedDataParallel: ", block.name(),
                      " is not a part of the model");
  }
  return found->second;
}

void DataParallelBase::tell_blocks() {
  const auto order = shard::agree_on_call_order(engine_.group(), is_called_.size(), called_);
  std::vector<std::vector<at::Tensor>> parameters(is_called_.size());
  for (const auto& [module, number] : block_numbers_) {
    parameters[number] = module->parameters();
  }
  engine_.blocks().set(parameters, order);
}

void DataParallelBase::wait_for(const torch::nn::Module& block) {
  if (!engine_.uses_blocks()) {
    return;
  }
  const size_t number = number_of(block);
  if (!is_called_[number]) {
    is_called_[number] = true;
    called_.push_back(number);
    engine_.blocks().wait_for(block.parameters());
  }
  engine_.blocks().before(number);
}

void DataParallelBase::done_with(const torch::nn::Module& block, torch::nn::AnyValue& output) {
  if (engine_.blocks().reshards()) {
    const auto* const tensor = output.try_get<at::Tensor>();
    TORCH_CHECK_TYPE(tensor, "release_parameters: ", block.name(),
                     " returns no tensor, which would tell when its backward begins");
    done_with(block, *tensor);
  }
}

void DataParallelBase::done_with(const torch::nn::Module& block, const at::Tensor& output) {
  if (engine_.blocks().reshards() && at::GradMode::is_enabled()) {
    is_done_with_any_ = true;
    engine_.blocks().after(number_of(block), {output});
  }
}

void DataParallelBase::before_forward() {
  auto parameters = addresses_of(*module_);
  if (parameters != seen_parameters_) {
    seen_parameters_ = std::move(parameters);
    engine_.set_parameters(parameters_of(*module_));
  }
  engine_.before_forward(module_->is_training());
}

void DataParallelBase::after_forward() {
  const bool is_learning = module_->is_training() && at::GradMode::is_enabled();
  if (is_learning && engine_.wants_blocks() && !called_.empty()) {
    tell_blocks();
  }
  engine_.after_forward(module_->buffers(), is_done_with_any_);
}

}  // namespace fairshard
