#pragma once
// Activation checkpointing: memory for activations is given up in forward, and time is spent in
// backward to compute them again.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
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

// Tensors of a value, in order: of a tensor, a vector of them, or a tuple of what has them.

inline void flatten(const at::Tensor& tensor, TensorVector& into) { into.push_back(tensor); }
inline void flatten(const TensorVector& tensors, TensorVector& into) {
  into.insert(into.end(), tensors.begin(), tensors.end());
}
template <typename T>
void flatten(const T&, TensorVector&) {}
template <typename... Items>
void flatten(const std::tuple<Items...>& items, TensorVector& into) {
  std::apply([&](const auto&... each) { (flatten(each, into), ...); }, items);
}

// And back: the same value with the next tensors in it.

inline void refill(at::Tensor& tensor, TensorVector::const_iterator& next) { tensor = *next++; }
inline void refill(TensorVector& tensors, TensorVector::const_iterator& next) {
  for (auto& tensor : tensors) {
    refill(tensor, next);
  }
}
template <typename T>
void refill(T&, TensorVector::const_iterator&) {}
template <typename... Items>
void refill(std::tuple<Items...>& items, TensorVector::const_iterator& next) {
  std::apply([&](auto&... each) { (refill(each, next), ...); }, items);
}

}  // namespace detail

/// Returns fn(inputs...), and runs it again in backward instead of keeping what it saved. The
/// random numbers and the autocast state of the second run are those of the first, so gradients are
/// bit for bit those of a plain call. Inputs and result may be tensors, vectors of tensors, tuples
/// of these, and anything else, which is passed on. `fn` may use parameters and may itself
/// checkpoint. What it refers to must live until backward. Gradients of parameters arrive as in any
/// backward, so a ShardedDataParallel sees them.
template <typename Function, typename... Inputs>
auto checkpoint(Function fn, Inputs... inputs) {
  using Result = std::invoke_result_t<Function&, Inputs&...>;
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
