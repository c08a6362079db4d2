#pragma once
// The gain of a large batch, from running means of what gradients have shown.

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <optional>

namespace fairshard::scale {

/// What a RunningGain is made with.
struct RunningGainOptions {
  /// The batch is this many times the one that the learning rate was made for.
  TORCH_ARG(double, scale) = 1;
  /// How much of the old means a step keeps, in [0, 1). If not given, max(1 - scale/1000, 0).
  TORCH_ARG(std::optional<double>, smoothing);
  /// Whether means are divided by the weight that they have got so far. If not, they are plain
  /// means of all steps until those are as many as the smoothing looks back on (the paper's way).
  TORCH_ARG(bool, debias) = true;
};

/// Note [Gain]: let g_1 ... g_n be gradients of equal parts of a batch, in one parameter group, and
/// g their mean. With a batch of `scale` times the normal one, the variance of a normal batch's
/// gradient and the square norm of the true gradient are estimated by
///   sigma2 = scale/n * (sum |g_i|^2 - n |g|^2) / (n - 1),   mu2 = |g|^2 - sigma2 / scale,
/// and the gain is (E sigma2 + E mu2) / (E sigma2 / scale + E mu2), between 1 and `scale`, with
/// running means for E (AdaScale, arXiv 2007.05105). So many steps of a normal batch are worth one
/// step of this. A normal batch is n/scale parts, and what a part is does not change during
/// training: when n or `scale` do, the mean of sigma2 is multiplied by what scale/n is multiplied
/// by.
///
/// All values are tensors of one element per parameter group, and nothing here waits for a GPU.
class RunningGain {
 public:
  explicit RunningGain(int64_t groups, const RunningGainOptions& options);

  /// The means after one more step: `part_squares` is sum |g_i|^2, `mean_squares` is |g|^2, `parts`
  /// is n. A group that has no gradient, or none that is finite, keeps its means.
  RunningGain updated(const at::Tensor& part_squares, const at::Tensor& mean_squares,
                      int64_t parts) const;

  /// Of each group, and of all parameters together; 1 before anything is known.
  at::Tensor gains() const;
  at::Tensor gain() const;

  int64_t groups() const { return weights_.numel(); }
  void add_group();
  double scale() const { return options_.scale(); }
  /// `updates_estimate`: the same parts now make up another number of normal batches, so that the
  /// variance of one is another.
  void set_scale(double scale, bool updates_estimate);
  /// A normal batch is made up of another number of parts, and its variance is another by so much.
  void multiply_variances(double factor);
  double smoothing() const;

  /// Three rows: means of sigma2, means of mu2, the weight that each has got (or, without
  /// debiasing, the number of steps).
  at::Tensor state() const;
  void load(const at::Tensor& state);

 private:
  at::Tensor gain_of(const at::Tensor& variance, const at::Tensor& square) const;
  at::Tensor mean_of(const at::Tensor& values) const;

  RunningGainOptions options_;
  at::Tensor variances_;
  at::Tensor squares_;
  at::Tensor weights_;
};

}  // namespace fairshard::scale
