#pragma once
// A torch::nn module in each of the ways in which programs hold one: the module itself (`*model`),
// its holder (`model`), or a shared_ptr.

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <memory>
#include <type_traits>

namespace fairshard {

namespace detail {

/// The module's own class, from each of the ways to hold one.
template <typename T>
struct ModuleClass {};
template <typename T>
  requires std::derived_from<T, torch::nn::Module>
struct ModuleClass<T> {
  using Type = T;
};
template <typename T>
  requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>
struct ModuleClass<T> {
  using Type = typename T::ContainedType;
};
template <typename T>
  requires std::derived_from<T, torch::nn::Module>
struct ModuleClass<std::shared_ptr<T>> {
  using Type = T;
};

}  // namespace detail

/// What is or holds a torch::nn module.
template <typename T>
concept AnyModule = requires { typename detail::ModuleClass<std::remove_cvref_t<T>>::Type; };

/// The class of the module that a T is or holds.
template <AnyModule T>
using ModuleClass = typename detail::ModuleClass<std::remove_cvref_t<T>>::Type;

/// The same for modules that are, or derive from, an M.
template <typename T, typename M>
concept AnyModuleOf = AnyModule<T> && std::derived_from<ModuleClass<T>, M>;

/// The module, which lives as long as what is returned. Throws if there is none, or if it is one
/// that nobody holds by a shared_ptr (a module on the stack, for instance).
template <AnyModule T>
std::shared_ptr<ModuleClass<T>> shared_module(const T& held) {
  using Module = ModuleClass<T>;
  std::shared_ptr<Module> module;
  if constexpr (std::derived_from<T, torch::nn::Module>) {
    const auto self = std::const_pointer_cast<torch::nn::Module>(held.weak_from_this().lock());
    module = std::dynamic_pointer_cast<Module>(self);
    TORCH_CHECK_VALUE(module, "the module ", held.name(),
                      " is held by no shared_ptr: make it by its holder or std::make_shared, and "
                      "pass that");
  } else if constexpr (std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>) {
    TORCH_CHECK_VALUE(!held.is_empty(), "the module holder is empty");
    module = held.ptr();
  } else {
    TORCH_CHECK_VALUE(held, "the pointer to a module is null");
    module = held;
  }
  return module;
}

/// The same of one that the caller keeps alive; also a module on the stack.
template <AnyModule T>
torch::nn::Module& module_of(const T& held) {
  if constexpr (std::derived_from<T, torch::nn::Module>) {
    return const_cast<T&>(held);
  } else {
    return *shared_module(held);
  }
}

namespace detail {

/// How a module is kept: by its holder, where that is known, else by a shared_ptr.
template <typename T>
struct KeptModule {
  using Type = std::shared_ptr<fairshard::ModuleClass<T>>;
};
template <typename T>
  requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>
struct KeptModule<T> {
  using Type = T;
};

}  // namespace detail

}  // namespace fairshard
