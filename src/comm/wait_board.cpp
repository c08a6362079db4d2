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
    : shared_(std::make_shared<BoardState>(std::move(store), rank, size)) {}

WaitBoard::~WaitBoard() {
  if (!thread_.joinable()) {
    return;
  }
  bool is_in_store = false;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->is_left = true;
    shared_->wake.notify_all();
    is_in_store = !shared_->wake.wait_for(lock, kGrace, [&] { return !shared_->is_in_store; });
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

void WaitBoard::set_note(MakeNote make_note) {
  const std::lock_guard lock(shared_->mutex);
  shared_->make_note = std::move(make_note);
}

void WaitBoard::look_every(Duration period) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (std::exchange(shared_->period, period) == period) {
      return;
    }
    shared_->wake.notify_all();
  }
  if (period != Duration::zero()) {
    start();
  }
}

void WaitBoard::ask(Duration patience) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->wanted = patience;
    shared_->wake.notify_all();
  }
  start();
}

std::optional<WaitReport> WaitBoard::take() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->report, std::nullopt);
}

std::string WaitBoard::failure() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->failure;
}

bool WaitBoard::is_in_store() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->is_in_store;
}

bool can_be_asked(c10d::Store& store) {
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(&store)) {
    return can_be_asked(*prefixed->getUnderlyingNonPrefixStore());
  }
  return dynamic_cast<c10d::HashStore*>(&store) || dynamic_cast<c10d::FileStore*>(&store) ||
         dynamic_cast<c10d::TCPStore*>(&store);
}

}  // namespace fairshard::comm
