#pragma once
// An exponential moving average of a model's weights, which often evaluates better than they do.

#include <fairshard/module/any_module.h>

#include <torch/arg.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fairshard {

/// What an Ema is made with.
struct EmaOptions {
  // Behaviour
  /// How much of the average stays at each update.
  TORCH_ARG(double, decay) = 0.999;
  /// The first averages follow the weights more closely, (1 + n) / (10 + n) at update n at most, so
  /// that the weights of the start are soon forgotten.
  TORCH_ARG(bool, warmup) = false;
};

/// Averages of all floating-point parameters of a module, on every rank, in float32 at least.
/// Buffers are the module's own. A Checkpoint saves it under the parameters' names.
///
///   Ema ema(model);
///   ... optimizer.step(); ema.update();
///   { const auto applied = ema.apply(); evaluate(...); }
class Ema {
 public:
  /// The module, its holder or a shared_ptr, whose parameters stay the same. Begins with its
  /// weights as they are.
  template <AnyModule Module>
  explicit Ema(const Module& module, const EmaOptions& options = {})
      : Ema(module_of(module), options) {}
  /// The same.
  explicit Ema(torch::nn::Module& module, const EmaOptions& options = {});
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  /// Takes in the weights as they are now; call it after each step. Waits for parameters that an
  /// OSS's step has left on their way, and is collective where they stay sharded between steps.
  void update();
  /// How often that was done.
  int64_t updates() const { return updates_; }
  /// For a run that goes on.
  void set_updates(int64_t updates) { updates_ = updates; }

  /// While it lives, the module has the averages in place of its weights; then its own bits again.
  /// To evaluate: nothing may step meanwhile.
  class Applied {
   public:
    /// See apply().
    explicit Applied(Ema& ema) : ema_(ema) { ema_.put_averages(); }
    ~Applied() { ema_.put_back(); }
    Applied(const Applied&) = delete;
    Applied& operator=(const Applied&) = delete;

   private:
    Ema& ema_;
  };
  /// Refuses parameters that are released after their use (OssOptions::release_parameters):
  /// copy_to() another module. Waits as update() does.
  [[nodiscard]] Applied apply();

  /// Gives another module of the same kind the averages, by their names. Local.
  template <AnyModule Module>
  void copy_to(const Module& module) const {
    copy_to(module_of(module));
  }
  /// The same.
  void copy_to(torch::nn::Module& module) const;

  /// By the parameters' names.
  const std::vector<std::pair<std::string, at::Tensor>>& averages() const { return averages_; }

 private:
  void wait_for_parameters() const;
  void put_averages();
  void put_back();

  EmaOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::pair<std::string, at::Tensor>> averages_;
  /// The weights, while the module has the averages.
  std::vector<at::Tensor> set_aside_;
  int64_t updates_ = 0;
};

}  // namespace fairshard
