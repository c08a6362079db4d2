// How the cost of planning and wrapping grows with the number of ranks, which are threads here:
// prints one line of JSON for each number of ranks. benchmarks/growth.py runs it.
#include <fairshard/comm/launch.h>
#include <fairshard/nn/sharded_data_parallel.h>
#include <fairshard/optim/fused.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>

namespace {

using fairshard::comm::Group;

constexpr int kLayers = 20;
constexpr int64_t kWidth = 32;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers; ++i) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  return model;
}

/// Of the slowest rank, in seconds.
struct Costs {
  double plan = 0;
  double wrap = 0;
  double first_step = 0;
  double step = 0;
};

Costs costs_of_rank(const Group& group) {
  Costs costs;
  const auto model = make_model();
  std::vector<fairshard::shard::Parameter> parameters;
  for (const auto& item : model->named_parameters()) {
    parameters.push_back({item.key(), item.value()});
  }
  auto start = std::chrono::steady_clock::now();
  const fairshard::shard::ShardLayout plan(parameters, group.size());
  costs.plan = seconds_since(start);

  start = std::chrono::steady_clock::now();
  fairshard::OSS<fairshard::AdamW> optimizer(group, *model, torch::optim::AdamWOptions(1e-3));
  fairshard::ShardedDataParallel<torch::nn::Sequential> parallel(group, model, optimizer);
  costs.wrap = seconds_since(start);

  for (double* cost : {&costs.first_step, &costs.step}) {
    start = std::chrono::steady_clock::now();
    parallel.forward(torch::ones({2, kWidth})).sum().backward();
    optimizer.step();
    *cost = seconds_since(start);
  }
  return costs;
}

Costs measure(int ranks) {
  std::mutex mutex;
  Costs slowest;
  const auto options = fairshard::comm::LaunchOptions().threads(1);
  const auto rank_function = [&](const Group& group) {
    const Costs own = costs_of_rank(group);
    const std::lock_guard lock(mutex);
    slowest.plan = std::max(slowest.plan, own.plan);
    slowest.wrap = std::max(slowest.wrap, own.wrap);
    slowest.first_step = std::max(slowest.first_step, own.first_step);
    slowest.step = std::max(slowest.step, own.step);
  };
  fairshard::comm::launch_threads(ranks, rank_function, options);
  return slowest;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const int ranks = std::atoi(argv[i]);
    const Costs costs = measure(ranks);
    std::printf(
        "{\"ranks\": %d, \"plan\": %.9f, \"wrap\": %.6f, \"first_step\": %.6f, \"step\": %.6f}\n",
        ranks, costs.plan, costs.wrap, costs.first_step, costs.step);
    std::fflush(stdout);
  }
}
