#include "sharded_node.h"
#include <fairshard/comm/broadcast_all.h>
#include <fairshard/outer/slow_loop.h>

#include <c10/util/Exception.h>

#include <unordered_map>

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
  check_options(settled);
  sharded_ = ShardedNode::find(world_, nodes, parameters, settled.fragments());
  share_from_first(tensors_of(parameters));
  comm::broadcast_all(world_, buffers, 0, "rank 0's buffers");
  synchroniser_ = sharded_ ? Synchroniser::of_slices(Nodes(sharded_->group(), nodes.inter_node()),
                                                     sharded_->take_slices(), settled)
                           : std::make_unique<Synchroniser>(nodes, parameters, settled);
  for (const auto& parameter : parameters) {
    known_.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  parameters_seen_ = parameters.size();
}

SlowLoop::~SlowLoop() = default;

/// Takes parameters to all as rank 0 has them.
void SlowLoop::share_from_first(const std::vector<at::Tensor>& parameters) const {
  if (sharded_) {
    sharded_->wait_for_values();
  }
  comm::broadcast_all(world_, parameters, 0, "rank 0's parameters");
  for (const at::Tensor& parameter : parameters) {
    parameter.unsafeGetTensorImpl()->bump_version();  // master weights follow what was written
  }
}

bool SlowLoop::is_behind(size_t parameters) const {
  return parameters != parameters_seen_ || (sharded_ && sharded_->has_grown());
}

void SlowLoop::set_parameters(const std::vector<shard::Parameter>& parameters) {
  parameters_seen_ = parameters.size();
  std::vector<shard::Parameter> added;
  for (const auto& parameter : parameters) {
    const bool is_new = known_.insert(parameter.tensor.unsafeGetTensorImpl()).second;
    if (is_new && parameter.tensor.is_floating_point() && parameter.tensor.numel() > 0) {
      added.push_back(parameter);
    }
  }
  if (!added.empty()) {
    share_from_first(tensors_of(added));
  }
  if (!sharded_ && !added.empty()) {
    synchroniser_->add(added);
  } else if (sharded_ && sharded_->has_grown()) {
    synchroniser_->add_slices(sharded_->take_slices());
    sharded_->publish();
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
  TORCH_CHECK_VALUE(masters.empty() || !sharded_,
                    "perform_slowmo got fp32_params with an OSS, which has master weights itself "
                    "(its option master_weights)");
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
  if (sharded_ && synchroniser_->is_due()) {
    sharded_->wait_for_values();
  }
  auto result = synchroniser_->step(input);
  if (sharded_) {
    sharded_->publish(result.fragments);
  }
  const auto fields = zeroed_fields();
  if (!fields.empty()) {
    const at::NoGradGuard no_grad;
    for (const size_t i : result.stepped) {
      optimizer.zero(tensors[i], fields);
    }
  }
  return result;
}

void SlowLoop::average(const std::vector<at::Tensor>& masters) {
  if (sharded_) {
    sharded_->wait_for_values();
  }
  synchroniser_->average(masters);
  if (sharded_) {
    sharded_->publish();
  }
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
    TORCH_CHECK_VALUE(found != known.end() || !synchroniser_->is_trained(i),
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
