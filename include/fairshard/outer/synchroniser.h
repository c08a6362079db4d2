#pragma once
// What goes on between nodes: when, what travels, and what becomes of it.

#include <fairshard/outer/nodes.h>
#include <fairshard/outer/options.h>
#include <fairshard/shard/layout.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fairshard::outer {

/// What a call is given, besides the parameters themselves.
struct StepInput {
  /// The inner learning rate of each of parameters(). Slow momentum needs them.
  std::vector<double> learning_rates;
  /// Full-precision values for each of parameters(), if it is those that are trained. They are
  /// synchronised, and parameters become copies of them.
  std::vector<at::Tensor> masters;
  /// Floating-point tensors that are averaged whenever all parameters are (a module's buffers).
  std::vector<at::Tensor> buffers;
};

/// What a call has done.
struct StepResult {
  /// Whether parameters were averaged between nodes.
  bool has_averaged = false;
  /// The parameters (by number) that the outer optimizer has stepped.
  std::vector<size_t> stepped;
  /// The fragments whose parameters may have other values now. The same on all ranks.
  std::vector<int> fragments;
};

/// What this rank owns of a parameter that the ranks of its node partition (an OSS's slice).
struct NodeSlice {
  /// That of the parameter.
  std::string name;
  /// Which of its elements it has, in the order of memory.
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor values;
  /// All of it, which says whether it is trained.
  at::Tensor parameter;
  /// See fragments_of().
  int64_t fragment = 0;
};

/// The fragment of each parameter, when all are divided into so many.
std::vector<int64_t> fragments_of(const std::vector<shard::Parameter>& parameters, int fragments);

/// How often and how much this rank has sent since the beginning.
struct OuterReport {
  int64_t calls = 0;
  int64_t averages = 0;
  int64_t slow_steps = 0;
  uint64_t intra_node_bytes = 0;
  uint64_t inter_node_bytes = 0;
  double intra_node_bytes_per_call() const { return calls ? double(intra_node_bytes) / calls : 0; }
  double inter_node_bytes_per_call() const { return calls ? double(inter_node_bytes) / calls : 0; }
};

/// A range of elements of a parameter, and what this rank keeps for it under a name: for
/// checkpoints that other ranks may load.
struct OuterRange {
  /// "outer", "momentum", "error", "pending", "excess" or "incoming".
  std::string field;
  /// That of the parameter.
  std::string name;
  /// All of it.
  at::Tensor parameter;
  /// Elements in the order of its memory, or else of a row-major tensor of its sizes.
  bool is_in_memory_order = false;
  int64_t begin = 0;
  int64_t end = 0;
  /// Flat, with an element for each.
  at::Tensor values;
  /// Among what this rank keeps.
  size_t bucket = 0;
};

/// Everything that a resumed run needs, as this rank has it.
struct OuterState {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, double> scalars;
};

/// Keeps parameters, which inner steps change on each node by itself, together between nodes. The
/// ranks of a node must have the same parameters and make the same inner steps; then they still
/// have the same, bit for bit, after every call. Or they partition them, and each synchronises the
/// slices that it owns with the ranks that own them on other nodes: then a call sends nothing
/// within a node, and what it has changed is for the caller to gather there.
///
/// Outer parameters start as the parameters are now. A parameter that requires no gradient from the
/// start is the same everywhere, and is left alone until it does require one. All calls but the
/// accessors are collective over all nodes' ranks. Not thread-safe.
class Synchroniser {
 public:
  Synchroniser(Nodes nodes, const std::vector<shard::Parameter>& parameters,
               const OuterOptions& options = {});
  /// With slices for parameters(), where the ranks of a node partition them.
  static std::unique_ptr<Synchroniser> of_slices(Nodes nodes, const std::vector<NodeSlice>& slices,
                                                 const OuterOptions& options);
  ~Synchroniser();
  Synchroniser(const Synchroniser&) = delete;
  Synchroniser& operator=(const Synchroniser&) = delete;

  /// Call it after every inner step. Blocks while it averages or mixes, but not for fragments that
  /// are taken in later.
  StepResult step(const StepInput& input = {});
  /// Whether the next step() reads or changes values. The same on all ranks. Local.
  bool is_due() const;

  /// Makes the parameters (or masters) of all nodes their average now, and counts as no call: one
  /// model everywhere, at the end of training say. Gossip takes in what is under way; fragments
  /// that are, are taken in when their time comes. Blocks.
  void average(const std::vector<at::Tensor>& masters = {});

  /// Takes more parameters, which go by the numbers after the others'.
  void add(const std::vector<shard::Parameter>& parameters);
  void add_slices(const std::vector<NodeSlice>& slices);

  const std::vector<shard::Parameter>& parameters() const;
  /// Whether a parameter requires a gradient now.
  bool is_trained(size_t parameter) const;
  const Nodes& nodes() const;
  const OuterOptions& options() const;
  /// The fragment that a parameter is in.
  int fragment_of(size_t parameter) const;
  bool uses_learning_rates() const;

  int64_t calls() const;
  /// This node's push-sum weight, and the weight that is under way to it.
  double push_sum_weight() const;
  double arriving_push_sum_weight() const;
  OuterReport report() const;

  /// Copies of all buffers and counts. Local, but waits for messages that are under way.
  OuterState state() const;
  /// Takes up a state of the same rank, parameters and options. Local. Parameters are not part of
  /// it: they must be loaded too.
  void load_state(const OuterState& state);

  /// The same by ranges of parameters, for other numbers of nodes and ranks: what there is to save,
  /// and counts. Local, but waits for messages that are under way.
  std::vector<OuterRange> ranges() const;
  std::map<std::string, double> scalars() const;
  /// What there is to load: values are filled by the caller, who then says so of each. What was
  /// under way need not be there. Local.
  std::vector<OuterRange> wanted_ranges();
  static bool is_optional(const std::string& field);
  void take_range(const OuterRange& range);
  /// Ends it. Messages of gossip are taken up with as many nodes as there were.
  void finish_loading(const std::map<std::string, double>& scalars);

 private:
  class Impl;
  explicit Synchroniser(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fairshard::outer
