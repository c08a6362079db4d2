// What SlowMoDistributedDataParallel and the core below it do in a user's hands.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/nn/slowmo.h>
#include <fairshard/optim/fused.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <numeric>
#include <vector>

namespace fairshard {
namespace synchroniser_test {

using comm::Group;
using comm::launch_threads;
using outer::BaseAlgorithm;
using outer::OuterOptimizerKind;
using outer::OuterOptions;
using outer::OuterState;
using outer::WireFormat;
using test::input;
using test::loss_of;
using test::make_model;
using test::require_same;
using test::Values;
using test::values_of;
using torch::nn::Sequential;
using torch::optim::SGDOptions;
using Parallel = SlowMoDistributedDataParallel<Sequential>;

const auto kSlowMo =
    OuterOptions().slow_frequency(4).average_frequency(2).momentum(0.6).smallest_piece_bytes(0);
const auto kStreaming = OuterOptions()
                            .optimizer(OuterOptimizerKind::kNesterov)
                            .slow_frequency(6)
                            .fragments(2)
                            .delay(2)
                            .local_weight(0.5)
                            .learning_rate(0.7)
                            .momentum(0.9)
                            .wire(WireFormat::kInt8);
const auto kOverlappedSgp = OuterOptions(kSlowMo)
                                .base(BaseAlgorithm::kSgp)
                                .slow_frequency(8)
                                .overlap_gossip(true)
                                .average_at_slow_step(false);

/// A rank's model, wrapper and optimizer, which train together.
struct Trainer {
  Trainer(const Group& group, int ranks_per_node, const OuterOptions& outer, double mu = 0.5)
      : Trainer(group, ranks_per_node, SlowMoOptions().outer(outer), mu) {}
  Trainer(const Group& group, int ranks_per_node, const SlowMoOptions& options, double mu = 0.5)
      : rank(group.rank()),
        model(make_model(group.rank())),
        parallel(group, model, ranks_per_node, options),
        optimizer(model->parameters(), SGDOptions(0.05).momentum(mu)) {}

  outer::StepResult step(int number) {
    parallel.zero_grad();
    loss_of(parallel.forward(input(rank, number))).backward();
    optimizer.step();
    return parallel.perform_slowmo(optimizer);
  }
  void steps(int begin, int end) {
    for (int number = begin; number < end; ++number) {
      step(number);
    }
  }
  Values values() const { return values_of(*model); }

