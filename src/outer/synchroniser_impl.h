#pragma once
// What a Synchroniser is made of.

#include "layout.h"
#include "push_sum.h"
#include "schedule.h"
#include <fairshard/outer/synchroniser.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fairshard::outer {

class Synchroniser::Impl {
 public:
  /// `is_partitioned`: parameters are slices that this rank owns, and no other of its node.
  Impl(Nodes nodes, const OuterOptions& options, bool is_partitioned);

  StepResult step(const StepInput& input);
  bool is_due() const;
  void average(const std::vector<at::Tensor>& masters);
  void add(const Parameters& parameters);
  void add(const std::vector<NodeSlice>& slices);
  bool is_trained(size_t parameter) const { return wholes_[parameter].requires_grad(); }
  OuterState state();
  void load_state(const OuterState& state);

  Nodes nodes;
  OuterOptions options;
  Parameters parameters;
  std::unique_ptr<PushSum> gossip;
  OuterReport report;

 private:
  friend class Synchroniser;

  /// How many ranks of a node divide each of its buckets, and which of them this is.
  int parts() const { return is_partitioned_ ? 1 : nodes.intra_node().size(); }
  int part() const { return is_partitioned_ ? 0 : nodes.intra_node().rank(); }

  void take(const Parameters& more, const std::vector<at::Tensor>& wholes);
  std::vector<int> changed_fragments(int64_t call) const;
  void check_input(const StepInput& input) const;
  void make_buffers(OuterBucket& bucket);
  bool has_trained(const OuterBucket& bucket) const;
  bool needs_sync(OuterBucket& bucket) const;
  bool sends_differences() const;
  std::string label_of(const OuterBucket& bucket) const;
  at::Device state_device(const OuterBucket& bucket) const;
  at::Tensor own_outer(const OuterBucket& bucket) const;

  void step_locally(const StepInput& input, StepResult& result);
  void step_gossip(const StepInput& input, StepResult& result);
  void start_average(OuterBucket& bucket, const at::Tensor& own);
  at::Tensor finish_average(OuterBucket& bucket);
  void take_slow_step(OuterBucket& bucket, const at::Tensor& average, const StepInput& input,
                      StepResult& result);
  void take_average(OuterBucket& bucket, const at::Tensor& average, const StepInput& input);
  at::Tensor gather(const OuterBucket& bucket, const at::Tensor& own) const;
  void average_buffers(const std::vector<at::Tensor>& buffers) const;

  std::map<std::string, at::Tensor> named_buffers() const;

  bool is_partitioned_;
  /// What the user has of each parameter.
  std::vector<at::Tensor> wholes_;
  Schedule schedule_;
  std::unique_ptr<OuterOptimizer> optimizer_;
  std::vector<OuterBucket> buckets_;
};

}  // namespace fairshard::outer
