#pragma once
// What the system may answer late, or never: a resolver without a server, a disk behind a network.

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace fairshard::cli::doctor {

/// The result of `fn`, or nothing if there is none in time: then it goes on by itself, so it owns
/// all that it needs. Throws what it throws.
template <typename Function>
auto within(double seconds, Function fn) -> std::optional<decltype(fn())> {
  using Result = decltype(fn());
  const auto promise = std::make_shared<std::promise<Result>>();
  auto future = promise->get_future();
  std::thread([promise, fn = std::move(fn)] {
    try {
      promise->set_value(fn());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (future.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready) {
    return std::nullopt;
  }
  return future.get();
}

}  // namespace fairshard::cli::doctor
