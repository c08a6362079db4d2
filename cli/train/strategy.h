#pragma once
// What the options choose: how a model, its optimizer and the ranks work together. The step loop
// knows nothing else of it.

#include "language_model.h"
#include "memory_use.h"
#include "options.h"
#include <fairshard/checkpoint.h>
#include <fairshard/comm/group.h>
#include <fairshard/page/report.h>

#include <torch/optim/optimizer.h>

#include <chrono>
#include <memory>
#include <vector>

namespace fairshard::cli::training {

/// What a pager has recorded; times count from `zero`.
struct PagedSpans {
  std::chrono::steady_clock::time_point zero;
  std::vector<page::Span> spans;
};

/// One rank's part of a training run. All but accessors is collective.
class Strategy {
 public:
  virtual ~Strategy() = default;

  /// The loss, for training.
  virtual at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) = 0;
  /// Adds the gradients of a part of the batch; with the last part they are brought together
  /// between ranks.
  virtual void backward(const at::Tensor& loss, bool is_last) = 0;
  /// The loss, for everything that is not training. Without gradients.
  virtual at::Tensor evaluate(const at::Tensor& tokens, const at::Tensor& targets) = 0;
  virtual void zero_grad() = 0;
  /// Scales all gradients to a norm of at most `max_norm`.
  virtual void clip(double max_norm) = 0;
  /// Has learning rates and steps.
  virtual torch::optim::Optimizer& optimizer() = 0;
  /// Comes after each of its steps.
  virtual void after_step() {}
  /// Returns when parameters are what the last step made them, to be read by others.
  virtual void settle() {}
  /// Comes after the last step: from then on all ranks have one model.
  virtual void finish() {}

  /// Adds all that has a state, under the same names whatever the strategy is.
  virtual void add_to(Checkpoint& checkpoint) = 0;
  /// What this rank holds between a step and the next zero_grad(); without activations and peak.
  virtual MemoryUse memory_use() = 0;
  /// Through which this rank sends, each once; the first is that of all ranks.
  virtual std::vector<comm::Group> groups() const = 0;
  /// The ranks that make the same steps, and must agree on skipping one.
  virtual comm::Group steppers() const { return groups().front(); }
  /// What was copied and computed since the last call, if the model is paged.
  virtual PagedSpans take_spans() { return {}; }
};

/// All ranks begin with rank 0's weights. Collective; blocks.
std::unique_ptr<Strategy> make_strategy(const comm::Group& group, const TrainOptions& options,
                                        at::Device device);

// The kinds that there are, one file each.

std::unique_ptr<Strategy> make_data_parallel(const comm::Group& group, const LanguageModel& model,
                                             const TrainOptions& options);
std::unique_ptr<Strategy> make_offload(const comm::Group& group, const LanguageModel& model,
                                       const TrainOptions& options, at::Device device);
std::unique_ptr<Strategy> make_nodes_apart(const comm::Group& group, const LanguageModel& model,
                                           const TrainOptions& options);

}  // namespace fairshard::cli::training
