// 200 steps of every algorithm against a simulation in one thread, written from the papers'
// formulas on plain tensors: nothing of ours is used there.
#include "support/training.h"
#include <fairshard/nn/slowmo.h>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace fairshard {
namespace simulation_test {

using comm::Group;
using outer::BaseAlgorithm;
using outer::GossipGraph;
using outer::OuterOptimizerKind;
using outer::OuterOptions;
using test::Values;
using torch::nn::Sequential;

constexpr int kRanks = 4;
constexpr int kCalls = 200;
constexpr double kRate = 0.05;

at::Tensor loss_on(const at::Tensor& output, int rank, int step) {
  return (output - std::sin(rank + 0.1 * step)).pow(2).mean();
}

/// A node of the simulation: a model of its own, and SGD with momentum written out.
struct SimulatedNode {
  Sequential model = test::make_model(0);
  Values momentum;

  Values parameters() const { return model->parameters(); }

  /// The change that SGD makes, from gradients averaged over the node's ranks.
  Values change(const std::vector<int>& ranks, int step, double mu) {
    Values sums;
    for (const int rank : ranks) {
      const auto gradients = torch::autograd::grad(
          {loss_on(model->forward(test::input(rank, step)), rank, step)}, parameters());
      for (size_t i = 0; i < gradients.size(); ++i) {
        const at::Tensor share = gradients[i] / static_cast<double>(ranks.size());
        rank == ranks.front() ? sums.push_back(share) : void(sums[i] += share);
      }
    }
    if (momentum.empty()) {
      for (const auto& sum : sums) {
        momentum.push_back(at::zeros_like(sum));
      }
    }
    Values result;
    for (size_t i = 0; i < sums.size(); ++i) {
      momentum[i] = mu * momentum[i] + sums[i];
      result.push_back(-kRate * momentum[i]);
    }
    return result;
  }
};

using Nodes = std::vector<SimulatedNode>;

at::Tensor mean_of(const Nodes& nodes, size_t i) {
  at::Tensor sum = at::zeros_like(nodes[0].parameters()[i]);
  for (const auto& node : nodes) {
    sum += node.parameters()[i];
  }
  return sum / static_cast<double>(nodes.size());
}

void set_all(Nodes& nodes, size_t i, const at::Tensor& value) {
  for (auto& node : nodes) {
    node.parameters()[i].copy_(value);
  }
}

/// What an algorithm does to the nodes when they have got their inner changes, at call k.
struct Algorithm {
  virtual ~Algorithm() = default;
  virtual void begin(const Nodes& nodes) {
    for (const auto& parameter : nodes[0].parameters()) {
      x0.push_back(parameter.detach().clone());
      u.push_back(at::zeros_like(x0.back()));
    }
  }
  virtual void apply(Nodes& nodes, size_t node, const Values& change) {
    for (size_t i = 0; i < change.size(); ++i) {
      nodes[node].parameters()[i].add_(change[i]);
    }
  }
  virtual void synchronise(Nodes& nodes, int k) = 0;

  Values x0;
  Values u;
};

struct LocalSgd : Algorithm {
  void synchronise(Nodes& nodes, int k) override {
    for (size_t i = 0; i < x0.size() && k % 3 == 0; ++i) {
      set_all(nodes, i, mean_of(nodes, i));
    }
  }
};

struct SlowMo : LocalSgd {
  void synchronise(Nodes& nodes, int k) override {
    if (k % 8 != 0) {
      LocalSgd::synchronise(nodes, k);
      return;
    }
    for (size_t i = 0; i < x0.size(); ++i) {
      u[i] = 0.6 * u[i] + (x0[i] - mean_of(nodes, i)) / kRate;
      x0[i] = x0[i] - 0.9 * kRate * u[i];
      set_all(nodes, i, x0[i]);
    }
    for (auto& node : nodes) {
      node.momentum.clear();
    }
  }
};

struct DiLoCo : Algorithm {
  /// The outer optimizer: torch's own SGD has this form of Nesterov's momentum.
  void outer_step(size_t i, const at::Tensor& difference) {
    u[i] = 0.9 * u[i] + difference;
    x0[i] = x0[i] - 0.7 * (difference + 0.9 * u[i]);
  }
  void synchronise(Nodes& nodes, int k) override {
    for (size_t i = 0; i < x0.size() && k % 10 == 0; ++i) {
      outer_step(i, x0[i] - mean_of(nodes, i));
      set_all(nodes, i, x0[i]);
    }
  }
};

/// Two fragments, parameters 0 and 1 and the rest, in rounds of 10 calls; taken in 3 calls later.
struct Streaming : DiLoCo {
  void synchronise(Nodes& nodes, int k) override {
    for (size_t i = 0; i < x0.size(); ++i) {
      const int turn = i < 2 ? 5 : 10;
      if (k > 3 && (k - 3) % 10 == turn % 10 && difference.count(i) > 0) {
        outer_step(i, difference[i]);
        for (auto& node : nodes) {
          node.parameters()[i].mul_(0.4).add_(0.6 * x0[i]);
        }
      }
      if (k % 10 == turn % 10) {
        difference[i] = x0[i] - mean_of(nodes, i);
      }
    }
  }
  std::map<size_t, at::Tensor> difference;
};

/// Push-sum: x and w are mixed, gradients are taken at x / w.
struct Sgp : Algorithm {
  Sgp(std::vector<int> hops, bool is_overlapped, int slow)
      : hops(std::move(hops)), is_overlapped(is_overlapped), slow(slow) {}

