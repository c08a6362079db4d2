#pragma once
// Waits for what other ranks put into a store, where it is no error if they do not.

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

namespace c10d {
class Store;
}  // namespace c10d

namespace fairshard::comm {

/// Whether all keys are in a store, after waiting for them for as long as that. Blocks. Throws what
/// the store throws if it is lost.
bool await_keys(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<std::string>& keys,
                double seconds);

}  // namespace fairshard::comm
