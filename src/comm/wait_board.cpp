#include "wait_board.h"

#include "wait_worker.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <pthread.h>

#include <utility>

namespace fairshard::comm {
namespace {

/// For how long the destructor waits for a store.
constexpr std::chrono::seconds kGrace(1);

}  // namespace

WaitBoard::WaitBoard(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : shared_(std::make_shared<WaitRequests>(std::move(store), rank, size)) {}

WaitBoard::~WaitBoard() {
  if (!thread_.joinable()) {
    return;
  }
  bool is_in_store = false;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->is_left = true;
    shared_->wake.notify_all();
    is_in_store = !shared_->wake.wait_for(lock, kGrace, [&] { return !shared_->in_store_since; });
  }
  if (is_in_store) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void WaitBoard::start() {
  if (!thread_.joinable()) {
    thread_ = std::thread([shared = shared_] {
      pthread_setname_np(pthread_self(), "fairshard-board");
      WaitWorker(shared).run();
    });
  }
}

void WaitBoard::set_note(WaitRequests::MakeNote make_note) {
  const std::lock_guard lock(shared_->mutex);
  shared_->make_note = std::move(make_note);
}

void WaitBoard::set_pace(Pace pace) {
  const std::lock_guard lock(shared_->mutex);
  shared_->pace = pace;
}

void WaitBoard::look(bool is_looking) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (std::exchange(shared_->is_looking, is_looking) == is_looking) {
      return;
    }
    shared_->wake.notify_all();
  }
  if (is_looking) {
    start();
  }
}

void WaitBoard::ask(uint64_t request, bool is_for_log) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->asked = request;
    shared_->asked_for_log = is_for_log ? request : shared_->asked_for_log;
    shared_->wake.notify_all();
  }
  start();
}

void WaitBoard::explain_wait() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->waits_long = true;
    shared_->wake.notify_all();
  }
  start();
}

uint64_t WaitBoard::note_move() {
  const std::lock_guard lock(shared_->mutex);
  shared_->waits_long = false;
  return ++shared_->moves;
}

std::optional<WaitBoard::Outcome> WaitBoard::take() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->outcomes.empty()) {
    return std::nullopt;
  }
  Outcome outcome = std::move(shared_->outcomes.front());
  shared_->outcomes.pop_front();
  return outcome;
}

std::string WaitBoard::failure() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->failure;
}

WaitBoard::Duration WaitBoard::time_in_store() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->in_store_since ? std::chrono::steady_clock::now() - *shared_->in_store_since
                                 : Duration::zero();
}

bool can_be_asked(c10d::Store& store) {
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(&store)) {
    return can_be_asked(*prefixed->getUnderlyingNonPrefixStore());
  }
  return dynamic_cast<c10d::HashStore*>(&store) || dynamic_cast<c10d::FileStore*>(&store) ||
         dynamic_cast<c10d::TCPStore*>(&store);
}

}  // namespace fairshard::comm
