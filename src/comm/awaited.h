#pragma once
// Whom a collective under way is waiting for, to be read by another thread.

#include <atomic>
#include <cstdint>

namespace fairshard::comm {

/// What a rank waits for in a collective.
enum class Awaits : int8_t {
  kNothing,
  kHeader,   ///< that the peer comes to it: the first message of all
  kMessage,  ///< the peer's part of the data
  kSent,     ///< that the peer has taken this rank's part
};

/// One thread writes it, for each message: it costs a store.
class Awaited {
 public:
  struct Value {
    Awaits what = Awaits::kNothing;
    int peer = -1;
  };

  void set(Awaits what, int peer) {
    packed_.store(peer * 4 + static_cast<int>(what), std::memory_order_relaxed);
  }
  void clear() { packed_.store(0, std::memory_order_relaxed); }
  Value get() const {
    const int packed = packed_.load(std::memory_order_relaxed);
    const auto what = static_cast<Awaits>(packed % 4);
    return {what, what == Awaits::kNothing ? -1 : packed / 4};
  }

 private:
  std::atomic<int> packed_ = 0;
};

}  // namespace fairshard::comm
