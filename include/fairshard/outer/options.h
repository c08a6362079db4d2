#pragma once
// What happens between nodes, and when. docs/outer.md has the formulas.

#include <torch/arg.h>

#include <cstdint>
#include <string>

namespace fairshard::outer {

/// What nodes do between outer steps.
enum class BaseAlgorithm {
  /// Nodes are on their own between exact averages.
  kLocalSgd,
  /// Stochastic gradient push: nodes mix with one other node at a time (push-sum gossip).
  kSgp,
};

/// What becomes of the nodes' average.
enum class OuterOptimizerKind {
  /// The average of the nodes is taken as it is.
  kAverage,
  /// SlowMo.
  kSlowMomentum,
  /// DiLoCo: Nesterov's momentum on the nodes' average difference.
  kNesterov,
};

/// What travels between nodes.
enum class WireFormat {
  kFloat32,
  /// Differences from the outer parameters, rounded; what rounding left out goes with the next.
  kBFloat16,
  /// The same with a scale for every 256 elements.
  kInt8,
  /// Of every 4096 elements of these differences the 64 largest, in 2 bits and a place each; the
  /// others go with later messages, while they fade.
  kSparse,
};

/// Whom a node of SGP sends to.
enum class GossipGraph {
  /// At the k-th mixing a node sends to the node 2^(k mod log2 N) further on.
  kExponential,
  /// A node sends to the next.
  kRing,
};

/// What a Synchroniser is made with.
struct OuterOptions {
  // Behaviour
  /// What nodes do between outer steps.
  TORCH_ARG(BaseAlgorithm, base) = BaseAlgorithm::kLocalSgd;
  /// What an outer step does.
  TORCH_ARG(OuterOptimizerKind, optimizer) = OuterOptimizerKind::kSlowMomentum;
  /// SlowMo's alpha, or the learning rate of Nesterov's.
  TORCH_ARG(double, learning_rate) = 1.0;
  /// Of slow momentum or of Nesterov's, in [0, 1).
  TORCH_ARG(double, momentum) = 0.5;
  /// The outer optimizer steps at calls that are multiples of this.
  TORCH_ARG(int64_t, slow_frequency) = 48;
  /// Parameters are averaged at calls that are multiples of this (LocalSGD with averaging or slow
  /// momentum).
  TORCH_ARG(int64_t, average_frequency) = 3;

  /// Streaming: parameters are divided into so many fragments, which take turns.
  TORCH_ARG(int, fragments) = 1;
  /// How many calls after it was sent a fragment is taken in; 0 waits for it at once.
  TORCH_ARG(int64_t, delay) = 0;
  /// The weight that a node's own values keep when a fragment is taken in (the paper's alpha).
  TORCH_ARG(double, local_weight) = 0.0;

  /// Whom a node of SGP sends to.
  TORCH_ARG(GossipGraph, graph) = GossipGraph::kExponential;
  /// A message is taken in at the mixing after that which sent it.
  TORCH_ARG(bool, overlap_gossip) = false;
  /// Nodes mix at calls that are multiples of this.
  TORCH_ARG(int64_t, gossip_frequency) = 1;
  /// Whether a slow step of SGP begins with the exact average. If not, every node has slow momentum
  /// of its own.
  TORCH_ARG(bool, average_at_slow_step) = false;

  // Performance
  /// What travels between nodes.
  TORCH_ARG(WireFormat, wire) = WireFormat::kFloat32;
  /// Every rank holds its range of the outer buffers, instead of all.
  TORCH_ARG(bool, shard_buffers) = true;
  /// Outer buffers lie in host memory.
  TORCH_ARG(bool, host_memory) = false;
  /// In about how many pieces parameters are worked on; more need less working memory.
  TORCH_ARG(int, pieces) = 32;
  /// What a piece holds at least, if there is as much.
  TORCH_ARG(int64_t, smallest_piece_bytes) = 256 << 10;
};

/// Throws c10::ValueError that names the option and its value.
void check_options(const OuterOptions& options);

/// Options as they are meant: slow momentum of 0 is averaging. With `is_auto`, slow momentum takes
/// the value that is suggested for so many nodes.
OuterOptions settle_options(const OuterOptions& options, int nodes, bool is_auto = false);

/// What to tell a user who left slow momentum at its default with so many nodes; empty if nothing.
std::string momentum_advice(const OuterOptions& options, int nodes);

/// The momentum that suited so many nodes in the SlowMo paper's translation runs: 0 below 4, 0.2
/// from 4, 0.5 from 8, 0.6 from 16.
double suggested_momentum(int nodes);

}  // namespace fairshard::outer
