#pragma once
// One step of the trainer's model, followed by its memory: what forward allocates, what autograd
// keeps, and what backward needs and frees, in the order of the engine. Nothing is computed.

#include "model_shape.h"
#include "model_step.h"

#include <cstdint>
#include <vector>

namespace fairshard::cli::planning {

struct StepShape {
  gpt::GptOptions model;
  /// In one forward of one rank.
  int64_t windows = 1;
  /// Matrix products in bfloat16 by autocast.
  bool is_mixed = false;
  /// Of each block, which blocks are computed again together in backward: blocks of one number are;
  /// -1 for those that are not.
  std::vector<int64_t> recomputed_with;
};

class GptStep final : public ModelStep {
 public:
  GptStep(const StepShape& shape, MemoryLedger& ledger);

 private:
  void forward(int64_t block) override;
  void forward_embeddings();
  void forward_layer();
  void forward_read_out();
  void forward_loss() override;
  void backward(int64_t block, GradientSink& sink) override;
  void backward_loss() override;
  void backward_read_out(GradientSink& sink);
  void backward_layer(size_t parameter, GradientSink& sink);
  void backward_attention(size_t parameter, GradientSink& sink);
  void backward_embeddings(GradientSink& sink);
  void backward_norm(size_t parameter, GradientSink& sink);
  /// A linear layer whose weight is `parameter` and whose bias follows it. After a norm, its input
  /// is in float32, and so becomes the input's gradient.
  void backward_linear(size_t parameter, int64_t gradient_in, int64_t saved, int64_t gradient_out,
                       bool follows_norm, GradientSink& sink);
  void add_gradients(int64_t bytes);
  void cast(int64_t from, int64_t to);
  int64_t output_bytes(int64_t block) const override;
  int64_t casts_of(int64_t weights) const { return shape_.is_mixed ? 2 * weights : 0; }
  bool is_read_out(int64_t block) const { return block == shape_.model.layers() + 1; }

  StepShape shape_;
  ModelShape parameters_;
  int64_t tokens_;
  int64_t stream_;  ///< the residual stream: tokens x width in float32
  int64_t hidden_;  ///< as much in the dtype of matrix products
  int64_t statistics_;
  int64_t sums_;  ///< of attention's exponentials
  int64_t logits_;
};

}  // namespace fairshard::cli::planning
