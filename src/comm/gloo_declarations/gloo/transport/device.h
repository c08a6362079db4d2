#pragma once
// Opaque handles that ProcessGroupGloo.hpp keeps in smart pointers.

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
