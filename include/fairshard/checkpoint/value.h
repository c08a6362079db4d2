#pragma once
// Plain values in a checkpoint: numbers, strings, and vectors of them.

#include <c10/util/Exception.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace fairshard {

namespace detail {

template <typename T, typename... Others>
concept OneOf = (std::same_as<T, Others> || ...);

/// Characters are numbers to C++, but hardly to a reader of a checkpoint. A long double would come
/// back rounded: files have doubles.
template <typename T>
concept SingleValue =
    !std::is_const_v<T> &&
    ((std::integral<T> && !OneOf<T, char, wchar_t, char8_t, char16_t, char32_t>) ||
     OneOf<T, float, double, std::string>);

template <typename T>
struct IsValueVector : std::false_type {};
template <SingleValue T>
struct IsValueVector<std::vector<T>> : std::true_type {};

/// As JSON knows it.
using Scalar = std::variant<bool, int64_t, uint64_t, double, std::string>;

/// A value of any such type; `what` names it in errors.
struct ValueAccess {
  bool is_vector = false;
  std::function<std::vector<Scalar>()> get;
  std::function<void(const std::vector<Scalar>&, const std::string& what)> set;
};

/// How it stands in messages.
std::string text_of(const Scalar& scalar);

template <SingleValue T>
Scalar to_scalar(const T& value) {
  if constexpr (std::same_as<T, bool> || std::same_as<T, std::string>) {
    return value;
  } else if constexpr (std::floating_point<T>) {
    return static_cast<double>(value);
  } else if constexpr (std::unsigned_integral<T>) {
    return static_cast<uint64_t>(value);
  } else {
    return static_cast<int64_t>(value);
  }
}

/// Refuses what is of another kind, or does not fit.
template <SingleValue T>
T from_scalar(const Scalar& scalar, const std::string& what) {
  return std::visit(
      [&](const auto& value) -> T {
        using From = std::decay_t<decltype(value)>;
        constexpr bool kIsNumber = std::is_arithmetic_v<T> && !std::same_as<T, bool>;
        constexpr bool kWasNumber = std::is_arithmetic_v<From> && !std::same_as<From, bool>;
        if constexpr (std::same_as<From, T>) {
          return value;
        } else if constexpr (std::floating_point<T> && kWasNumber) {
          return static_cast<T>(value);
        } else if constexpr (kIsNumber && kWasNumber && std::integral<From>) {
          TORCH_CHECK_VALUE(std::in_range<T>(value), what, " is ", value, ", which does not fit");
          return static_cast<T>(value);
        } else {
          TORCH_CHECK_VALUE(false, what, " is ", text_of(scalar), ", which is of another kind");
        }
      },
      scalar);
}

template <SingleValue T>
ValueAccess access_to(T* value) {
  return {false, [value] { return std::vector<Scalar>{to_scalar(*value)}; },
          [value](const std::vector<Scalar>& scalars, const std::string& what) {
            *value = from_scalar<T>(scalars.at(0), what);
          }};
}

template <SingleValue T>
ValueAccess access_to(std::vector<T>* values) {
  return {true,
          [values] {
            std::vector<Scalar> scalars;
            for (auto&& value : *values) {
              scalars.push_back(to_scalar<T>(value));
            }
            return scalars;
          },
          [values](const std::vector<Scalar>& scalars, const std::string& what) {
            std::vector<T> taken;
            for (const Scalar& scalar : scalars) {
              taken.push_back(from_scalar<T>(scalar, what));
            }
            *values = std::move(taken);
          }};
}

}  // namespace detail

/// A bool, a whole number of any size, a float or double, a std::string, or a std::vector of one of
/// these.
template <typename T>
concept CheckpointValue = detail::SingleValue<T> || detail::IsValueVector<T>::value;

}  // namespace fairshard
