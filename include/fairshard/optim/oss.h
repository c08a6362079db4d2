#pragma once
// OSS: an optimizer whose state is sharded over ranks.

#include <fairshard/comm/mesh.h>
#include <fairshard/module/any_module.h>
#include <fairshard/optim/element_wise.h>
#include <fairshard/shard/sharded_step.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fairshard {

/// What an OSS is made with, beside the options of its base optimizer.
struct OssOptions {
  // Behaviour
  /// Whether parameters are split between ranks or belong to one each. If not given, the class of
  /// the base optimizer decides; see IsElementWise.
  TORCH_ARG(std::optional<shard::Partition>, partition);
  /// Step float16 and bfloat16 parameters in float32, on copies of what a rank owns.
  TORCH_ARG(bool, master_weights) = false;

  // Performance
  /// How much is communicated together. If not given, see Note [Size of buckets] in shard/layout.h.
  TORCH_ARG(std::optional<int64_t>, bucket_bytes);
  /// The first bucket is smaller, so that communication starts early in backward.
  TORCH_ARG(int64_t, first_bucket_bytes) = 1 << 20;
  /// step() returns while parameters are still being gathered; ShardedDataParallel's next forward
  /// waits for them. Whoever reads parameters in between calls wait_for_parameters() first.
  TORCH_ARG(bool, overlap_gather) = false;
  /// Backward steps each bucket as soon as its gradients are reduced, drops them and gathers its
  /// values; step() only waits for that. Saves the gradients' memory and hides the gather.
  /// Gradients can then be neither clipped nor scaled nor looked at, and backward is not to be
  /// repeated.
  TORCH_ARG(bool, step_in_backward) = false;
  /// Between a block's forward and its backward, ranks keep only what they own of its parameters,
  /// so that forward's activations take their place; backward gathers them again, and where it ends
  /// all are there. Costs half as much traffic again. A Sequential's children are blocks; other
  /// modules call ShardedDataParallel's wait_for() and done_with(). With overlap_gather ranks have
  /// only what they own between steps, too: the next forward gathers each block where it begins,
  /// and whatever reads parameters otherwise (wait_for_parameters(), an evaluation) must be done on
  /// all ranks.
  TORCH_ARG(bool, release_parameters) = false;
  /// The dtype in which parameters are gathered, for instance at::kBFloat16. All ranks then compute
  /// with the rounded values, and each steps an exact copy of what it owns.
  TORCH_ARG(std::optional<at::ScalarType>, gather_dtype);
};

/// What OSS does whatever its base optimizer is: a ShardedStep, and a torch optimizer's interface.
class OssBase : public torch::optim::Optimizer {
 public:
  OssBase(const OssBase&) = delete;
  OssBase& operator=(const OssBase&) = delete;

  /// Drops gradients, those of .grad and those that were reduced into this rank's shards. Local.
  void zero_grad(bool set_to_none = true);

  /// Scales the gradients of all parameters over all ranks to a norm of at most `max_norm`; returns
  /// their norm. Collective; blocks.
  at::Tensor clip_grad_norm(double max_norm, double norm_type = 2.0) {
    return sharded_step_->clip(max_norm, norm_type);
  }

  /// Returns when all parameters are in place; see OssOptions::overlap_gather.
  void wait_for_parameters() { sharded_step_->wait_for_parameters(); }

  /// Refuse: the state is partitioned across ranks, and an archive would have one rank's alone. A
  /// Checkpoint saves all of it.
  /// @{
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  /// @}

  /// This rank's optimizer, over the slices of flat_groups().
  virtual torch::optim::Optimizer& base() = 0;

  /// What a step is.
  shard::ShardedStep& sharded_step() const { return *sharded_step_; }
  /// One for the parameters given at the start and one for each group added later.
  const std::vector<std::shared_ptr<shard::FlatGroup>>& flat_groups() const {
    return sharded_step_->flat_groups();
  }

 protected:
  /// See OSS.
  OssBase(comm::Mesh mesh, std::unique_ptr<torch::optim::OptimizerOptions> defaults,
          const OssOptions& options, shard::Partition partition);

  /// Parameters under their names.
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  /// Shards the parameters of new groups.
  void take(const std::vector<NamedTensors>& groups);
  /// Throws if param_groups() has another number of groups than were sharded.
  void check_groups(size_t sharded) const;
  /// Whether the slices have changed since the last time that this was asked.
  bool have_slices_changed();
  /// Steps the base optimizer on those slices that have a gradient, with the options of
  /// param_groups().
  virtual void step_base() = 0;

  /// What is said of a step after no_sync().
  static constexpr const char* kNotReduced =
      "step() after a backward within no_sync(): its gradients are those of each rank alone, and "
      "ranks drift apart. Let the last backward before a step be outside of no_sync()";

 private:
  std::shared_ptr<shard::ShardedStep> sharded_step_;
  int seen_version_ = 0;
};

