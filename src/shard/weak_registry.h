#pragma once
// Which object has a tensor or another thing, without keeping either alive.

#include <atomic>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace fairshard::shard {

/// Objects by the addresses of what they have. An object keeps these things alive, so that no
/// address stands for two.
template <typename Thing, typename Object>
class WeakRegistry {
 public:
  void add(const Thing* thing, std::weak_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    if (objects_.size() > 2 * swept_size_) {
      sweep();
    }
    objects_[thing] = std::move(object);
    ++version_;
  }

  /// To be called by an object that ends. Another may have taken the thing over since.
  void remove(const Thing* thing) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(thing);
    if (found != objects_.end() && found->second.expired()) {
      objects_.erase(found);
    }
    ++version_;
  }

  std::shared_ptr<Object> find(const Thing* thing) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(thing);
    return found == objects_.end() ? nullptr : found->second.lock();
  }

  /// Grows whenever find() may have another answer.
  int64_t version() const { return version_; }

 private:
  /// Forgets objects that are gone.
  void sweep() {
    for (auto it = objects_.begin(); it != objects_.end();) {
      it = it->second.expired() ? objects_.erase(it) : std::next(it);
    }
    swept_size_ = objects_.size() + 64;
  }

  mutable std::mutex mutex_;
  size_t swept_size_ = 64;
  std::atomic<int64_t> version_ = 0;
  std::unordered_map<const Thing*, std::weak_ptr<Object>> objects_;
};

}  // namespace fairshard::shard
