#pragma once
// The keys of a rendezvous are of no use once all ranks are connected, and a program that makes one
// group after another would fill its store with them.

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fairshard::comm {

/// A store that knows which keys were set through it, and can take them away again.
class OwnKeys : public c10d::PrefixStore {
 public:
  explicit OwnKeys(c10::intrusive_ptr<c10d::Store> store) : PrefixStore("own", std::move(store)) {}

  using PrefixStore::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    keys_.insert(key);
    PrefixStore::set(key, value);
  }
  int64_t add(const std::string& key, int64_t value) override {
    keys_.insert(key);
    return PrefixStore::add(key, value);
  }
  void append(const std::string& key, const std::vector<uint8_t>& value) override {
    keys_.insert(key);
    PrefixStore::append(key, value);
  }
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override {
    keys_.insert(keys.begin(), keys.end());
    PrefixStore::multiSet(keys, values);
  }

  /// To be called when no rank reads them any more.
  void remove() {
    for (const std::string& key : std::exchange(keys_, {})) {
      deleteKey(key);
    }
  }

 private:
  std::set<std::string> keys_;
};

}  // namespace fairshard::comm
