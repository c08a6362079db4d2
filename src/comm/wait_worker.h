#pragma once
// The thread's side of a WaitBoard.

#include "wait_table.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace fairshard::comm {

/// What the thread and the board have in common. Under the mutex, but for what is constant.
struct BoardState {
  using Duration = std::chrono::steady_clock::duration;

  BoardState(c10::intrusive_ptr<c10d::Store> store, int own_rank, int ranks)
      : given(std::move(store)), rank(own_rank), size(ranks) {}

  const c10::intrusive_ptr<c10d::Store> given;
  const int rank;
  const int size;

  std::mutex mutex;
  std::condition_variable wake;
  std::function<WaitNote()> make_note;
  bool is_left = false;
  /// Whether the thread is in a call of the store.
  bool is_in_store = false;
  Duration period{};
  std::optional<Duration> wanted;  ///< the patience of a question to be asked
  std::optional<WaitReport> report;
  std::string failure;
};

/// Note [Left boards]: the thread may be in a call of a store, for ever, when the board is
/// destroyed. So it has a connection of its own, keeps what it needs alive by itself, and looks
/// before and after each call whether it was left; then it ends.
class WaitWorker {
 public:
  explicit WaitWorker(std::shared_ptr<BoardState> shared) : shared_(std::move(shared)) {}

  /// Returns when the board was left, or the store has failed.
  void run();

 private:
  using Clock = std::chrono::steady_clock;
  using Duration = BoardState::Duration;

  template <typename Function>
  auto in_store(const Function& function);
  void require_board() const;
  std::optional<Duration> wait();
  void pause(Duration time);
  WaitNote make_note();
  std::optional<std::string> read(const std::string& key);
  std::optional<WaitNote> read_note(const std::string& key);
  void write(const std::string& key, const std::string& text);

  void answer_questions();
  void ask(Duration patience);
  WaitRound collect(const WaitNote& before, Duration patience);
  bool ask_all(WaitRound& round, const Whereabouts& own);
  void receive_report();
  void publish(WaitReport report);

  const std::shared_ptr<BoardState> shared_;
  c10::intrusive_ptr<c10d::Store> store_;
  int64_t next_ = 1;
  /// Another rank's question that this one has answered.
  std::optional<int64_t> awaited_report_;
  Clock::time_point awaited_since_;
};

}  // namespace fairshard::comm
