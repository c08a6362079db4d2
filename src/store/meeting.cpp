#include "meeting.h"

#include <fairshard/comm/reason.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <thread>
#include <utility>

namespace fairshard::store {
namespace {

/// Stores refuse very long values.
constexpr size_t kChunkBytes = 1 << 20;
constexpr char kGood = 'g';
constexpr char kError = 'e';
constexpr auto kShortestPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::milliseconds(50);

std::string key_of(const std::string& topic, int rank) { return c10::str(topic, "/", rank); }

/// Counts the ranks that have read what rank 0 broadcast.
std::string readers_key(const std::string& topic) { return c10::str(topic, "/readers"); }

std::string chunk_key(const std::string& key, size_t chunk) { return c10::str(key, "/", chunk); }

}  // namespace

Meeting::Meeting(c10::intrusive_ptr<c10d::Store> store, int rank, int ranks, Patience patience)
    : store_(std::move(store)), rank_(rank), ranks_(ranks), patience_(std::move(patience)) {}

void Meeting::post(const std::string& key, char kind, const std::string& text) {
  size_t chunks = 0;
  for (size_t begin = 0; begin < text.size(); begin += kChunkBytes) {
    store_->set(chunk_key(key, chunks++), text.substr(begin, kChunkBytes));
  }
  store_->set(key, c10::str(kind, chunks));
}

void Meeting::erase(const std::string& key) {
  const size_t chunks = std::stoul(store_->get_to_str(key).substr(1));
  for (size_t i = 0; i < chunks; ++i) {
    store_->deleteKey(chunk_key(key, i));
  }
  store_->deleteKey(key);
}

Meeting::Message Meeting::read(const std::string& key) {
  const std::string head = store_->get_to_str(key);
  Message message{head[0], ""};
  const size_t chunks = std::stoul(head.substr(1));
  for (size_t i = 0; i < chunks; ++i) {
    message.text += store_->get_to_str(chunk_key(key, i));
  }
  return message;
}

std::string Meeting::text_of(const Message& message, int sender) {
  TORCH_CHECK(message.kind == kGood, "on rank ", sender, ": ", message.text);
  return message.text;
}

template <typename IsDone, typename Awaited>
void Meeting::wait_until(IsDone is_done, Awaited awaited) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](auto time) { return std::chrono::duration<double>(time).count(); };
  const auto deadline = Clock::now() + patience_.timeout;
  auto last_progress = Clock::now();
  int64_t progress = -1;
  auto pause = kShortestPause;
  while (!is_done()) {
    const auto now = Clock::now();
    const int64_t found = patience_.is_ending ? patience_.progress() : -1;
    if (!patience_.is_ending || found != progress) {
      progress = found;
      last_progress = now;
    }
    TORCH_CHECK(now - last_progress <= patience_.linger, "rank ", rank_, " of ", ranks_,
                " was at its end, and ", seconds(patience_.linger), " s long nothing came from ",
                awaited());
    TORCH_CHECK(now < deadline, "rank ", rank_, " of ", ranks_, " waited ",
                seconds(patience_.timeout), " s for ", awaited());
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

void Meeting::send(const std::string& topic, const std::string& text) {
  if (rank_ != 0) {
    post(key_of(topic, rank_), kGood, text);
  }
}

void Meeting::send_error(const std::string& topic, const std::string& reason) {
  if (rank_ != 0) {
    post(key_of(topic, rank_), kError, reason);
  }
}

std::vector<std::string> Meeting::gather(const std::string& topic) {
  std::vector<std::string> texts(static_cast<size_t>(ranks_));
  std::vector<int> missing;
  for (int rank = 1; rank < ranks_; ++rank) {
    missing.push_back(rank);
  }
  const auto is_done = [&] {
    std::erase_if(missing, [&](int rank) {
      const std::string key = key_of(topic, rank);
      if (!store_->check({key})) {
        return false;
      }
      texts[static_cast<size_t>(rank)] = text_of(read(key), rank);
      erase(key);
      return true;
    });
    return missing.empty();
  };
  wait_until(is_done, [&] {
    std::string list;
    for (const int rank : missing) {
      list += (list.empty() ? "" : ", ") + std::to_string(rank);
    }
    return "rank(s) " + list + ", which did not finish";
  });
  return texts;
}

void Meeting::broadcast(const std::string& topic, const std::string& text) {
  if (ranks_ > 1) {
    post(topic, kGood, text);
  }
}

void Meeting::broadcast_error(const std::string& topic, const std::string& reason) {
  if (ranks_ > 1) {
    post(topic, kError, reason);
  }
}

std::string Meeting::recv(const std::string& topic) {
  if (rank_ == 0) {
    return "";
  }
  wait_until([&] { return store_->check({topic}); }, [] { return "rank 0, which sent nothing"; });
  const Message message = read(topic);
  if (store_->add(readers_key(topic), 1) == ranks_ - 1) {
    erase(topic);
    store_->deleteKey(readers_key(topic));
  }
  return text_of(message, 0);
}

void Meeting::agree() {
  send("agreed", "");
  if (rank_ == 0) {
    try {
      gather("agreed");
    } catch (const std::exception& error) {
      broadcast_error("all", comm::reason_of(error));
      throw;
    }
    broadcast("all");
  }
  recv("all");
}

void Meeting::object(const std::string& reason) {
  send_error("agreed", reason);
  if (rank_ == 0) {
    broadcast_error("all", reason);
  }
}

bool Meeting::has_broadcast(const std::string& topic) {
  return ranks_ > 1 && store_->check({topic});
}

}  // namespace fairshard::store
