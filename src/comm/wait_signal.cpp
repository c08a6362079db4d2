#include "wait_signal.h"

#include <c10/util/Exception.h>

#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace fairshard::comm {
namespace {

// What the handler can reach: it has no object.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<int64_t> heard_signals = 0;
std::atomic<int> chosen_signal = 0;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)
static_assert(std::atomic<int64_t>::is_always_lock_free);

void count_signal(int) { heard_signals.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

int64_t wait_signals() { return heard_signals.load(std::memory_order_relaxed); }

int wait_signal() { return chosen_signal; }

void count_wait_signal(int signal) {
  struct sigaction action {};
  action.sa_handler = count_signal;
  action.sa_flags = SA_RESTART;
  TORCH_CHECK_VALUE(sigaction(signal, &action, nullptr) == 0, "signal ", signal,
                    " cannot be handled: ", std::strerror(errno));
  chosen_signal = signal;
}

}  // namespace fairshard::comm
