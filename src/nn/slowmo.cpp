#include <fairshard/comm/broadcast_all.h>
#include <fairshard/nn/slowmo.h>
#include <fairshard/optim/fused.h>

#include <c10/util/Exception.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace fairshard {
namespace {

/// After so many forwards in training without perform_slowmo() somebody has forgotten it.
constexpr int kForgottenAfter = 100;

std::vector<shard::Parameter> named_parameters(const torch::nn::Module& module) {
  std::vector<shard::Parameter> result;
  for (const auto& item : module.named_parameters()) {
    result.push_back({item.key(), item.value()});
  }
  return result;
}

void zero_if_defined(const at::Tensor& tensor) {
  if (tensor.defined()) {
    tensor.zero_();
  }
}

template <typename AdamState>
bool zero_adam_state(torch::optim::OptimizerParamState& state) {
  auto* const adam = dynamic_cast<AdamState*>(&state);
  if (adam) {
    adam->step(0);
    zero_if_defined(adam->exp_avg());
    zero_if_defined(adam->exp_avg_sq());
    zero_if_defined(adam->max_exp_avg_sq());
  }
  return adam;
}

void zero_state(torch::optim::OptimizerParamState& state, bool zeroes_momentum, bool zeroes_adam) {
  if (auto* const sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) {
    if (zeroes_momentum) {
      zero_if_defined(sgd->momentum_buffer());
    }
  } else if (auto* const fused = dynamic_cast<FusedState*>(&state)) {
    const bool is_adam = fused->square_average.defined();
    if (is_adam ? zeroes_adam : zeroes_momentum) {
      for (const auto& tensor :
           {fused->step, fused->average, fused->square_average, fused->largest_square_average}) {
        zero_if_defined(tensor);
      }
    }
  } else if (zeroes_adam) {
    zero_adam_state<torch::optim::AdamParamState>(state) ||
        zero_adam_state<torch::optim::AdamWParamState>(state);
  }
}

}  // namespace

SlowMoBase::SlowMoBase(const comm::Group& world, std::shared_ptr<torch::nn::Module> module,
                       int ranks_per_node, const SlowMoOptions& options)
    : SlowMoBase(world, outer::Nodes(world, ranks_per_node), std::move(module), options) {}

SlowMoBase::SlowMoBase(comm::Group world, const outer::Nodes& nodes,
                       std::shared_ptr<torch::nn::Module> module, const SlowMoOptions& options)
    : DataParallelBase(nodes.inside(), module, {},
                       DataParallelOptions()
                           .mode(DataParallelMode::kReplicated)
                           .broadcast_buffers(options.broadcast_buffers())
                           .sync_models_at_startup(false)
                           .bucket_bytes(options.bucket_bytes())
                           .reduce_dtype(options.reduce_dtype())),
      world_(std::move(world)),
      wrapped_(std::move(module)),
      slowmo_options_(options) {
  if (!options.auto_momentum() && world_.rank() == 0) {
    const std::string advice = outer::momentum_advice(options.outer(), nodes.count());
    if (!advice.empty()) {
      TORCH_WARN(advice);
    }
  }
  comm::broadcast_all(world_, wrapped_->parameters(), 0, "rank 0's parameters");
  comm::broadcast_all(world_, wrapped_->buffers(), 0, "rank 0's buffers");
  synchroniser_ = std::make_unique<outer::Synchroniser>(
      nodes, named_parameters(*wrapped_),
      outer::settle_options(options.outer(), nodes.count(), options.auto_momentum()));
  parameters_seen_ = wrapped_->parameters().size();
}

bool SlowMoBase::slowmo() const {
  return outer_options().optimizer() != outer::OuterOptimizerKind::kAverage;
}

void SlowMoBase::before_slow_forward() {
  take_new_parameters();
  before_forward();
  if (wrapped_->is_training() && ++forwards_since_ > kForgottenAfter && !has_warned_) {
    has_warned_ = true;
    TORCH_WARN("SlowMoDistributedDataParallel: ", forwards_since_,
               " forwards in training without perform_slowmo(optimizer): nodes are not "
               "synchronised. Call it after every optimizer.step()");
  }
}