  void begin(const Nodes& nodes) override {
    Algorithm::begin(nodes);
    for (const auto& node : nodes) {
      x.push_back(test::values_of(*node.model));
      w.push_back(1);
    }
  }
  void apply(Nodes& /*nodes*/, size_t node, const Values& change) override {
    for (size_t i = 0; i < change.size(); ++i) {
      x[node][i] = x[node][i] + change[i];
    }
  }
  void synchronise(Nodes& nodes, int k) override {
    const size_t count = nodes.size();
    if (slow > 0 && k % slow == 0) {
      slow_step(nodes);
      return;
    }
    auto sent = x;
    auto sent_weights = w;
    const auto hop = static_cast<size_t>(hops[mixes++ % hops.size()]);
    const auto& taken = is_overlapped ? under_way : sent;
    const auto& taken_weights = is_overlapped ? weights_under_way : sent_weights;
    const size_t back = is_overlapped ? last_hop : hop;
    std::vector<Values> mixed(count);
    for (size_t n = 0; n < count; ++n) {
      const size_t from = (n + count - back % count) % count;
      w[n] = sent_weights[n] / 2 + (taken.empty() ? 0 : taken_weights[from] / 2);
      for (size_t i = 0; i < x0.size(); ++i) {
        mixed[n].push_back(taken.empty() ? sent[n][i] / 2 : (sent[n][i] + taken[from][i]) / 2);
      }
    }
    x = mixed;
    last_hop = hop;
    if (is_overlapped) {
      under_way = sent;
      weights_under_way = sent_weights;
    }
    show(nodes);
  }
  void slow_step(Nodes& nodes) {
    for (size_t i = 0; i < x0.size(); ++i) {
      at::Tensor sum = at::zeros_like(x0[i]);
      for (size_t n = 0; n < nodes.size(); ++n) {
        sum += x[n][i];
        if (!under_way.empty()) {
          sum += under_way[n][i] / 2;
        }
      }
      u[i] = 0.6 * u[i] + (x0[i] - sum / static_cast<double>(nodes.size())) / kRate;
      x0[i] = x0[i] - 0.9 * kRate * u[i];
      for (auto& values : x) {
        values[i] = x0[i].clone();
      }
    }
    std::fill(w.begin(), w.end(), 1.0);
    under_way.clear();
    show(nodes);
  }
  void show(Nodes& nodes) {
    for (size_t n = 0; n < nodes.size(); ++n) {
      for (size_t i = 0; i < x0.size(); ++i) {
        nodes[n].parameters()[i].copy_(x[n][i] / w[n]);
      }
    }
  }

