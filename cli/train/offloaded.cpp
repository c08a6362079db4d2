// A model that is paged through the device: --offload, on one rank or with --shard.
#include "optimizers.h"
#include "strategy.h"
#include <fairshard/nn/offload_model.h>

#include <optional>
#include <utility>

namespace fairshard::cli::training {
namespace {

std::optional<int64_t> signed_bytes(std::optional<uint64_t> bytes) {
  return bytes ? std::optional(static_cast<int64_t>(*bytes)) : std::nullopt;
}

OffloadOptions offload_options(const TrainOptions& options, at::Device device) {
  return OffloadOptions()
      .device(device)
      .num_slices(options.offload)
      .checkpoint_activation(options.checkpoint_activation)
      .device_budget_bytes(signed_bytes(options.device_budget))
      .host_budget_bytes(signed_bytes(options.host_budget))
      .spill_dir(options.spill_dir)
      .record_spans(!options.trace.empty());
}

/// The paged model as a module, so that ranks can share its gradients.
class PagedModelImpl : public torch::nn::Module {
 public:
  PagedModelImpl(const LanguageModel& model, const OffloadOptions& options)
      : model_(register_module("model", model)), offload_(model_->offload_blocks(), options) {}

  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) {
    return model_->paged_forward(offload_, tokens, targets);
  }
  OffloadModel& offload() { return offload_; }

 private:
  LanguageModel model_;
  OffloadModel offload_;
};
TORCH_MODULE(PagedModel);

class OffloadStrategy final : public Strategy {
 public:
  OffloadStrategy(const comm::Group& group, const LanguageModel& model, const TrainOptions& options,
                  at::Device device)
      : group_(group),
        model_(model),
        device_(device),
        mode_(mode_of(options)),
        paged_(model, offload_options(options, device)),
        optimizer_(make_optimizer(group, model, alone(options))) {
    if (group.size() > 1) {
      parallel_.emplace(group, paged_, sharded(*optimizer_), parallel_options(mode_, model));
    } else if (options.clip == 0 && options.amp != "fp16") {
      // Otherwise all gradients are looked at before the first step.
      paged_->offload().step_in_backward(*optimizer_);
      steps_in_backward_ = true;
    }
  }

  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) override {
    return parallel_ ? parallel_->forward(tokens, targets) : paged_->forward(tokens, targets);
  }

  void backward(const at::Tensor& loss, bool is_last) override {
    if (!parallel_) {
      if (steps_in_backward_) {
        paged_->offload().set_stepping(is_last);
      }
      loss.backward();
      return;
    }
    {
      const auto no_sync = parallel_->no_sync();
      loss.backward();
    }
    if (is_last) {
      parallel_->reduce();  // now that gradients are in host memory
    }
  }

  at::Tensor evaluate(const at::Tensor& tokens, const at::Tensor& targets) override {
    return evaluated(model_, [&] { return paged_->forward(tokens, targets); });
  }

  void zero_grad() override {
    if (parallel_) {
      parallel_->zero_grad();
    } else {
      optimizer_->zero_grad();
    }
  }
  void clip(double max_norm) override { clip_gradients(*optimizer_, max_norm); }
  torch::optim::Optimizer& optimizer() override { return *optimizer_; }
  void settle() override { paged_->offload().wait_for_step(); }
  void finish() override { settle(); }

  void add_to(Checkpoint& checkpoint) override {
    checkpoint.add("model", *model_, paged_->offload()).add("optimizer", *optimizer_);
  }
  MemoryUse memory_use() override;
  std::vector<comm::Group> groups() const override { return {group_}; }
  PagedSpans take_spans() override { return {made_, paged_->offload().pager().take_spans()}; }

 private:
  /// One rank has nobody to share with, and steps while it pages.
  TrainOptions alone(TrainOptions options) const {
    options.shard = group_.size() == 1 ? "none" : options.shard;
    return options;
  }

  comm::Group group_;
  LanguageModel model_;
  at::Device device_;
  DataParallelMode mode_;
  /// About when the pager began to count.
  std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
  PagedModel paged_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<ShardedDataParallel<PagedModel>> parallel_;
  bool steps_in_backward_ = false;
};

/// The pager's own host memory is beside what allocators count. What an optimizer and a reducer
/// have is in host memory, which is the device's if that is the CPU.
MemoryUse OffloadStrategy::memory_use() {
  settle();
  const auto report = paged_->offload().report();
  const MemoryUse shared = parallel_ ? memory_of(*optimizer_, mode_) : MemoryUse();
  const int64_t states = state_bytes(*optimizer_);
  const bool is_host = device_.is_cpu();
  MemoryUse use;
  use.weights = report.device_bytes;
  use.files = report.file_bytes;
  use.host_weights = report.host_bytes;
  if (steps_in_backward_) {  // states are among the pager's bytes, on the tier of their slices
    use.host_optimizer = report.file_bytes == 0 ? states : 0;
    use.host_weights -= use.host_optimizer;
  } else {
    (is_host ? use.optimizer : use.host_optimizer) = states;
  }
  if (is_host) {
    use.weights += shared.weights;
    use.gradients = shared.gradients;
    use.buckets = shared.buckets;
  } else {
    use.host_weights += shared.weights + shared.gradients + shared.buckets;
  }
  return use;
}

}  // namespace

std::unique_ptr<Strategy> make_offload(const comm::Group& group, const LanguageModel& model,
                                       const TrainOptions& options, at::Device device) {
  return std::make_unique<OffloadStrategy>(group, model, options, device);
}

}  // namespace fairshard::cli::training
