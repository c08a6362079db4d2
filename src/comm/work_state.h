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
  std::shared_ptr<Group::State> group;
  c10::intrusive_ptr<c10d::Work> work;
  /// The collective and its label, for profilers.
  std::string name;
  /// See Group::State::Route.
  bool tells_completion = false;
  /// What the result is copied to from where it arrives, if those are not the same.
  at::Tensor result;
  at::Tensor arrival;
};

}  // namespace fairshard::comm