  std::vector<int> hops;
  bool is_overlapped;
  int slow;
  std::vector<Values> x;
  std::vector<double> w;
  std::vector<Values> under_way;
  std::vector<double> weights_under_way;
  size_t last_hop = 0;
  size_t mixes = 0;
};

std::vector<Values> simulate(Algorithm& algorithm, int ranks_per_node, double mu) {
  Nodes nodes(kRanks / ranks_per_node);
  algorithm.begin(nodes);
  for (int k = 1; k <= kCalls; ++k) {
    for (size_t n = 0; n < nodes.size(); ++n) {
      std::vector<int> ranks(ranks_per_node);
      std::iota(ranks.begin(), ranks.end(), static_cast<int>(n) * ranks_per_node);
      const Values change = nodes[n].change(ranks, k, mu);
      const at::NoGradGuard no_grad;
      algorithm.apply(nodes, n, change);
    }
    const at::NoGradGuard no_grad;
    algorithm.synchronise(nodes, k);
  }
  std::vector<Values> result;
  for (const auto& node : nodes) {
    result.push_back(test::values_of(*node.model));
  }
  return result;
}

void compare(Algorithm&& algorithm, const OuterOptions& outer, double mu = 0,
             int ranks_per_node = 2) {
  const auto expected = simulate(algorithm, ranks_per_node, mu);
  comm::launch_threads(kRanks, [&](Group group) {
    auto model = test::make_model(group.rank());  // rank 0's parameters are to win
    SlowMoDistributedDataParallel<Sequential> parallel(group, model, ranks_per_node,
                                                       SlowMoOptions().outer(outer));
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(kRate).momentum(mu));
    for (int step = 1; step <= kCalls; ++step) {
      parallel.zero_grad();
      loss_on(parallel.forward(test::input(group.rank(), step)), group.rank(), step).backward();
      optimizer.step();
      parallel.perform_slowmo(optimizer);
    }
    comm::barrier(group);  // messages that are still under way need their peers
    const Values& theirs = expected[group.rank() / ranks_per_node];
    const Values ours = test::values_of(*model);
    for (size_t i = 0; i < theirs.size(); ++i) {
      const double gap = (ours[i] - theirs[i]).abs().max().item<double>();
      TORCH_CHECK(gap < 5e-6, "parameter ", i, " differs by ", gap);
    }
    const Values start = test::values_of(*test::make_model(0));
    TORCH_CHECK((ours[0] - start[0]).abs().max().item<double>() > 0.01, "nothing was learnt");
  });
}

const auto kSlowMo =
    OuterOptions().slow_frequency(8).learning_rate(0.9).momentum(0.6).smallest_piece_bytes(0);
const auto kNesterov = OuterOptions()
                           .optimizer(OuterOptimizerKind::kNesterov)
                           .slow_frequency(10)
                           .learning_rate(0.7)
                           .momentum(0.9);

TEST(Simulation, LocalSgd) {
  compare(LocalSgd(), OuterOptions().optimizer(OuterOptimizerKind::kAverage));
}

TEST(Simulation, LocalSgdWithInnerMomentum) {
  compare(LocalSgd(), OuterOptions().optimizer(OuterOptimizerKind::kAverage), 0.5);
}

TEST(Simulation, SlowMomentum) { compare(SlowMo(), kSlowMo); }

TEST(Simulation, SlowMomentumWithInnerMomentum) { compare(SlowMo(), kSlowMo, 0.5); }

TEST(Simulation, SlowMomentumOnOneNode) { compare(SlowMo(), kSlowMo, 0, 4); }

TEST(Simulation, SlowMomentumInWholeBuffersAndOnePiece) {
  compare(SlowMo(), OuterOptions(kSlowMo).shard_buffers(false).smallest_piece_bytes(1 << 20));
}

TEST(Simulation, DiLoCo) { compare(DiLoCo(), kNesterov, 0.5); }

TEST(Simulation, Streaming) {
  compare(Streaming(), OuterOptions(kNesterov).fragments(2).delay(3).local_weight(0.4));
}

const auto kSgp = OuterOptions().base(BaseAlgorithm::kSgp).optimizer(OuterOptimizerKind::kAverage);

const auto kSlowSgp = OuterOptions(kSlowMo).base(BaseAlgorithm::kSgp).average_at_slow_step(true);

TEST(Simulation, Sgp) { compare(Sgp({1}, false, 0), kSgp); }

TEST(Simulation, SgpWithSlowMomentum) { compare(Sgp({1}, false, 8), kSlowSgp); }

TEST(Simulation, OverlappedSgp) {
  compare(Sgp({1}, true, 0), OuterOptions(kSgp).overlap_gossip(true));
}

TEST(Simulation, OverlappedSgpWithSlowMomentum) {
  compare(Sgp({1}, true, 8), OuterOptions(kSlowSgp).overlap_gossip(true));
}

TEST(Simulation, SgpOnFourNodesInARing) {
  compare(Sgp({1}, false, 0), OuterOptions(kSgp).graph(GossipGraph::kRing), 0, 1);
}

TEST(Simulation, OverlappedSgpOnAnExponentialGraphOfFourNodes) {
  compare(Sgp({1, 2}, true, 0), OuterOptions(kSgp).overlap_gossip(true), 0, 1);
}

}  // namespace simulation_test
}  // namespace fairshard
