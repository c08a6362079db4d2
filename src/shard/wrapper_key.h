#pragma once
// The dispatch key of tensors that stand for values which are elsewhere or on their way.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>

namespace fairshard::shard {

/// Of the keys that no part of torch uses, the one meant for wrappers. See Note [Handles in .grad]
/// and Note [Reading what is being gathered].
constexpr auto kWrapperKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// Runs an operator that was called with handles on sharded gradients, or refuses to.
void run_with_handles(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace fairshard::shard
