#include "files.h"
#include "folder_lock.h"
#include "host_copies.h"
#include "meeting.h"
#include "share.h"
#include "staging.h"
#include <fairshard/comm/reason.h>
#include <fairshard/comm/seconds.h>
#include <fairshard/store/directory.h>
#include <fairshard/store/saver.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <exception>
#include <thread>
#include <utility>

namespace fairshard::store {
namespace {

void write_together(const Staging& staging, int64_t step, const State& state, Meeting& meeting) {
  const std::string file = shard_name(meeting.rank(), meeting.ranks());
  meeting.recv("begin");
  std::string share;
  try {
    share = write_share(state, staging.path() + "/" + file);
  } catch (const std::exception& error) {
    if (meeting.rank() != 0 && meeting.has_broadcast("end")) {
      meeting.recv("end");  // the first failure, of which this is a consequence
    }
    meeting.send_error("share", comm::reason_of(error));
    throw;
  }
  meeting.send("share", share);
  if (meeting.rank() == 0) {
    auto shares = meeting.gather("share");
    shares[0] = std::move(share);
    staging.publish(merge_shares(shares, step));
  }
  meeting.recv("end");
}

/// Rank 0 leads: it makes the temporary folder and publishes it; what it meets is told to all.
void save_as_leader(const std::string& root, int64_t step, const State& state, int64_t keep,
                    Meeting& meeting) {
  const Staging staging(root, step);
  const char* topic = "begin";
  try {
    staging.make();
    meeting.broadcast(topic);
    topic = "end";
    write_together(staging, step, state, meeting);
    meeting.broadcast(topic);
  } catch (const std::exception& error) {
    meeting.broadcast_error(topic, comm::reason_of(error));
    staging.discard();
    throw;
  }
  try {
    prune(root, keep, step);
  } catch (const std::exception& error) {
    TORCH_WARN("step ", step, " was saved, but older checkpoints in ", root,
               " could not be removed: ", comm::reason_of(error));
  }
}

}  // namespace

class Saver::Work {
 public:
  Work(std::optional<comm::Group> group, std::string root, const SaverOptions& options)
      : group_(std::move(group)), root_(std::move(root)), options_(options) {
    TORCH_CHECK_VALUE(!root_.empty(), "the folder for checkpoints has no name");
    TORCH_CHECK_VALUE(!group_ || group_->rank() >= 0,
                      "this process is not in the group that saves checkpoints");
    TORCH_CHECK_VALUE(options.keep() >= 0, "keep is ", options.keep(),
                      ", but must not be negative");
    comm::to_timeout(options.timeout_s());
    comm::to_pause(options.linger_s(), "linger_s");
    if (group_ && group_->size() > 1) {
      store_ = group_->new_store("checkpoints");
    }
  }

  ~Work() {
    is_ending_ = true;
    try {
      wait();
    } catch (const std::exception& error) {
      TORCH_WARN("at the end of a run: ", comm::reason_of(error));
    }
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  const std::string& root() const { return root_; }
  int rank() const { return group_ ? group_->rank() : 0; }
  int ranks() const { return group_ ? group_->size() : 1; }

  /// On rank 0: makes the folder, and takes it for this process.
  void claim() {
    if (!lock_) {
      make_directories(root_);
      lock_ = lock_folder(root_);
    }
  }

  void together(const std::function<void()>& work) {
    Meeting meeting = meet();
    try {
      work();
    } catch (const std::exception& error) {
      meeting.object(comm::reason_of(error));
      throw;
    }
    meeting.agree();
  }

  void run(int64_t step, const State& state) {
    Meeting meeting = meet(step);
    try {
      if (rank() == 0) {
        claim_or_tell(meeting);
        save_as_leader(root_, step, state, options_.keep(), meeting);
      } else {
        write_together(Staging(root_, step), step, state, meeting);
      }
    } catch (const std::exception& error) {
      TORCH_CHECK(false, "step ", step, " was not saved to ", root_, ": ", comm::reason_of(error));
    }
  }

  std::optional<std::string> latest() {
    Meeting meeting = meet();
    std::string found;
    if (rank() == 0) {
      try {
        found = latest_checkpoint(root_).value_or("");
      } catch (const std::exception& error) {
        meeting.broadcast_error("latest", comm::reason_of(error));
        throw;
      }
      meeting.broadcast("latest", found);
    } else {
      found = meeting.recv("latest");
    }
    return found.empty() ? std::nullopt : std::optional(found);
  }

  void start(int64_t step, State state) {
    copies_.take(state);
    is_running_ = true;
    thread_ = std::thread([this, step, state = std::move(state)] {
      try {
        run(step, state);
      } catch (...) {
        error_ = std::current_exception();
      }
      is_running_ = false;
    });
  }

  void wait() {
    if (thread_.joinable()) {
      thread_.join();
    }
    if (const auto error = std::exchange(error_, nullptr)) {
      std::rethrow_exception(error);
    }
  }

  bool is_done() const { return !is_running_; }

 private:
  void claim_or_tell(Meeting& meeting) {
    try {
      claim();
    } catch (const std::exception& error) {
      meeting.broadcast_error("begin", comm::reason_of(error));
      throw;
    }
  }

  /// `step` is that of a save, whose files grow.
  Meeting meet(std::optional<int64_t> step = std::nullopt) {
    const auto written = [this, step] { return step ? Staging(root_, *step).written_bytes() : 0; };
    const std::string name = std::to_string(meetings_++);
    const auto store = store_ ? c10::make_intrusive<c10d::PrefixStore>(name, store_) : nullptr;
    return {store, rank(), ranks(),
            Patience{comm::to_timeout(options_.timeout_s()), is_ending_,
                     comm::to_pause(options_.linger_s(), "linger_s"), written}};
  }

  std::optional<comm::Group> group_;
  std::string root_;
  SaverOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  HostCopies copies_;
  uint64_t meetings_ = 0;
  std::shared_ptr<FolderLock> lock_;
  std::atomic<bool> is_ending_ = false;
  std::atomic<bool> is_running_ = false;
  /// Written by the thread, read after it was joined.
  std::exception_ptr error_;
  std::thread thread_;
};

Saver::Saver(std::optional<comm::Group> group, std::string root, const SaverOptions& options)
    : work_(comm::make_process_owned<Work>(std::move(group), std::move(root), options)) {}

Saver::~Saver() = default;

const std::string& Saver::root() const { return work_->root(); }

State Saver::new_state() const { return State(work_->rank(), work_->ranks()); }

// NOLINTNEXTLINE(performance-unnecessary-value-param): it is let go when the save has ended
void Saver::save(int64_t step, State state) {
  checkpoint_name(step);
  work_->wait();
  work_->run(step, state);
}

void Saver::save_async(int64_t step, State state) {
  checkpoint_name(step);
  work_->wait();
  work_->start(step, std::move(state));
}

void Saver::claim() {
  work_->wait();
  work_->together([this] {
    if (work_->rank() == 0) {
      work_->claim();
    }
  });
}

void Saver::together(const std::function<void()>& work) {
  work_->wait();
  work_->together(work);
}

std::optional<std::string> Saver::latest() {
  work_->wait();
  return work_->latest();
}

void Saver::wait() { work_->wait(); }

bool Saver::is_done() const { return work_->is_done(); }

}  // namespace fairshard::store
