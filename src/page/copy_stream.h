#pragma once
// Streams and events of whatever device computes. On the CPU, where everything is done when a call
// returns, they do nothing.

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>

namespace fairshard::page {

using Clock = std::chrono::steady_clock;

/// A point in a stream's work that others can wait for, and a time on the CPU.
class Event {
 public:
  Event() = default;
  /// After what the stream has been given up to now. `is_timed` events can be subtracted.
  Event(const c10::Stream& stream, bool is_timed) : time_(Clock::now()) {
    if (!stream.device().is_cpu()) {
      event_ = std::make_shared<c10::Event>(
          stream.device_type(),
          is_timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
      event_->record(stream);
    }
  }

  /// The stream does nothing more before this event.
  void hold(const c10::Stream& stream) const {
    if (event_) {
      event_->block(stream);
    }
  }
  /// The caller waits for it.
  void wait() const {
    if (event_) {
      event_->synchronize();
    }
  }
  /// The same without a busy core, for threads beside others that need it.
  void wait_idly() const {
    while (event_ && !event_->query()) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  /// Both must be timed and over.
  double seconds_since(const Event& earlier) const {
    if (event_) {
      return earlier.event_->elapsedTime(*event_) / 1000;
    }
    return std::chrono::duration<double>(time_ - earlier.time_).count();
  }
  Clock::time_point time() const { return time_; }

 private:
  Clock::time_point time_;
  std::shared_ptr<c10::Event> event_;
};

inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// A stream of our own, for copies in one direction.
class CopyStream {
 public:
  explicit CopyStream(c10::Device device)
      : stream_(device.is_cpu() ? c10::Stream(c10::Stream::DEFAULT, device)
                                : c10::impl::VirtualGuardImpl(device.type()).getNewStream(device)) {
  }

  const c10::Stream& stream() const { return stream_; }

  /// Runs `work` with this stream as the current one.
  template <typename Work>
  void run(const Work& work) const {
    if (stream_.device().is_cpu()) {
      work();
    } else {
      const c10::StreamGuard guard(stream_);
      work();
    }
  }

 private:
  c10::Stream stream_;
};

}  // namespace fairshard::page
