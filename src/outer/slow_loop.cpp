#include <fairshard/comm/broadcast_all.h>
#include <fairshard/outer/slow_loop.h>

#include <c10/util/Exception.h>

#include <unordered_map>
#include <unordered_set>

namespace fairshard::outer {
namespace {

/// After so many forwards in training without a step() somebody has forgotten it.
constexpr int kForgottenAfter = 100;

std::vector<at::Tensor> tensors_of(const std::vector<shard::Parameter>& parameters) {
  std::vector<at::Tensor> result;
  result.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    result.push_back(parameter.tensor);
  }
  return result;
}

}  // namespace

SlowLoop::SlowLoop(comm::Group world, const Nodes& nodes,
                   const std::vector<shard::Parameter>& parameters,
                   const std::vector<at::Tensor>& buffers, const SlowMoOptions& options)
    : world_(std::move(world)), options_(options) {
  const auto settled = settle_options(options.outer(), nodes.count(), options.auto_momentum());
  if (!options.auto_momentum() && world_.rank() == 0) {
    advice_ = momentum_advice(options.outer(), nodes.count());
  }
  comm::broadcast_all(world_, tensors_of(parameters), 0, "rank 0's parameters");
  comm::broadcast_all(world_, buffers, 0, "rank 0's buffers");
  synchroniser_ = std::make_shared<Synchroniser>(nodes, parameters, settled);
}

void SlowLoop::set_parameters(const std::vector<shard::Parameter>& parameters) {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& parameter : synchroniser_->parameters()) {
    known.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  std::vector<shard::Parameter> added;
  for (const auto& parameter : parameters) {
    if (known.count(parameter.tensor.unsafeGetTensorImpl()) == 0 &&
        parameter.tensor.is_floating_point() && parameter.tensor.numel() > 0) {
      added.push_back(parameter);
    }
  }
  if (!added.empty()) {
    comm::broadcast_all(world_, tensors_of(added), 0, "rank 0's model");
    synchroniser_->add(added);
  }
}

std::string SlowLoop::count_forward() {
  if (++forwards_since_ <= kForgottenAfter || has_warned_) {
    return {};
  }
  has_warned_ = true;
  return c10::str(forwards_since_,
                  " forwards in training without perform_slowmo(optimizer): nodes are not "
                  "synchronised. Call it after every optimizer.step()");
}

StepResult SlowLoop::step(const InnerOptimizer& optimizer, const std::vector<at::Tensor>& masters,
                          const std::vector<at::Tensor>& buffers) {
  forwards_since_ = 0;
  const size_t count = synchroniser_->parameters().size();
  TORCH_CHECK_VALUE(masters.empty() || masters.size() == count, "perform_slowmo got ",
                    masters.size(), " fp32_params for ", count, " parameters");
  const auto tensors = masters.empty() ? tensors_of(synchroniser_->parameters()) : masters;
  StepInput input;
  input.masters = masters;
  input.learning_rates = learning_rates(optimizer, tensors);
  for (const at::Tensor& buffer : buffers) {
    if (options_.broadcast_buffers() && buffer.defined() && buffer.is_floating_point()) {
      input.buffers.push_back(buffer);
    }
  }
  auto result = synchroniser_->step(input);
  const auto fields = zeroed_fields();
  if (!fields.empty()) {
    const at::NoGradGuard no_grad;
    for (const size_t i : result.stepped) {
      optimizer.zero(tensors[i], fields);
    }
  }
  return result;
}

/// Of each parameter, by the optimizer's groups.
std::vector<double> SlowLoop::learning_rates(const InnerOptimizer& optimizer,
                                             const std::vector<at::Tensor>& tensors) const {
  std::unordered_map<const c10::TensorImpl*, double> known;
  for (const auto& [rate, group] : optimizer.groups) {
    for (const at::Tensor& tensor : group) {
      known[tensor.unsafeGetTensorImpl()] = rate;
    }
  }
  std::vector<double> result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto found = known.find(tensors[i].unsafeGetTensorImpl());
    const auto& parameter = synchroniser_->parameters()[i];
    TORCH_CHECK_VALUE(found != known.end() || !parameter.tensor.requires_grad(),
                      "perform_slowmo: the optimizer does not have parameter '", parameter.name,
                      "' of the module, which requires a gradient");
    result.push_back(found == known.end() ? 0 : found->second);
  }
  return result;
}

/// Which fields of inner states a slow step zeroes.
std::vector<std::string> SlowLoop::zeroed_fields() const {
  std::vector<std::string> fields;
  if (options_.zero_inner_momentum().value_or(synchroniser_->options().optimizer() ==
                                              OuterOptimizerKind::kSlowMomentum)) {
    fields.emplace_back("momentum_buffer");
  }
  if (options_.zero_adam()) {
    fields.insert(fields.end(), {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"});
  }
  return fields;
}

}  // namespace fairshard::outer
