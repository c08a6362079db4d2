#pragma once
// Averages between nodes, and what they look like on the wire.

#include <fairshard/comm/collectives.h>
#include <fairshard/outer/options.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace fairshard::outer {

/// A flat range's average over nodes that is on its way, or has come.
class PendingAverage {
 public:
  /// One that has come.
  explicit PendingAverage(at::Tensor arrived) : result_(std::move(arrived)) {}

  /// Starts one. In narrow formats `error`, what earlier messages left out, is added to the values,
  /// and becomes what this one leaves out. Does not block; `values` may be changed afterwards.
  PendingAverage(const comm::Group& inter_node, const at::Tensor& values, WireFormat format,
                 const at::Tensor& error, const std::string& label);

  /// Blocks until it has come. The same on all nodes, bit for bit.
  const at::Tensor& wait();

 private:
  comm::Work work_;
  WireFormat format_ = WireFormat::kFloat32;
  /// What was sent; kept until it has gone out.
  at::Tensor sent_;
  /// Messages of all nodes, where they are not summed on the way.
  at::Tensor messages_;
  at::TensorOptions options_;
  int64_t length_ = 0;
  at::Tensor result_;
};

}  // namespace fairshard::outer
