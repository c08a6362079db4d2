#pragma once
// One number of all ranks' numbers.

#include <fairshard/comm/group.h>

namespace fairshard::comm {

/// A number, and how much it counts: the mean loss of a batch and its size, say.
struct Weighted {
  /// Weight 1, so that a plain number is one of these.
  Weighted(double value, double weight = 1) : value(value), weight(weight) {}
  /// The number.
  double value;
  /// How much it counts.
  double weight;
};

/// The mean of all ranks' numbers, by their weights; a number of weight 0 does not count, whatever
/// it is. Throws if all weights are 0. The same on all ranks. Collective; blocks.
double mean(const Group& group, const Weighted& own);

}  // namespace fairshard::comm