/// What the module got since starts as rank 0 has it, as everything did.
void SlowMoBase::take_new_parameters() {
  const size_t count = wrapped_->parameters().size();
  if (count == std::exchange(parameters_seen_, count)) {
    return;
  }
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& parameter : synchroniser_->parameters()) {
    known.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  std::vector<shard::Parameter> added;
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : named_parameters(*wrapped_)) {
    if (known.count(parameter.tensor.unsafeGetTensorImpl()) == 0 &&
        parameter.tensor.is_floating_point() && parameter.tensor.numel() > 0) {
      added.push_back(parameter);
      tensors.push_back(parameter.tensor);
    }
  }
  if (!added.empty()) {
    comm::broadcast_all(world_, tensors, 0, "rank 0's model");
    synchroniser_->add(added);
  }
}

outer::StepResult SlowMoBase::perform_slowmo(torch::optim::Optimizer& optimizer,
                                             const std::vector<at::Tensor>& masters) {
  TORCH_CHECK_VALUE(!dynamic_cast<OssBase*>(&optimizer),
                    "perform_slowmo: the optimizer is an OSS. It has parts of the parameters "
                    "stepped by other ranks and gathers them in every step, so nodes would never "
                    "train apart: use its base optimizer by itself");
  forwards_since_ = 0;
  outer::StepInput input;
  input.masters = masters;
  input.learning_rates = learning_rates(optimizer, masters);
  if (slowmo_options_.broadcast_buffers()) {
    for (const at::Tensor& buffer : wrapped_->buffers()) {
      if (buffer.defined() && buffer.is_floating_point()) {
        input.buffers.push_back(buffer);
      }
    }
  }
  auto result = synchroniser_->step(input);
  zero_inner_state(optimizer, result.stepped, masters);
  return result;
}

/// Of each parameter, by the optimizer's groups.
std::vector<double> SlowMoBase::learning_rates(torch::optim::Optimizer& optimizer,
                                               const std::vector<at::Tensor>& masters) const {
  std::unordered_map<const c10::TensorImpl*, double> known;
  for (const auto& group : optimizer.param_groups()) {
    const double learning_rate = group.options().get_lr();
    for (const auto& tensor : group.params()) {
      known[tensor.unsafeGetTensorImpl()] = learning_rate;
    }
  }
  const auto& parameters = synchroniser_->parameters();
  TORCH_CHECK_VALUE(masters.empty() || masters.size() == parameters.size(), "perform_slowmo got ",
                    masters.size(), " full-precision parameters for ", parameters.size());
  std::vector<double> result;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = masters.empty() ? parameters[i].tensor : masters[i];
    const auto found = known.find(tensor.unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(found != known.end() || !parameters[i].tensor.requires_grad(),
                      "perform_slowmo: the optimizer does not have parameter '", parameters[i].name,
                      "' of the module, which requires a gradient");
    result.push_back(found == known.end() ? 0 : found->second);
  }
  return result;
}

void SlowMoBase::zero_inner_state(torch::optim::Optimizer& optimizer,
                                  const std::vector<size_t>& stepped,
                                  const std::vector<at::Tensor>& masters) const {
  const at::NoGradGuard no_grad;
  const bool zeroes_momentum = slowmo_options_.zero_inner_momentum().value_or(
      outer_options().optimizer() == outer::OuterOptimizerKind::kSlowMomentum);
  for (const size_t i : stepped) {
    const at::Tensor& tensor = masters.empty() ? synchroniser_->parameters()[i].tensor : masters[i];
    const auto found = optimizer.state().find(tensor.unsafeGetTensorImpl());
    if (found != optimizer.state().end()) {
      zero_state(*found->second, zeroes_momentum, slowmo_options_.zero_adam());
    }
  }
}

}  // namespace fairshard
