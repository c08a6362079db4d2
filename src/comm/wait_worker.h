#pragma once
// The thread's side of a WaitBoard.

#include "wait_requests.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace fairshard::comm {

/// Note [Left boards]: the thread may be in a call of a store, for ever, when the board is
/// destroyed. So it has a connection of its own, keeps what it needs alive by itself, and looks
/// before and after each call whether it was left; then it ends.
class WaitWorker {
 public:
  explicit WaitWorker(std::shared_ptr<WaitRequests> shared) : shared_(std::move(shared)) {}

  /// Returns when the board was left, or the store has failed.
  void run();

 private:
  using Clock = std::chrono::steady_clock;
  using Duration = WaitRequests::Duration;

  /// A table that another rank is about to log.
  struct AwaitedTable {
    uint64_t log = 0;    ///< its number
    uint64_t moves = 0;  ///< of this rank, when it heard of it
    Clock::time_point since;
  };

  /// What a round is begun for.
  struct Purpose {
    uint64_t covers = 0;
    bool is_for_log = false;
    uint64_t log = 0;  ///< the table's number
  };

  template <typename Function>
  auto in_store(const Function& function);
  void require_board() const;
  void wait();
  void pause(Duration time);
  WaitNote make_note();
  WaitRequests::Pace pace() const;
  std::optional<std::string> read(const std::string& key);
  void write(const std::string& key, const std::string& text);

  uint64_t read_number(const std::string& key);
  void answer();
  void write_note(uint64_t round);
  void await_told(uint64_t log);
  bool is_being_told();
  void receive_told();
  void ask();
  void explain_wait();
  uint64_t claim_log(const std::string& newest);
  void begin_round(const Purpose& purpose);
  WaitRound collect(uint64_t round);
  bool read_notes(WaitRound& found, uint64_t round, const Whereabouts& own);

  const std::shared_ptr<WaitRequests> shared_;
  c10::intrusive_ptr<c10d::Store> store_;
  /// The newest round that this rank has answered.
  uint64_t answered_ = 0;
  std::optional<AwaitedTable> awaited_;
};

}  // namespace fairshard::comm
