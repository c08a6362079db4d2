#pragma once
// One step of a model, followed by its memory, whatever the model is: blocks run forward, and then
// backward, and some are computed again before that. Nothing is computed.

#include "gradient_sinks.h"
#include "ledger.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace fairshard::cli::planning {

class ModelStep {
 public:
  virtual ~ModelStep() = default;

  /// Leaves the ledger as it was, but for what the sink keeps.
  void run(GradientSink& sink);

 protected:
  /// Of each block, which blocks are computed again together in backward: blocks of one number are;
  /// -1 for those that are not.
  ModelStep(MemoryLedger& ledger, std::vector<int64_t> recomputed_with)
      : ledger_(ledger), recomputed_with_(std::move(recomputed_with)) {}

  virtual void forward(int64_t block) = 0;
  virtual void backward(int64_t block, GradientSink& sink) = 0;
  /// What is left of a block if nothing is kept for backward.
  virtual int64_t output_bytes(int64_t block) const = 0;
  /// What comes after the last block.
  virtual void forward_loss() {}
  virtual void backward_loss() {}

  MemoryLedger& ledger() { return ledger_; }
  int64_t blocks() const { return static_cast<int64_t>(recomputed_with_.size()); }

 private:
  void backward_again(int64_t first, int64_t last, GradientSink& sink);
  int64_t end_of_recomputation(int64_t block) const;

  MemoryLedger& ledger_;
  std::vector<int64_t> recomputed_with_;
};

}  // namespace fairshard::cli::planning
