// Nodes that train by themselves and come together now and then: --slowmo and --diloco.
#include "optimizers.h"
#include "strategy.h"
#include <fairshard/nn/slowmo.h>

#include <utility>

namespace fairshard::cli::training {
namespace {

outer::WireFormat wire_of(const std::string& name) {
  return name == "float32"    ? outer::WireFormat::kFloat32
         : name == "bfloat16" ? outer::WireFormat::kBFloat16
         : name == "int8"     ? outer::WireFormat::kInt8
                              : outer::WireFormat::kSparse;
}

SlowMoOptions slowmo_options(const TrainOptions& options) {
  constexpr double kDilocoRate = 0.7;
  constexpr double kDilocoMomentum = 0.9;
  const auto kind = options.diloco ? outer::OuterOptimizerKind::kNesterov
                                   : outer::OuterOptimizerKind::kSlowMomentum;
  const double usual_momentum =
      options.diloco ? kDilocoMomentum : outer::suggested_momentum(options.nodes);
  return SlowMoOptions().outer(
      outer::OuterOptions()
          .optimizer(kind)
          .learning_rate(options.slowmo_lr.value_or(options.diloco ? kDilocoRate : 1.0))
          .momentum(options.slowmo_momentum.value_or(usual_momentum))
          .slow_frequency(options.slowmo_frequency)
          .average_frequency(options.localsgd_frequency)
          .fragments(options.fragments)
          .delay(options.fragment_delay)
          .wire(wire_of(options.wire)));
}

class NodesApartStrategy final : public Strategy {
 public:
  NodesApartStrategy(const comm::Group& group, const LanguageModel& model,
                     const TrainOptions& options)
      : group_(group),
        nodes_(group, group.size() / options.nodes),
        mode_(mode_of(options)),
        optimizer_(make_optimizer(nodes_.intra_node(), model, options)),
        parallel_(group, model, nodes_, sharded(*optimizer_), slowmo_options(options)) {}

  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) override {
    return parallel_.forward(tokens, targets);
  }

  void backward(const at::Tensor& loss, bool is_last) override {
    // As without nodes: sharded gradients cannot wait for the last part.
    if (is_last || mode_ == DataParallelMode::kGradients) {
      loss.backward();
    } else {
      const auto no_sync = parallel_.no_sync();
      loss.backward();
    }
  }

  at::Tensor evaluate(const at::Tensor& tokens, const at::Tensor& targets) override {
    return evaluated(parallel_.module(), [&] { return parallel_->forward(tokens, targets); });
  }

  void zero_grad() override { parallel_.zero_grad(); }
  void clip(double max_norm) override { clip_gradients(*optimizer_, max_norm); }
  torch::optim::Optimizer& optimizer() override { return *optimizer_; }
  void after_step() override { parallel_.perform_slowmo(*optimizer_); }
  void finish() override { parallel_.average_parameters(); }

  void add_to(Checkpoint& checkpoint) override {
    checkpoint.add("slowmo", parallel_)
        .add("model", *parallel_.module())
        .add("optimizer", *optimizer_);
  }

  MemoryUse memory_use() override {
    MemoryUse use = memory_of(*optimizer_, mode_);
    if (outer_bytes_ < 0) {
      outer_bytes_ = 0;
      for (const auto& [name, tensor] : parallel_.state().tensors) {
        outer_bytes_ += static_cast<int64_t>(tensor.nbytes());
      }
    }
    use.optimizer += outer_bytes_;
    return use;
  }

  std::vector<comm::Group> groups() const override {
    return {group_, nodes_.intra_node(), nodes_.inter_node()};
  }
  comm::Group steppers() const override { return nodes_.intra_node(); }

 private:
  comm::Group group_;
  outer::Nodes nodes_;
  DataParallelMode mode_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  SlowMoDistributedDataParallel<LanguageModel> parallel_;
  /// Of the outer optimizer's buffers, which stay the same; -1 until they are known.
  int64_t outer_bytes_ = -1;
};

}  // namespace

std::unique_ptr<Strategy> make_nodes_apart(const comm::Group& group, const LanguageModel& model,
                                           const TrainOptions& options) {
  return std::make_unique<NodesApartStrategy>(group, model, options);
}

}  // namespace fairshard::cli::training
