#include "last_calls.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace fairshard::comm {

LastCalls::Number LastCalls::add(const char* name, const at::Tensor& tensor,
                                 const std::string& label, c10d::Work& work, bool tells) {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[++newest_ % entries_.size()];
  entry.number = newest_;
  entry.name = name;
  entry.dtype = tensor.scalar_type();
  entry.numel = tensor.numel();
  entry.label = label;
  entry.since = now;
  entry.work = &work;
  entry.tells = tells;
  entry.is_waited_for = entry.has_ended = entry.is_on_stream = false;
  moves_ += 1;
  return newest_;
}

LastCalls::Entry* LastCalls::find(Number number) {
  Entry& entry = entries_[number % entries_.size()];
  return number != 0 && entry.number == number ? &entry : nullptr;  // others came since
}

void LastCalls::begin_wait(Number number) {
  const std::lock_guard lock(mutex_);
  if (Entry* const entry = find(number)) {
    entry->is_waited_for = true;
  }
}

void LastCalls::end_wait(Number number, c10::DeviceType device) {
  const std::lock_guard lock(mutex_);
  Entry* const entry = find(number);
  if (!entry || entry->has_ended) {
    return;
  }
  moves_ += 1;
  entry->is_waited_for = false;
  if (device == c10::DeviceType::CPU || !entry->tells) {
    entry->has_ended = !entry->tells;
    return;
  }
  if (!entry->passed) {
    entry->passed.emplace(device, c10::EventFlag::BACKEND_DEFAULT);
  }
  const c10::impl::VirtualGuardImpl guard(device);
  entry->passed->record(guard.getStream(guard.getDevice()));
  entry->is_on_stream = true;
}

void LastCalls::forget(Number number) {
  const std::lock_guard lock(mutex_);
  if (Entry* const entry = find(number)) {
    entry->work = nullptr;
  }
}

bool LastCalls::is_under_way(Entry& entry) {
  if (entry.has_ended) {
    return false;
  }
  if (entry.is_waited_for) {
    return true;
  }
  if (!entry.tells) {
    return false;  // started, and the caller does something else meanwhile
  }
  try {
    // One that was dropped and not waited for is nobody's.
    entry.has_ended =
        entry.is_on_stream ? entry.passed->query() : !entry.work || entry.work->isCompleted();
  } catch (const c10::Error&) {
    entry.has_ended = true;  // the device has failed, as its next user will hear
  }
  moves_ += entry.has_ended ? 1 : 0;
  return !entry.has_ended;
}

NamedCall LastCalls::named(const Entry& entry) {
  const uint64_t sequence = entry.number - 1;
  return {sequence,
          c10::str(entry.name, " #", sequence, " of ", c10::toString(entry.dtype), "[", entry.numel,
                   "]", entry.label.empty() ? "" : " '" + entry.label + "'"),
          entry.since};
}

Standing LastCalls::standing() {
  const std::lock_guard lock(mutex_);
  Standing result;
  result.started = newest_;
  const Number oldest = newest_ - std::min<Number>(newest_, entries_.size()) + 1;
  for (Number number = oldest; number <= newest_ && !result.current; ++number) {
    Entry& entry = entries_[number % entries_.size()];
    if (is_under_way(entry)) {
      result.current = named(entry);
    } else {
      result.last = named(entry);
    }
  }
  result.moves = moves_;
  return result;
}

}  // namespace fairshard::comm
