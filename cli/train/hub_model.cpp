// GPT-2, Llama and Qwen from folders of Hugging Face's hub, for the trainer.
#include "language_model.h"
#include <fairshard/models/folder.h>
#include <fairshard/models/paging.h>

namespace fairshard::cli::training {
namespace {

class HubModelImpl final : public LanguageModelImpl {
 public:
  explicit HubModelImpl(const models::CausalModel& model)
      : LanguageModelImpl(model.ptr()), model_(model) {}

  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) override {
    return model_->loss(tokens, targets);
  }
  at::Tensor paged_forward(OffloadModel& pages, const at::Tensor& tokens,
                           const at::Tensor& targets) override {
    return pages.forward({tokens, targets}).at(0);
  }
  std::vector<OffloadBlock> offload_blocks() const override {
    return models::offload_blocks(model_);
  }
  void set_checkpoint_activation(bool is_on) override { model_->set_checkpoint_activation(is_on); }
  void set_wrapper(DataParallelBase* wrapper) override { model_->set_wrapper(wrapper); }

 private:
  models::CausalModel model_;
};

/// In float32 whatever the folder has: steps are often too small for narrower weights.
models::CausalModel load_or_make(const TrainOptions& options) {
  const auto& [folder, config, has_weights] = options.hub.value();
  return has_weights ? models::load_model(folder, models::LoadOptions().dtype(at::kFloat))
                     : models::make_model(config);
}

}  // namespace

LanguageModel make_hub_model(const TrainOptions& options) {
  return {
      std::shared_ptr<LanguageModelImpl>(std::make_shared<HubModelImpl>(load_or_make(options)))};
}

}  // namespace fairshard::cli::training
