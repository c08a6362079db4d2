#pragma once
// What belongs to one process: threads, and connections to others.

#include <unistd.h>

#include <memory>
#include <utility>

namespace fairshard::comm {

/// Destroys an object in the process that has made it, and nowhere else. A process that was forked
/// has the memory of its parent's threads but not the threads: to end them would wait for ever, and
/// to close connections properly would close the parent's. There the object is left as it is; the
/// end of the process takes its memory.
struct DeleteInOwnProcess {
  /// Who has made it.
  pid_t process = getpid();

  /// Whether this is that process.
  bool is_own_process() const { return getpid() == process; }

  /// Destroys it, or leaves it.
  template <typename T>
  void operator()(T* object) const {
    if (is_own_process()) {
      delete object;
    }
  }
};

/// Something that belongs to one process.
template <typename T>
using ProcessOwned = std::unique_ptr<T, DeleteInOwnProcess>;

/// Makes it, for the process that calls this.
template <typename T, typename... Arguments>
ProcessOwned<T> make_process_owned(Arguments&&... arguments) {
  return ProcessOwned<T>(new T(std::forward<Arguments>(arguments)...));
}

}  // namespace fairshard::comm
