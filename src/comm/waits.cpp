#include "group_state.h"
#include "wait_signal.h"
#include <fairshard/comm/seconds.h>
#include <fairshard/comm/waits.h>

namespace fairshard::comm {

double waited_s(const Group& group) { return static_cast<double>(group.state().waited_ns) / 1e9; }

std::string explain_waits(const Group& group) {
  group.state().require_member("explain_waits");
  WaitWatch* const watch = group.state().watch.get();
  return watch ? watch->explain() : "a group of one rank, which waits for nobody";
}

void explain_waits_after(const Group& group, double seconds) {
  const auto limit = to_timeout(seconds, "seconds");
  group.state().require_member("explain_waits_after");
  if (WaitWatch* const watch = group.state().watch.get()) {
    watch->set_limit(limit);
  }
}

void explain_waits_on_signal(int signal) { count_wait_signal(signal); }

void note_step(const Group& group, int64_t step) {
  if (WaitWatch* const watch = group.state().watch.get()) {
    watch->note_step(step);
  }
}

}  // namespace fairshard::comm
