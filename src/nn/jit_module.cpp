#include <fairshard/nn/jit_module.h>

#include <c10/util/Exception.h>

#include <memory>
#include <string>

namespace fairshard {
namespace {

/// A plain module for each in the tree, because names with dots cannot be registered.
void register_all(torch::nn::Module& target, const torch::jit::Module& script) {
  for (const auto& parameter : script.named_parameters(/*recurse=*/false)) {
    target.register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  }
  for (const auto& buffer : script.named_buffers(/*recurse=*/false)) {
    target.register_buffer(buffer.name, buffer.value);
  }
  for (const auto& child : script.named_children()) {
    const auto module = std::make_shared<torch::nn::Module>(child.name);
    register_all(*module, child.value);
    target.register_module(child.name, module);
  }
}

}  // namespace

JitModuleImpl::JitModuleImpl(torch::jit::Module module)
    : torch::nn::Module("JitModule"), script_(std::move(module)) {
  register_all(*this, script_);
  Module::train(script_.is_training());
}

torch::jit::IValue JitModuleImpl::run(std::vector<torch::jit::IValue> inputs,
                                      const std::string& method) {
  const auto found = script_.find_method(method);
  TORCH_CHECK_VALUE(found, "the TorchScript module has no method '", method, "'");
  return (*found)(std::move(inputs));
}

void JitModuleImpl::train(bool on) {
  Module::train(on);
  script_.train(on);
}

}  // namespace fairshard
