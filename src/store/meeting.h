#pragma once
// Messages between the ranks of a save: keys in the group's store.
//
// Note [Saving beside training]: a save may run on a thread of its own while training goes on, so
// it must not use the group's collectives, which need one order on all ranks. Nor may it block in
// the store, whose connection the training thread shares: it asks again and again, briefly. A rank
// that fails says so under the key that others wait for; one that dies is noticed by the timeout.

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}  // namespace c10d

namespace fairshard::store {

/// How long ranks wait for each other.
struct Patience {
  /// At most.
  std::chrono::milliseconds timeout;
  /// Becomes true when the Saver is at its end, and waits for nothing else.
  const std::atomic<bool>& is_ending;
  /// From then on: how long, while `progress` stays the same.
  std::chrono::milliseconds linger;
  std::function<int64_t()> progress;
};

/// Messages of one save or load. Names of topics are used once.
class Meeting {
 public:
  /// `store` may be null if there is one rank.
  Meeting(c10::intrusive_ptr<c10d::Store> store, int rank, int ranks, Patience patience);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  /// To rank 0, which gets it by gather(). On rank 0: nothing.
  void send(const std::string& topic, const std::string& text);
  void send_error(const std::string& topic, const std::string& reason);
  /// On rank 0: what every rank has sent. Throws as soon as one of them is an error.
  std::vector<std::string> gather(const std::string& topic);

  /// From rank 0 to all others, which get it by recv().
  void broadcast(const std::string& topic, const std::string& text = "");
  void broadcast_error(const std::string& topic, const std::string& reason);
  /// Waits for what rank 0 broadcasts. Throws if that is an error. On rank 0: nothing.
  std::string recv(const std::string& topic);
  /// Whether rank 0 has done so already.
  bool has_broadcast(const std::string& topic);

  /// Returns when all ranks have agreed; throws if one has objected. Topics are "agreed" and "all".
  void agree();
  /// Instead of agree(), on a rank that has met something.
  void object(const std::string& reason);

 private:
  struct Message {
    char kind;
    std::string text;
  };

  void post(const std::string& key, char kind, const std::string& text);
  Message read(const std::string& key);
  /// Throws if it is an error.
  static std::string text_of(const Message& message, int sender);
  /// Removes it, so that a long run does not fill the store. Who reads it last does so.
  void erase(const std::string& key);
  /// Calls `is_done` until it is true. `awaited` says for whom it waits.
  template <typename IsDone, typename Awaited>
  void wait_until(IsDone is_done, Awaited awaited);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int ranks_;
  Patience patience_;
};

}  // namespace fairshard::store