/// Wraps any torch::optim class, or one of our own: every rank holds the state of, and steps, its
/// share of all parameters, and gathers the rest. Results are those of the plain optimizer.
/// Gradients come from ShardedDataParallel, or from .grad if they are the same on all ranks.
/// param_groups() holds the whole parameters, and their options rule.
///
/// Construction, add_param_group and step are collective over the group. A comm::Mesh in its place
/// shards within its shard groups only (HSDP): each replica has all of the state, and what travels
/// between replicas is a shard of the gradients.
template <typename Base>
class OSS : public OssBase {
  static_assert(std::derived_from<Base, torch::optim::Optimizer>,
                "OSS<Base> takes a class of torch::optim, or one of fairshard's such as AdamW");
  static_assert(!std::is_same_v<Base, torch::optim::LBFGS>,
                "LBFGS looks at all parameters together, so that its state cannot be sharded");

 public:
  /// All parameters of a module (`model`, `*model` or a shared_ptr), under their names there.
  template <AnyModule Module, std::derived_from<torch::optim::OptimizerOptions> Options>
  OSS(const comm::Mesh& mesh, const Module& module, Options options,
      const OssOptions& oss_options = {})
      : OSS(mesh, {named(module_of(module))}, {}, std::move(options), oss_options) {}

  /// Parameters without names.
  template <typename Options>
  OSS(const comm::Mesh& mesh, const std::vector<at::Tensor>& parameters, Options options,
      const OssOptions& oss_options = {})
      : OSS(mesh, {numbered(parameters, 0)}, {}, std::move(options), oss_options) {}

  /// Several groups, each with options of its own or the given ones.
  template <typename Options>
  OSS(const comm::Mesh& mesh, const std::vector<torch::optim::OptimizerParamGroup>& groups,
      Options options, const OssOptions& oss_options = {})
      : OSS(mesh, numbered(groups), groups, std::move(options), oss_options) {}

  /// Shards one more group. Collective. A ShardedDataParallel made before finds it at its next
  /// forward.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
    take({numbered(group.params(), param_groups().size())});
    Optimizer::add_param_group(group);
    base_->add_param_group(
        {sharded_step().slices().back(), param_groups().back().options().clone()});
  }

  /// Steps this rank's share and gathers the others'. Collective; blocks, but see
  /// OssOptions::overlap_gather.
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode grad(true);
      loss = closure();
    }
    if (sharded_step().awaits_reduction()) {
      TORCH_WARN(kNotReduced);
    }
    sharded_step().run();
    return loss;
  }

  Base& base() override { return *base_; }

 private:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  template <typename Options>
  OSS(const comm::Mesh& mesh, const std::vector<NamedTensors>& named, const Groups& groups,
      Options options, const OssOptions& oss_options)
      : OssBase(mesh, std::make_unique<Options>(options), oss_options,
                IsElementWise<Base>::value ? shard::Partition::kEven : shard::Partition::kTensor) {
    take(named);
    const auto own = sharded_step().slices();
    Groups sliced;
    for (size_t i = 0; i < named.size(); ++i) {
      Optimizer::add_param_group(
          groups.empty() ? torch::optim::OptimizerParamGroup(tensors(named[i])) : groups[i]);
      sliced.emplace_back(own[i], param_groups().back().options().clone());
    }
    base_ = std::make_unique<Base>(std::move(sliced), std::move(options));
  }

  void step_base() override {
    check_groups(base_->param_groups().size());
    for (size_t i = 0; i < param_groups().size(); ++i) {
      base_->param_groups()[i].set_options(param_groups()[i].options().clone());
    }
    if (have_slices_changed()) {
      auto sliced = sharded_step().slices();
      for (size_t i = 0; i < sliced.size(); ++i) {
        base_->param_groups()[i].params() = std::move(sliced[i]);
      }
    }
    base_->step();
  }

  static NamedTensors named(const torch::nn::Module& module) {
    NamedTensors result;
    for (const auto& item : module.named_parameters()) {
      result.emplace_back(item.key(), item.value());
    }
    return result;
  }

  static NamedTensors numbered(const std::vector<at::Tensor>& parameters, size_t group) {
    NamedTensors result;
    for (size_t i = 0; i < parameters.size(); ++i) {
      result.emplace_back("group" + std::to_string(group) + "." + std::to_string(i), parameters[i]);
    }
    return result;
  }

  static std::vector<NamedTensors> numbered(const Groups& groups) {
    std::vector<NamedTensors> result;
    for (size_t i = 0; i < groups.size(); ++i) {
      result.push_back(numbered(groups[i].params(), i));
    }
    return result;
  }

  static std::vector<at::Tensor> tensors(const NamedTensors& named) {
    std::vector<at::Tensor> result;
    for (const auto& [name, tensor] : named) {
      result.push_back(tensor);
    }
    return result;
  }

  std::unique_ptr<Base> base_;
};

}  // namespace fairshard
