#pragma once
// The last collectives that were started on a backend which is not our own.

#include "standing.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace fairshard::comm {

/// A ring. It keeps no work alive, since works keep tensors: whoever holds one says when it goes. A
/// collective is under way while the host waits for it or, on backends that tell (NCCL), until
/// isCompleted(); and where it is a stream that waits, until the stream has come past that point.
class LastCalls {
 public:
  /// Stands for a collective; 0 for none.
  using Number = uint64_t;

  /// `tells` as in Group::State::Route.
  Number add(const char* name, const at::Tensor& tensor, const std::string& label, c10d::Work& work,
             bool tells);
  /// The host is waiting for it.
  void begin_wait(Number number);
  /// It has what it waited for; if that is on a device, as soon as the current stream is there.
  void end_wait(Number number, c10::DeviceType device);
  /// The work is about to be destroyed.
  void forget(Number number);

  Standing standing();

 private:
  struct Entry {
    Number number = 0;
    const char* name = nullptr;
    at::ScalarType dtype = at::kByte;
    int64_t numel = 0;
    std::string label;
    std::chrono::steady_clock::time_point since;
    /// Null when it was let go.
    c10d::Work* work = nullptr;
    bool tells = false;
    bool is_waited_for = false;
    bool has_ended = false;
    /// On the stream that waits, and whether it was recorded for this collective.
    std::optional<c10::Event> passed;
    bool is_on_stream = false;
  };

  Entry* find(Number number);
  bool is_under_way(Entry& entry);
  static NamedCall named(const Entry& entry);

  std::mutex mutex_;
  std::array<Entry, 128> entries_;
  Number newest_ = 0;
  uint64_t moves_ = 0;
};

}  // namespace fairshard::comm
