// Ranks that meet in every step: --shard.
#include "optimizers.h"
#include "strategy.h"

#include <utility>

namespace fairshard::cli::training {
namespace {

class DataParallelStrategy final : public Strategy {
 public:
  DataParallelStrategy(const comm::Group& group, const LanguageModel& model,
                       const TrainOptions& options)
      : group_(group),
        mode_(mode_of(options)),
        optimizer_(make_optimizer(group, model, options)),
        parallel_(group, model, sharded(*optimizer_),
                  parallel_options(mode_, model).waits_by_block(waits_by_block(options))) {
    if (waits_by_block(options)) {
      parallel_->set_wrapper(&parallel_);
    }
  }

  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) override {
    return parallel_.forward(tokens, targets);
  }

  void backward(const at::Tensor& loss, bool is_last) override {
    // Whole gradients can wait for the last part. Sharded ones cannot: they would need the memory
    // that sharding saves.
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

  void settle() override {
    for (OssBase& oss : sharded(*optimizer_)) {
      oss.wait_for_parameters();
    }
  }
  void finish() override { settle(); }

  void add_to(Checkpoint& checkpoint) override {
    checkpoint.add("model", *parallel_.module()).add("optimizer", *optimizer_);
  }

  MemoryUse memory_use() override { return memory_of(*optimizer_, mode_); }
  std::vector<comm::Group> groups() const override { return {group_}; }

 private:
  static bool waits_by_block(const TrainOptions& options) {
    return options.overlap_gather || options.release_parameters;
  }

  comm::Group group_;
  DataParallelMode mode_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  ShardedDataParallel<LanguageModel> parallel_;
};

}  // namespace

std::unique_ptr<Strategy> make_data_parallel(const comm::Group& group, const LanguageModel& model,
                                             const TrainOptions& options) {
  return std::make_unique<DataParallelStrategy>(group, model, options);
}

}  // namespace fairshard::cli::training
