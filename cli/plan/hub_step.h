#pragma once
// One step of a model of the hub, block by block: what forward keeps for backward, and what
// backward needs beside that. Which tensors these are was found out by measuring; dropout is not
// counted.

#include "model_shape.h"
#include "model_step.h"

#include <cstdint>
#include <vector>

namespace fairshard::cli::planning {

struct HubStepShape {
  /// In one forward of one rank.
  int64_t windows = 1;
  /// Matrix products in bfloat16 by autocast.
  bool is_mixed = false;
  /// Norms are several operations on the CPU, and one on a GPU, which keeps less.
  bool is_on_host = false;
  /// See ModelStep.
  std::vector<int64_t> recomputed_with;
};

/// Of a shape that shape_of_hub() has made, which must live as long as this.
class HubStep final : public ModelStep {
 public:
  HubStep(const HubStepShape& shape, const ModelShape& model, MemoryLedger& ledger);

 private:
  void forward(int64_t block) override;
  void backward(int64_t block, GradientSink& sink) override;
  int64_t output_bytes(int64_t block) const override { return is_read_out(block) ? 0 : stream_; }

  int64_t layer_bytes() const;
  int64_t rotary_layer_bytes() const;
  int64_t norm_bytes(int64_t uses) const;
  int64_t attention_norm_bytes() const;
  int64_t narrow_weights(int64_t block) const;
  void backward_loss_of_chunk();
  void give_gradients(int64_t block, GradientSink& sink);
  bool is_read_out(int64_t block) const { return block + 1 == blocks(); }
  bool is_tied(size_t parameter) const;
  const models::ModelConfig& config() const { return model_.hub->config; }

  HubStepShape shape_;
  const ModelShape& model_;
  int64_t tokens_;
  int64_t stream_;        ///< the residual stream: tokens x width in float32
  int64_t narrow_;        ///< bytes of an element of matrix products
  int64_t chunk_;         ///< logits that are there at a time, in float32
  bool is_chunked_;       ///< whether the loss is computed in several chunks
  int64_t kept_layer_;    ///< by one layer, with its output
  int64_t kept_norm_;     ///< by the last norm
  int64_t beside_layer_;  ///< what a layer's backward needs for the moment
};

}  // namespace fairshard::cli::planning
