#pragma once
// Activation checkpointing: memory for activations is given up in forward, and time is spent in
// backward to compute them again.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fairshard {

namespace detail {

using TensorVector = std::vector<at::Tensor>;

/// Runs `fn` on the tensors and keeps nothing of what it saves for backward.
TensorVector checkpoint_tensors(std::function<TensorVector(const TensorVector&)> fn,
                                const TensorVector& inputs);

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

/// Tuples, pairs and arrays.
template <typename T>
concept TupleLike = requires { std::tuple_size<T>::value; };
template <typename T>
concept Range = std::ranges::forward_range<T>;

/// Calls `visit` with each tensor of a value, in order. Classes of which nothing is known are
/// passed over.
template <typename T, typename Visit>
void for_each_tensor(T& value, const Visit& visit) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    visit(value);
  } else if constexpr (IsOptional<Plain>::value) {
    if (value) {
      for_each_tensor(*value, visit);
    }
  } else if constexpr (TupleLike<Plain>) {
    std::apply([&](auto&... items) { (for_each_tensor(items, visit), ...); }, value);
  } else if constexpr (Range<Plain>) {
    if constexpr (!std::is_arithmetic_v<std::ranges::range_value_t<Plain>>) {
      for (auto& item : value) {
        for_each_tensor(item, visit);
      }
    }
  }
}

template <typename T>
constexpr bool finds_all_tensors();

template <typename... Items>
constexpr bool finds_all_tensors_in(const std::tuple<Items...>*) {
  return (finds_all_tensors<Items>() && ...);
}
template <typename First, typename Second>
constexpr bool finds_all_tensors_in(const std::pair<First, Second>*) {
  return finds_all_tensors<First>() && finds_all_tensors<Second>();
}
template <typename T, size_t N>
constexpr bool finds_all_tensors_in(const std::array<T, N>*) {
  return finds_all_tensors<T>();
}

/// Whether for_each_tensor comes to all that a T may hold. What can be copied as bytes holds none.
template <typename T>
constexpr bool finds_all_tensors() {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, at::Tensor> || std::is_trivially_copyable_v<Plain>) {
    return true;
  } else if constexpr (IsOptional<Plain>::value) {
    return finds_all_tensors<typename Plain::value_type>();
  } else if constexpr (TupleLike<Plain>) {
    return finds_all_tensors_in(static_cast<const Plain*>(nullptr));
  } else if constexpr (Range<Plain>) {
    return finds_all_tensors<std::ranges::range_value_t<Plain>>();
  } else {
    return false;
  }
}

template <typename T>
void flatten(const T& value, TensorVector& into) {
  for_each_tensor(value, [&](const at::Tensor& tensor) { into.push_back(tensor); });
}
/// And back: the same value with the next tensors in it.
template <typename T>
void refill(T& value, TensorVector::const_iterator& next) {
  for_each_tensor(value, [&](at::Tensor& tensor) { tensor = *next++; });
}

}  // namespace detail

/// Returns fn(inputs...), and runs it again in backward instead of keeping what it saved. The
/// random numbers and the autocast state of the second run are those of the first, so gradients are
/// bit for bit those of a plain call. Inputs and result may be tensors, vectors, maps, optionals,
/// pairs, arrays and tuples of them, and numbers or strings. An input may be anything else, too,
/// and is passed on; a result may not, because tensors in a class of your own would come without
/// their history. `fn` may use parameters and may itself checkpoint. What it refers to must live
/// until backward. Gradients of parameters arrive as in any backward, so a ShardedDataParallel sees
/// them.
template <typename Function, typename... Inputs>
auto checkpoint(Function fn, Inputs... inputs) {
  using Result = std::invoke_result_t<Function&, Inputs&...>;
  static_assert(
      detail::finds_all_tensors<std::decay_t<Result>>(),
      "checkpoint: the function must return a tensor, or vectors, maps, optionals, pairs, "
      "arrays or tuples of tensors, numbers and strings: tensors in a class of your own "
      "would come without their history");
  auto arguments = std::make_tuple(std::move(inputs)...);
  detail::TensorVector tensors;
  detail::flatten(arguments, tensors);
  // Every run has arguments of its own: those that are kept have no tensors, whose memory would
  // stay for as long as the graph does.
  const detail::TensorVector nothing(tensors.size());
  auto none = nothing.begin();
  detail::refill(arguments, none);
  // The result's own shape (its tuple, the values in it that are no tensors) is that of the first
  // run.
  const auto shape = std::make_shared<std::unique_ptr<std::decay_t<Result>>>();
  auto run = [fn = std::move(fn), arguments, shape](const detail::TensorVector& values) mutable {
    auto own = arguments;
    auto next = values.begin();
    detail::refill(own, next);
    auto result = std::apply(fn, own);
    detail::TensorVector outputs;
    detail::flatten(result, outputs);
    if (!*shape) {
      *shape = std::make_unique<std::decay_t<Result>>(std::move(result));
    }
    return outputs;
  };
  const auto outputs = detail::checkpoint_tensors(std::move(run), tensors);
  auto result = std::move(**shape);
  auto next = outputs.begin();
  detail::refill(result, next);
  return result;
}

}  // namespace fairshard
