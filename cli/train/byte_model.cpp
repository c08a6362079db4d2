// The byte-level GPT of examples/gpt, for the trainer.
#include "gpt/model.h"
#include "gpt/paging.h"
#include "language_model.h"

namespace fairshard::cli::training {
namespace {

class ByteModelImpl final : public LanguageModelImpl {
 public:
  explicit ByteModelImpl(const gpt::Gpt& gpt) : LanguageModelImpl(gpt.ptr()), gpt_(gpt) {}

  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) override {
    return gpt::loss_of(gpt_->forward(tokens), targets);
  }
  at::Tensor paged_forward(OffloadModel& pages, const at::Tensor& tokens,
                           const at::Tensor& targets) override {
    return gpt::loss_of(pages.forward(tokens), targets);
  }
  std::vector<OffloadBlock> offload_blocks() const override { return gpt::offload_blocks(gpt_); }
  void set_checkpoint_activation(bool is_on) override { gpt_->set_checkpoint_activation(is_on); }
  void set_wrapper(DataParallelBase* wrapper) override { gpt_->set_wrapper(wrapper); }

 private:
  gpt::Gpt gpt_;
};

}  // namespace

LanguageModel make_byte_model(const TrainOptions& options) {
  return {
      std::shared_ptr<LanguageModelImpl>(std::make_shared<ByteModelImpl>(gpt::Gpt(options.gpt)))};
}

}  // namespace fairshard::cli::training
