#pragma once
// What a WaitBoard is asked for, and what its thread has found.

#include "wait_table.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace fairshard::comm {

/// Under the mutex, but for what is constant.
struct WaitRequests {
  using Duration = std::chrono::steady_clock::duration;
  using MakeNote = std::function<WaitNote()>;

  /// How patient a rank is with the others.
  struct Pace {
    Duration period;    ///< between looks for rounds of others
    Duration patience;  ///< with a rank that does not answer
  };

  /// What a round has brought, or what another rank has told.
  struct Outcome {
    WaitReport report;
    /// Requests up to this one are answered.
    uint64_t covers = 0;
    /// Whether this process shall log it.
    bool is_for_log = false;
    /// WaitBoard::note_move() was called so often before.
    uint64_t moves = 0;
  };

  WaitRequests(c10::intrusive_ptr<c10d::Store> store, int own_rank, int ranks)
      : given(std::move(store)), rank(own_rank), size(ranks) {}

  const c10::intrusive_ptr<c10d::Store> given;
  const int rank;
  const int size;

  std::mutex mutex;
  std::condition_variable wake;
  MakeNote make_note;
  Pace pace{std::chrono::seconds(1), std::chrono::seconds(4)};
  bool is_left = false;
  bool is_looking = false;
  /// Set while the thread is in a call of the store.
  std::optional<std::chrono::steady_clock::time_point> in_store_since;

  /// The newest request, the newest one whose table belongs into the log, and the newest one that a
  /// round was begun for.
  uint64_t asked = 0;
  uint64_t asked_for_log = 0;
  uint64_t begun = 0;
  /// Whether a long wait is to be explained.
  bool waits_long = false;
  uint64_t moves = 0;
  std::deque<Outcome> outcomes;
  std::string failure;
};

}  // namespace fairshard::comm
