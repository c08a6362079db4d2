#pragma once
// Where ranks ask each other, over their process group's store, what they wait for.

#include "wait_requests.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace fairshard::comm {

/// Note [Rounds of waits]: the store has four kinds of keys, and their number never grows:
///
///   round        how many rounds were begun. Whoever wants to know something adds one, and the
///                number that comes back is the number of its own round.
///   note/<rank>  the newest round that this rank has seen, and a WaitNote that it made after that
///   log          the number of the newest table that somebody has begun to make for a log
///   told         the number of the newest one that is made, and that table
///
/// A rank answers all rounds up to the newest at once. So there is nothing to claim, and nobody
/// depends on who else asks: any number of ranks may ask at the same time, each reads the notes by
/// itself until all are of its own round or of a later one, and goes on answering meanwhile. If an
/// asker is stopped or dies, no other one notices.
///
/// In a process, requests are numbered. A round covers those that came before it began; one that
/// comes while a round is under way has the next round begin after that. So each request is
/// followed by a round that began after it, whatever else happens: none can be lost, and those
/// that come together share a round.
///
/// A rank that has ended, or is stopped, is waited for only if nobody can see that (on another
/// machine), and then for the patience of a Pace. An asker that has gone on says so and ends its
/// round. Notes of older rounds tell where a rank runs, and nothing else.
///
/// A long wait is noticed by many ranks at the same time. One of them shall log the table, and all
/// shall know it, for their errors. So a rank that notices one first looks whether the newest `log`
/// is still to be `told`; then it waits for that. Else it claims the next number, in one atomic
/// step, in which one rank succeeds. If that rank dies before it tells, the others claim the next
/// number when their patience is over. What is told of is known to a rank only if it has answered
/// the round in the same wait: the table of an older wait explains nothing.
///
/// Nothing of it is done in a signal handler, which only counts (wait_signal.h).
class WaitBoard {
 public:
  using Duration = WaitRequests::Duration;
  using Pace = WaitRequests::Pace;
  using Outcome = WaitRequests::Outcome;

  /// `store` is this group's alone.
  WaitBoard(c10::intrusive_ptr<c10d::Store> store, int rank, int size);
  /// Does all of that by a thread of its own, which is started when it is first needed: a store may
  /// block for as long as it likes, since the process that serves it may be stopped. Nobody waits
  /// for that thread but the destructor, for a second: then it is left to itself, and touches
  /// nothing but its own memory from then on.
  ~WaitBoard();
  WaitBoard(const WaitBoard&) = delete;
  WaitBoard& operator=(const WaitBoard&) = delete;

  /// What this rank answers. Called by the thread, and blocks on no peer. To be set first.
  void set_note(WaitRequests::MakeNote make_note);
  void set_pace(Pace pace);
  /// Has the thread write where this rank runs, if it has not yet.
  void start();
  /// Whether to look for rounds of others.
  void look(bool is_looking);
  /// Has a round begin after this call. Requests are numbered from 1 on.
  void ask(uint64_t request, bool is_for_log);
  /// Has a long wait explained in some rank's log.
  void explain_wait();
  /// This rank has gone on: what was to be said of a wait is of no interest now. Returns how often
  /// that has happened.
  uint64_t note_move();

  /// The oldest outcome that was not taken yet.
  std::optional<Outcome> take();
  /// Why the thread has given up, if so.
  std::string failure() const;
  /// For how long it has been in a call of the store.
  Duration time_in_store() const;

 private:
  std::shared_ptr<WaitRequests> shared_;
  std::thread thread_;
};

/// Whether a store can be used by a thread that may outlive it: one that is written in Python
/// cannot.
bool can_be_asked(c10d::Store& store);

}  // namespace fairshard::comm
