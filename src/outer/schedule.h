#pragma once
// At which calls what is due. Calls count from 1.

#include <fairshard/outer/options.h>

namespace fairshard::outer {

class Schedule {
 public:
  explicit Schedule(const OuterOptions& options) : options_(options) {}

  /// Whether a fragment is sent for a slow step. Fragment f of P has its turn (f + 1) / P into
  /// every round, so that with one fragment it is at the multiples of the slow frequency.
  bool is_slow(int64_t call, int fragment) const {
    const int64_t length = options_.slow_frequency();
    const int64_t turn = (fragment + 1) * length / options_.fragments();
    return has_slow_steps() && call >= turn && (call - turn) % length == 0;
  }
  /// Whether a fragment that was sent before is to be taken in.
  bool has_arrived(int64_t call, int fragment) const {
    return options_.delay() > 0 && is_slow(call - options_.delay(), fragment);
  }
  /// Whether an exact average is due that is not part of a slow step. DiLoCo, and whatever is
  /// taken in later, has none.
  bool is_average(int64_t call) const {
    return options_.base() == BaseAlgorithm::kLocalSgd &&
           options_.optimizer() != OuterOptimizerKind::kNesterov && options_.fragments() == 1 &&
           options_.delay() == 0 && call % options_.average_frequency() == 0 && !is_slow(call, 0);
  }
  bool is_mixing(int64_t call) const { return call % options_.gossip_frequency() == 0; }
  /// Whether the last fragment of a round has its turn.
  bool ends_round(int64_t call) const { return is_slow(call, options_.fragments() - 1); }

 private:
  bool has_slow_steps() const { return options_.optimizer() != OuterOptimizerKind::kAverage; }

  OuterOptions options_;
};

}  // namespace fairshard::outer
