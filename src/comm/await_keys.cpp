#include <fairshard/comm/await_keys.h>
#include <fairshard/comm/seconds.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>

namespace fairshard::comm {

bool await_keys(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<std::string>& keys,
                double seconds) {
  try {
    store->wait(keys, to_timeout(std::max(seconds, 1e-3)));
    return true;
  } catch (const c10::DistStoreError&) {  // the time is over
    return store->check(keys);
  }
}

}  // namespace fairshard::comm
