#pragma once
// What a Synchroniser is made of.

#include "layout.h"
#include "push_sum.h"
#include "schedule.h"
#include <fairshard/outer/synchroniser.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
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
  bool is_trained(size_t parameter) const { return wholes_[parameter].tensor.requires_grad(); }
  OuterState state();
  void load_state(const OuterState& state);
  std::vector<OuterRange> ranges();
  std::map<std::string, double> scalars();
  std::vector<OuterRange> wanted_ranges();
  void take_range(const OuterRange& range);
  void finish_loading(const std::map<std::string, double>& saved);

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

  /// What the user has of a parameter, and which of its elements this rank works on.
  struct Whole {
    std::string name;
    at::Tensor tensor;
    /// The first of them, if parameters are slices.
    int64_t begin = 0;
  };
  /// What a checkpoint had under way, by field and bucket, until all of it is loaded.
  using Arrived = std::map<std::pair<std::string, size_t>, at::Tensor>;

  void take(const Parameters& more, const std::vector<Whole>& wholes);
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
  void set_counts(const std::map<std::string, double>& scalars);
  void add_ranges(const std::string& field, size_t bucket, const at::Tensor& buffer, bool is_own,
                  std::vector<OuterRange>& result) const;
  void add_kept_ranges(bool is_own, std::vector<OuterRange>& result) const;

  bool is_partitioned_;
  std::vector<Whole> wholes_;
  Arrived arrived_;
  Schedule schedule_;
  std::unique_ptr<OuterOptimizer> optimizer_;
  std::vector<OuterBucket> buckets_;
};

}  // namespace fairshard::outer
