#pragma once
// Where ranks ask each other, over their process group's store, what they wait for.

#include "wait_table.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace fairshard::comm {

struct BoardState;

/// Questions are numbered. Whoever wants an answer claims the next one, if nobody has; every rank
/// that sees it writes its WaitNote; the one that asked collects them, and writes the report for
/// all.
///
/// All of that is done by a thread of its own, which is started when it is first needed: a store
/// may block for as long as it likes, since the process that serves it may be stopped. Nobody waits
/// for that thread but the destructor, for a second: then it is left to itself, and touches nothing
/// but its own memory from then on.
class WaitBoard {
 public:
  using Duration = std::chrono::steady_clock::duration;
  using MakeNote = std::function<WaitNote()>;

  /// `store` is this group's alone.
  WaitBoard(c10::intrusive_ptr<c10d::Store> store, int rank, int size);
  ~WaitBoard();
  WaitBoard(const WaitBoard&) = delete;
  WaitBoard& operator=(const WaitBoard&) = delete;

  /// What this rank answers. Called by the thread, and blocks on no peer. To be set first.
  void set_note(MakeNote make_note);
  /// Has the thread write where this rank runs, if it has not yet.
  void start();
  /// Has the thread look for questions of others, this often; 0: not at all.
  void look_every(Duration period);
  /// Has it ask, if nobody else has, and give up on ranks that have not answered after `patience`.
  void ask(Duration patience);

  /// The report on the last question, if it is new.
  std::optional<WaitReport> take();
  /// Why the thread has given up, if so.
  std::string failure() const;
  /// Whether it is in a call of the store just now.
  bool is_in_store() const;

 private:
  std::shared_ptr<BoardState> shared_;
  std::thread thread_;
};

/// Whether a store can be used by a thread that may outlive it: one that is written in Python
/// cannot.
bool can_be_asked(c10d::Store& store);

}  // namespace fairshard::comm
