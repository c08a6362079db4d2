#pragma once
// What a Work holds.

#include "group_state.h"
#include <fairshard/comm/work.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <string>

namespace fairshard::comm {

struct Work::State {
  State() = default;
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::shared_ptr<Group::State> group;
  c10::intrusive_ptr<c10d::Work> work;
  /// The collective and its label, for profilers.
  std::string name;
  /// See Group::State::Route.
  bool tells_completion = false;
  /// In the group's last_calls, if it is there.
  LastCalls::Number number = 0;
  /// Where the backend has its result.
  c10::DeviceType device = c10::DeviceType::CPU;
  /// What the result is copied to from where it arrives, if those are not the same.
  at::Tensor result;
  at::Tensor arrival;
};

}  // namespace fairshard::comm
