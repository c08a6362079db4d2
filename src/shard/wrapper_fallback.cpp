#include "arriving_values.h"
#include "wrapper_key.h"

#include <algorithm>

namespace fairshard::shard {
namespace {

bool has_handle(const c10::IValue& value) {
  const auto is_handle = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.key_set().has(kWrapperKey);
  };
  if (value.isTensorList()) {
    const auto tensors = value.toTensorVector();
    return std::any_of(tensors.begin(), tensors.end(), is_handle);
  }
  return value.isTensor() && is_handle(value.toTensor());
}

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const bool has_waited = wait_for_arguments(op, *stack);
  const auto arguments = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  if (has_waited && !std::any_of(stack->end() - arguments, stack->end(), has_handle)) {
    op.callBoxed(stack);
  } else {
    run_with_handles(op, *stack);
  }
}

const c10::RegistrationHandleRAII registration = c10::Dispatcher::singleton().registerFallback(
    kWrapperKey, c10::KernelFunction::makeFromBoxedFunction<&run>(),
    "fairshard: sharded gradients, and parameters on their way");

}  // namespace
}  // namespace fairshard::shard
