#pragma once
// Which slot a slice is copied into.

#include <cstdint>
#include <vector>

namespace fairshard::page {

/// A pass over all slices: forward from the first on, backward from the last on.
struct PassState {
  /// How many slices there are.
  int64_t slices = 0;
  bool is_backward = false;
  /// Whether a backward comes after this forward, so that the last slices are needed again first.
  bool comes_back = false;
  /// The slice that computes, or -1 before the first.
  int64_t current = -1;
};

/// A slot for slice `wanted`, given the slice that each one holds (-1: none): an empty slot, or
/// that of the slice which is needed last, never of the one that computes. Slices that were filled
/// ahead, between that one and the wanted one, are kept, unless `must`. -1 if there is no such
/// slot.
int64_t choose_slot(const std::vector<int64_t>& held, const PassState& pass, int64_t wanted,
                    bool must);

}  // namespace fairshard::page
