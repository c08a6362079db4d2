#pragma once
// A TorchScript module as a torch::nn module, so that it can be given to all that takes one.

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <utility>
#include <vector>

namespace fairshard {

/// A torch::jit::Module that trains: its parameters and buffers are registered under their own
/// names, and are the very same tensors, so that what is done to them (a move to another device, a
/// load, an optimizer's step) is done to it.
///
///   JitModule model(torch::jit::load("model.pt"));
///   OSS<AdamW> optimizer(group, model, torch::optim::AdamWOptions(1e-3));
///   ShardedDataParallel parallel(group, model, optimizer);
class JitModuleImpl : public torch::nn::Module {
 public:
  /// Takes its parameters, buffers and submodules.
  explicit JitModuleImpl(torch::jit::Module module);

  /// Runs its forward, which must return a tensor.
  template <typename... Inputs>
  at::Tensor forward(Inputs&&... inputs) {
    return run({torch::jit::IValue(std::forward<Inputs>(inputs))...}, "forward").toTensor();
  }
  /// Runs one of its methods, whatever it returns.
  torch::jit::IValue run(std::vector<torch::jit::IValue> inputs, const std::string& method);

  /// Also of the TorchScript module.
  void train(bool on = true) override;

  /// What is wrapped.
  torch::jit::Module& script() { return script_; }

 private:
  torch::jit::Module script_;
};

/// Its holder.
TORCH_MODULE(JitModule);

}  // namespace fairshard