  int rank;
  Sequential model;
  Parallel parallel;
  torch::optim::SGD optimizer;
};

/// Throws unless all ranks of a group have the same tensors, bit for bit.
void require_same_on_all(const Group& group, const Values& values) {
  for (const auto& value : values) {
    const at::Tensor first = value.clone();
    comm::broadcast(group, first, 0).wait();
    TORCH_CHECK(first.equal(value), "rank ", group.rank(), " has another value than rank 0");
  }
}

TEST(SlowMo, RanksOfANodeStayTheSameBitForBit) {
  for (const auto& options : {kSlowMo, kStreaming, kOverlappedSgp}) {
    launch_threads(4, [&](Group group) {
      Trainer trainer(group, 2, options);
      for (int step = 0; step < 13; ++step) {
        trainer.step(step);
        require_same_on_all(trainer.parallel.synchroniser().nodes().intra_node(), trainer.values());
      }
      comm::barrier(group);  // messages that are still under way need their peers
    });
  }
}

TEST(SlowMo, NodesAreApartBetweenSynchronisationsAndTheSameAfterThem) {
  launch_threads(4, [](Group group) {
    Trainer trainer(group, 2, kSlowMo);
    for (int call = 1; call <= 12; ++call) {
      const auto result = trainer.step(call);
      TORCH_CHECK(result.has_averaged == (call % 2 == 0), "average at call ", call);
      TORCH_CHECK(result.stepped.empty() == (call % 4 != 0), "slow step at call ", call);
      if (call % 2 == 0) {
        require_same_on_all(group, trainer.values());
      } else {
        const at::Tensor mine = trainer.values()[0];
        const at::Tensor first = mine.clone();
        comm::broadcast(group, first, 0).wait();
        TORCH_CHECK(first.equal(mine) == (group.rank() < 2), "nodes were not apart");
      }
    }
    const auto report = trainer.parallel.report();
    TORCH_CHECK(report.calls == 12 && report.averages == 6 && report.slow_steps == 3,
                "counts: ", report.calls, " ", report.averages, " ", report.slow_steps);
  });
}

TEST(SlowMo, BytesBetweenNodesAreSpreadOverRanksAndOnlyAtSynchronisations) {
  launch_threads(4, [](Group group) {
    Trainer trainer(group, 2, kSlowMo);
    int64_t parameters = 0;
    for (const auto& value : trainer.values()) {
      parameters += value.numel();
    }
    for (int call = 1; call <= 8; ++call) {
      const auto before = trainer.parallel.report().inter_node_bytes;
      trainer.step(call);
      const auto sent = static_cast<double>(trainer.parallel.report().inter_node_bytes - before);
      // An all-reduce of half of the parameters between two ranks: at most once that half.
      const double expected = call % 2 == 0 ? 4.0 * static_cast<double>(parameters) / 2 : 0;
      TORCH_CHECK(sent >= expected && sent <= 1.5 * expected, "call ", call, " has sent ", sent,
                  " instead of ", expected);
    }
  });
}

TEST(SlowMo, ShardedWholeAndHostBuffersInAnyPiecesGiveTheSameBits) {
  launch_threads(4, [](Group group) {
    Trainer plain(group, 2, kSlowMo);
    plain.steps(0, 10);
    for (const auto& options :
         {OuterOptions(kSlowMo).shard_buffers(false), OuterOptions(kSlowMo).pieces(1),
          OuterOptions(kSlowMo).pieces(1000), OuterOptions(kSlowMo).host_memory(true)}) {
      Trainer other(group, 2, options);
      other.steps(0, 10);
      require_same(other.values(), plain.values(), true);
    }
    int64_t held = 0;
    for (const auto& [name, tensor] : plain.parallel.state().tensors) {
      held += tensor.numel();
    }
    int64_t parameters = 0;
    for (const auto& value : plain.values()) {
      parameters += value.numel();
    }
    // Momentum and outer parameters, half of each, and padding.
    TORCH_CHECK(held < 1.6 * static_cast<double>(parameters), "holds ", held, " for ", parameters);
  });
}

TEST(SlowMo, AResumedRunIsTheUninterruptedOneBitForBit) {
  for (const auto& options : {kSlowMo, kStreaming, kOverlappedSgp,
                              OuterOptions(kOverlappedSgp).average_at_slow_step(true),
                              OuterOptions(kSlowMo).wire(WireFormat::kBFloat16)}) {
    // 8 is a slow step of most; at 7 and 11 fragments or messages are under way.
    for (const int pause : {7, 8, 11}) {
      launch_threads(4, [&](Group group) {
        Trainer whole(group, 2, options);
        whole.steps(0, pause);
        const OuterState state = whole.parallel.state();
        const Values values = whole.values();
        Values momenta;
        for (const auto& parameter : whole.model->parameters()) {
          const auto& inner = static_cast<const torch::optim::SGDParamState&>(
              *whole.optimizer.state().at(parameter.unsafeGetTensorImpl()));
          momenta.push_back(inner.momentum_buffer().clone());
        }
        whole.steps(pause, 25);

        Trainer resumed(group, 2, options);
        resumed.step(99);  // whatever happened before is to be forgotten
        resumed.parallel.load_state(state);
        const auto parameters = resumed.model->parameters();
        for (size_t i = 0; i < parameters.size(); ++i) {
          const at::NoGradGuard no_grad;
          parameters[i].copy_(values[i]);
          auto& inner = static_cast<torch::optim::SGDParamState&>(
              *resumed.optimizer.state().at(parameters[i].unsafeGetTensorImpl()));
          inner.momentum_buffer(momenta[i].clone());
        }
        resumed.steps(pause, 25);
        require_same(resumed.values(), whole.values(), true);
        comm::barrier(group);
      });
    }
  }
}

TEST(SlowMo, AStateOfOtherOptionsIsRefusedByName) {
  launch_threads(2, [](Group group) {
    Trainer trainer(group, 1, kSlowMo);
    const auto state = trainer.parallel.state();
    Trainer whole(group, 2, kSlowMo);
    test::expect_error([&] { whole.parallel.load_state(state); },
                       {"momentum.0", "elements", "ranks per node"});
    Trainer narrow(group, 1, OuterOptions(kSlowMo).wire(WireFormat::kInt8));
    test::expect_error([&] { narrow.parallel.load_state(state); }, {"has no 'error.0'"});
  });
}

TEST(SlowMo, PushSumWeightsAreConserved) {
  for (const auto graph : {outer::GossipGraph::kExponential, outer::GossipGraph::kRing}) {
    for (const bool is_overlapped : {false, true}) {
      launch_threads(5, [&](Group group) {
        Trainer trainer(group, 1,
                        OuterOptions(kOverlappedSgp).graph(graph).overlap_gossip(is_overlapped));
        bool has_other_weights = false;
        for (int step = 0; step < 30; ++step) {
          trainer.step(step);
          const auto& synchroniser = trainer.parallel.synchroniser();
          const at::Tensor sum = at::full(
              {1}, synchroniser.push_sum_weight() + synchroniser.arriving_push_sum_weight(),
              at::kDouble);
          comm::all_reduce(group, sum).wait();
          TORCH_CHECK(std::abs(sum.item<double>() - 5) < 1e-12, "weights are ", sum.item<double>());
          has_other_weights |= synchroniser.push_sum_weight() != 1;
        }
        TORCH_CHECK(has_other_weights == is_overlapped, "weights did not change as they should");
      });
    }
  }
}

TEST(SlowMo, GossipAloneBringsNodesTogether) {
  launch_threads(4, [](Group group) {
    const auto options = OuterOptions()
                             .base(BaseAlgorithm::kSgp)
                             .optimizer(OuterOptimizerKind::kAverage)
                             .overlap_gossip(true);
    const at::Tensor x = at::full({100}, 1.0 + group.rank());
    outer::Synchroniser synchroniser(outer::Nodes(group, 1), {{"x", x}}, options);
    for (int call = 0; call < 60; ++call) {
      synchroniser.step();
    }
    comm::barrier(group);
    TORCH_CHECK(x.allclose(at::full({100}, 2.5), 1e-5), "came to ", x[0].item<float>());
  });
}

TEST(SlowMo, TheFinalAverageIsOneModelEverywhere) {
  for (const auto& options : {kSlowMo, kStreaming, kOverlappedSgp}) {
    launch_threads(4, [&](Group group) {
      Trainer trainer(group, 2, options);
      trainer.steps(0, 7);
      Values expected = trainer.values();
      if (!options.overlap_gossip()) {
        for (auto& value : expected) {
          comm::all_reduce(group, value, comm::ReduceOp::kAvg).wait();
        }
      }
      trainer.parallel.average_parameters();
      require_same_on_all(group, trainer.values());
      if (!options.overlap_gossip()) {  // what is under way counts there too
        require_same(trainer.values(), expected, false);
      }
      trainer.steps(7, 16);  // and training goes on
      comm::barrier(group);
    });
  }
}

TEST(SlowMo, NarrowFormatsGiveAllNodesTheSameAndLoseNothingInTheLongRun) {
  for (const auto wire : {WireFormat::kBFloat16, WireFormat::kInt8}) {
    launch_threads(3, [&](Group group) {
      const auto options =
          OuterOptions().optimizer(OuterOptimizerKind::kAverage).average_frequency(1).wire(wire);
      const at::NoGradGuard no_grad;
      const at::Tensor x = at::zeros({1000}).requires_grad_();
      const at::Tensor exact = at::zeros({1000}, at::kDouble);
      outer::Synchroniser synchroniser(outer::Nodes(group, 1), {{"x", x}}, options);
      const auto change = [](int rank, int call) {
        return at::arange(1000, at::kFloat).add(7 * rank + call).sin();
      };
      for (int call = 0; call < 50; ++call) {
        x.add_(change(group.rank(), call));
        for (int rank = 0; rank < 3; ++rank) {
          exact.add_(change(rank, call).to(at::kDouble) / 3);
        }
        synchroniser.step();
        require_same_on_all(group, {x});
      }
      // One message's rounding, however many were sent. (A bfloat16 average is rounded again.)
      const double gap = (x - exact).abs().max().item<double>();
      TORCH_CHECK(gap > 0 && gap < (wire == WireFormat::kInt8 ? 0.02 : 0.1), "off by ", gap);
    });
  }
}

/// What a sparse message has of some values: of every 4096 the 64 largest, as one of two
/// magnitudes.
at::Tensor sparse_part(const at::Tensor& values) {
  const at::Tensor result = at::zeros_like(values);
  const float* const all = values.data_ptr<float>();
  for (int64_t begin = 0; begin < values.numel(); begin += 4096) {
    std::vector<int64_t> places(std::min<int64_t>(4096, values.numel() - begin));
    std::iota(places.begin(), places.end(), begin);
    std::ranges::sort(places, std::greater<>(), [&](int64_t i) { return std::abs(all[i]); });
    places.resize(64);
    const auto mean_of = [&](auto&& is_counted) {
      double sum = 0, count = 0;
      for (const int64_t i : places) {
        sum += is_counted(i) ? std::abs(all[i]) : 0;
        count += is_counted(i);
      }
      return sum / count;
    };
    const double mean = mean_of([](int64_t) { return true; });
    const auto is_large = [&](int64_t i) { return std::abs(all[i]) > mean; };
    const double large = mean_of(is_large);
    const double small = mean_of([&](int64_t i) { return !is_large(i); });
    for (const int64_t i : places) {
      const double magnitude = c10::BFloat16(static_cast<float>(is_large(i) ? large : small));
      result[i] = all[i] < 0 ? -magnitude : magnitude;
    }
  }
  return result;
}

TEST(SlowMo, SparseMessagesHaveTheLargestAndTheOthersFollow) {
  launch_threads(2, [](Group group) {
    const at::NoGradGuard no_grad;
    const auto options = OuterOptions()
                             .optimizer(OuterOptimizerKind::kAverage)
                             .average_frequency(1)
                             .wire(WireFormat::kSparse);
    const int64_t length = 10000;  // two chunks and a part of one
    const at::Tensor x = at::zeros({length}).requires_grad_();
    outer::Synchroniser synchroniser(outer::Nodes(group, 1), {{"x", x}}, options);
    const auto change = [&](int rank, int call) {
      return at::arange(length, at::kFloat).mul(0.37 + rank).add(call).sin().pow(5);
    };
    at::Tensor expected = at::zeros({length});
    at::Tensor left[2] = {at::zeros({length}), at::zeros({length})};
    for (int call = 0; call < 4; ++call) {
      x.add_(change(group.rank(), call));
      synchroniser.step();
      require_same_on_all(group, {x});
      at::Tensor sum = at::zeros({length});
      for (int rank = 0; rank < 2; ++rank) {
        left[rank] = left[rank] * 0.95 - change(rank, call);
        const at::Tensor sent = sparse_part(left[rank]);
        left[rank] -= sent;
        sum += sent;
      }
      expected -= sum / 2;
      const double gap = (x - expected).abs().max().item<double>();
      TORCH_CHECK(gap < 1e-5, "off by ", gap, " at call ", call);
      TORCH_CHECK(x.count_nonzero().item<int64_t>() <= 2 * 3 * 64 * (call + 1),
                  "more than was sent");
    }
  });
}

TEST(SlowMo, NarrowFormatsSendFewerBytes) {
  launch_threads(2, [](Group group) {
    const auto sent_with = [&](WireFormat wire) {
      const auto options = OuterOptions(kSlowMo).average_frequency(1).wire(wire);
      outer::Synchroniser synchroniser(outer::Nodes(group, 1),
                                       {{"x", at::ones({32 * 16384}).requires_grad_()}}, options);
      outer::StepInput step;
      step.learning_rates = {0.1};
      synchroniser.step(step);
      return static_cast<double>(synchroniser.report().inter_node_bytes);
    };
    const double whole = sent_with(WireFormat::kFloat32);
    const double int8 = whole / sent_with(WireFormat::kInt8);
    TORCH_CHECK(int8 > 3.8 && int8 <= 4, "ratio ", int8);
    const double sparse = whole / sent_with(WireFormat::kSparse);
    TORCH_CHECK(sparse > 138 && sparse < 142, "ratio ", sparse);
  });
}

TEST(SlowMo, LearningRatesDifferByGroupAndMayBeZero) {
  launch_threads(2, [](Group group) {
    const at::NoGradGuard no_grad;
    const at::Tensor a = at::full({40}, 1.0).requires_grad_();
    const at::Tensor b = at::full({40}, 1.0).requires_grad_();
    const auto options = OuterOptions().slow_frequency(1).momentum(0.5).pieces(1);
    outer::Synchroniser synchroniser(outer::Nodes(group, 1), {{"a", a}, {"b", b}}, options);
    outer::StepInput step;
    step.learning_rates = {0.5, 0.0};
    a.sub_(1 + 2 * group.rank());  // the average moves by 2
    b.sub_(1 + 2 * group.rank());
    synchroniser.step(step);  // a: u = 4, x = 1 - 0.5 * 4; b: the average, and no momentum
    TORCH_CHECK(a.allclose(at::full({40}, -1.0)) && b.allclose(at::full({40}, -1.0)), "first");
    step.learning_rates = {0.1, 0.2};
    synchroniser.step(step);  // a: u = 2, x = -1 - 0.1 * 2; b: u = 0
    TORCH_CHECK(a.allclose(at::full({40}, -1.2)), "a is ", a[0].item<float>());
    TORCH_CHECK(b.allclose(at::full({40}, -1.0)), "b is ", b[0].item<float>());
  });
}

TEST(SlowMo, InnerMomentumIsZeroedAtSlowStepsAndAdamIsKept) {
  launch_threads(2, [](Group group) {
    for (const bool zeroes : {true, false}) {
      Trainer trainer(group, 1, SlowMoOptions().outer(kSlowMo).zero_inner_momentum(zeroes));
      trainer.steps(0, 4);
      const auto& state = static_cast<const torch::optim::SGDParamState&>(
          *trainer.optimizer.state().begin()->second);
      TORCH_CHECK(state.momentum_buffer().eq(0).all().item<bool>() == zeroes, "momentum");
    }
    for (const bool zeroes : {true, false}) {
      auto model = make_model();
      Parallel parallel(group, model, 1, SlowMoOptions().outer(kSlowMo).zero_adam(zeroes));
      AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
      for (int step = 0; step < 4; ++step) {
        parallel.zero_grad();
        loss_of(parallel.forward(input(group.rank(), step))).backward();
        optimizer.step();
        parallel.perform_slowmo(optimizer);
      }
      const auto& state = static_cast<const FusedState&>(*optimizer.state().begin()->second);
      TORCH_CHECK(state.square_average.eq(0).all().item<bool>() == zeroes, "Adam");
      TORCH_CHECK((state.step.item<float>() == 0) == zeroes, "Adam's step");
    }
  });
}

TEST(SlowMo, FullPrecisionMastersAreSynchronisedAndCopied) {
  launch_threads(2, [](Group group) {
    auto model = make_model();
    model->to(at::kBFloat16);
    Values masters;
    for (const auto& parameter : model->parameters()) {
      masters.push_back(parameter.detach().to(at::kFloat));
    }
    const auto options = OuterOptions().slow_frequency(3).average_frequency(3).momentum(0.5);
    Parallel parallel(group, model, 1, SlowMoOptions().outer(options));
    torch::optim::SGD optimizer(masters, SGDOptions(0.1));
    // The twin is synchronised in float32, from the same start.
    std::vector<shard::Parameter> plain;
    for (const auto& master : masters) {
      plain.push_back({std::to_string(plain.size()), master.clone().requires_grad_()});
    }
    outer::Synchroniser synchroniser(outer::Nodes(group, 1), plain, options);
    outer::StepInput step;
    step.learning_rates.assign(plain.size(), 0.1);
    for (int call = 0; call < 6; ++call) {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < masters.size(); ++i) {
        masters[i].add_(0.01 * (group.rank() + 1));
        plain[i].tensor.add_(0.01 * (group.rank() + 1));
      }
      parallel.perform_slowmo(optimizer, masters);
      synchroniser.step(step);
    }
    const auto parameters = model->parameters();
    for (size_t i = 0; i < masters.size(); ++i) {
      TORCH_CHECK(masters[i].equal(plain[i].tensor), "master ", i);
      TORCH_CHECK(parameters[i].equal(masters[i].to(at::kBFloat16)), "copy ", i);
    }
  });
}

TEST(SlowMo, BuffersAreAveragedWithTheParameters) {
  launch_threads(4, [](Group group) {
    Sequential model(torch::nn::Linear(10, 6), torch::nn::BatchNorm1d(6));
    Parallel parallel(group, model, 2, SlowMoOptions().outer(kSlowMo));
    torch::optim::SGD optimizer(model->parameters(), SGDOptions(0.05));
    for (int step = 0; step < 4; ++step) {
      parallel.zero_grad();
      loss_of(parallel.forward(input(group.rank(), step))).backward();
      optimizer.step();
      parallel.perform_slowmo(optimizer);
    }
    // Within a node the first rank's count, as in plain data parallelism, from the next forward on.
    parallel.forward(input(0, 9));
    parallel.perform_slowmo(optimizer);
    parallel.forward(input(0, 9));
    parallel.perform_slowmo(optimizer);
    require_same_on_all(group, model->buffers());
  });
}

TEST(SlowMo, FrozenParametersCostNothingUntilTheyAreUnfrozen) {
  launch_threads(2, [](Group group) {
    Sequential model(torch::nn::Linear(100, 100), torch::nn::Linear(100, 1));
    auto first = model[0]->as<torch::nn::Linear>();
    first->weight.requires_grad_(false);
    Parallel parallel(group, model, 1, SlowMoOptions().outer(kSlowMo));
    torch::optim::SGD optimizer(model->parameters(), SGDOptions(0.05));
    const auto sent_in_two_calls = [&] {
      const auto before = parallel.report().inter_node_bytes;
      for (int call = 0; call < 2; ++call) {
        parallel.zero_grad();
        loss_of(parallel.forward(at::full({2, 100}, 0.1 * group.rank()))).backward();
        optimizer.step();
        parallel.perform_slowmo(optimizer);
      }
      return parallel.report().inter_node_bytes - before;
    };
    TORCH_CHECK(sent_in_two_calls() < 4 * 400, "frozen parameters were sent");
    first->weight.requires_grad_(true);
    TORCH_CHECK(sent_in_two_calls() > 4 * 10000, "unfrozen parameters were not sent");
    require_same_on_all(group, values_of(*model));
  });
}

TEST(SlowMo, AddedParametersAreTakenUp) {
  launch_threads(4, [](Group group) {
    for (const auto& options : {kSlowMo, kOverlappedSgp}) {
      Trainer trainer(group, 2, options);
      trainer.steps(0, 5);
      trainer.model->push_back(torch::nn::Linear(5, 5));
      trainer.optimizer.param_groups()[0].params() = trainer.model->parameters();
      trainer.steps(5, 16);
      const auto& nodes = trainer.parallel.synchroniser().nodes();
      require_same_on_all(nodes.intra_node(), trainer.values());
      TORCH_CHECK(trainer.parallel.synchroniser().parameters().size() == 8, "not taken up");
      if (!trainer.parallel.synchroniser().options().overlap_gossip()) {
        require_same_on_all(group, trainer.values());  // call 16 is a slow step
      }
      comm::barrier(group);
    }
  });
}

TEST(SlowMo, FragmentsAreContiguousAndOfAboutTheSameSize) {
  launch_threads(1, [](Group group) {
    Trainer trainer(group, 1, OuterOptions(kStreaming).fragments(3));
    std::vector<int> fragments;
    for (size_t i = 0; i < 6; ++i) {
      fragments.push_back(trainer.parallel.synchroniser().fragment_of(i));
    }
    EXPECT_EQ(fragments, (std::vector<int>{0, 1, 1, 2, 2, 2}));
    test::expect_error(
        [&] { Trainer(group, 1, OuterOptions(kStreaming).slow_frequency(9).fragments(7)); },
        {"7 fragments", "6 parameters"});
  });
}

TEST(SlowMo, BadOptionsAreNamedWithTheirValues) {
  launch_threads(1, [](Group group) {
    const auto refuses = [&](const OuterOptions& options, const std::vector<std::string>& words) {
      test::expect_error([&] { Trainer(group, 1, options); }, words);
    };
    refuses(OuterOptions().slow_frequency(0), {"slowmo_frequency", "0", "at least 1"});
    refuses(OuterOptions().average_frequency(-2), {"localsgd_frequency", "-2"});
    refuses(OuterOptions().momentum(1.0), {"momentum is 1", "below 1"});
    refuses(OuterOptions().momentum(-0.1), {"momentum is -0.1"});
    refuses(OuterOptions().learning_rate(0), {"learning rate is 0"});
    refuses(OuterOptions(kStreaming).delay(6), {"delay is 6", "frequency of 6"});
    refuses(OuterOptions(kStreaming).base(BaseAlgorithm::kSgp), {"streaming", "SGP"});
    test::expect_error([&] { Trainer(group, 2, kSlowMo); }, {"1 ranks", "nodes of 2"});
    test::expect_error([&] { Trainer(group, 0, kSlowMo); }, {"ranks per node is 0"});
  });
}

TEST(SlowMo, AnOptimizerOfOtherParametersIsRefused) {
  launch_threads(1, [](Group group) {
    Trainer trainer(group, 1, kSlowMo);
    torch::optim::SGD other(make_model()->parameters(), SGDOptions(0.1));
    test::expect_error([&] { trainer.parallel.perform_slowmo(other); },
                       {"does not have parameter '0.weight'"});
  });
}

struct WarningsKept : c10::WarningHandler {
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

TEST(SlowMo, AForgottenPerformSlowmoIsToldOnce) {
  launch_threads(1, [](Group group) {
    Trainer trainer(group, 1, OuterOptions(kSlowMo).momentum(0));
    WarningsKept kept;
    const c10::WarningUtils::WarningHandlerGuard guard(&kept);
    const auto forwards = [&](int count) {
      for (int i = 0; i < count; ++i) {
        trainer.parallel.forward(input(0, i));
      }
    };
    forwards(99);
    trainer.step(0);
    trainer.model->eval();
    forwards(200);
    trainer.model->train();
    forwards(100);
    EXPECT_TRUE(kept.texts.empty());
    forwards(200);
    ASSERT_EQ(kept.texts.size(), 1);
    EXPECT_NE(kept.texts[0].find("101 forwards in training without perform_slowmo"),
              std::string::npos)
        << kept.texts[0];
  });
}

TEST(SlowMo, MomentumFollowsTheNumberOfNodes) {
  for (const auto& [nodes, momentum] :
       {std::pair(1, 0.0), {3, 0.0}, {4, 0.2}, {8, 0.5}, {16, 0.6}, {100, 0.6}}) {
    EXPECT_EQ(outer::suggested_momentum(nodes), momentum);
    EXPECT_EQ(outer::momentum_advice(OuterOptions(), nodes).empty(), nodes == 8);
    EXPECT_EQ(outer::settle_options(OuterOptions(), nodes, true).momentum(), momentum);
  }
  launch_threads(1, [](Group group) {
    Trainer automatic(group, 1, SlowMoOptions().auto_momentum(true));
    EXPECT_FALSE(automatic.parallel.slowmo());
    Trainer manual(group, 1, kSlowMo);
    EXPECT_TRUE(manual.parallel.slowmo());
  });
}

}  // namespace synchroniser_test
}  // namespace fairshard
