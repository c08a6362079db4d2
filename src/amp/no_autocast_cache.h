#pragma once
// Casts of weights that are not kept.

#include <ATen/autocast_mode.h>

namespace fairshard {

/// While it lives, autocast does not keep its casts of weights to a lower precision until it ends:
/// they would be those of the whole model at once. For this thread.
class NoAutocastCache {
 public:
  NoAutocastCache() { at::autocast::set_autocast_cache_enabled(false); }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool before_ = at::autocast::is_autocast_cache_enabled();
};

}  // namespace fairshard
