#pragma once
// The one member of gloo::Context that ProcessGroupGloo.hpp calls inline.
#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
