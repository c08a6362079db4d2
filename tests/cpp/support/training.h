#pragma once
// Small models, data that differ by rank, and plain training to compare with.

#include "support/ranks.h"
#include <fairshard/comm.h>
#include <fairshard/nn/sharded_data_parallel.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/nn.h>
#include <torch/optim.h>

#include <vector>

namespace fairshard::test {

using Values = std::vector<at::Tensor>;

constexpr int kSteps = 20;

inline const auto kSmallBuckets = OssOptions().bucket_bytes(2000).first_bucket_bytes(500);

torch::nn::Sequential make_model(uint64_t seed = 0);

at::Tensor input(int rank, int step);

inline at::Tensor loss_of(const at::Tensor& output) { return output.pow(2).mean(); }

/// Copies of all parameters.
Values values_of(const torch::nn::Module& module);

/// Throws if two sets of values differ.
void require_same(const Values& ours, const Values& theirs, bool bit_for_bit);

/// Plain data parallelism, written out with c10d's all-reduce and torch's optimizer.
template <typename Optimizer, typename Options>
Values train_plainly(comm::Group group, const Options& options, int steps = kSteps) {
  auto model = make_model();
  Optimizer optimizer(model->parameters(), options);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(model->forward(input(group.rank(), step))).backward();
    for (const auto& parameter : model->parameters()) {
      std::vector<at::Tensor> gradient{parameter.grad().div(group.size())};
      group.process_group()->allreduce(gradient)->wait();
      parameter.mutable_grad() = gradient[0];
    }
    optimizer.step();
  }
  return values_of(*model);
}

/// The same with OSS and ShardedDataParallel.
template <typename Optimizer, typename Options>
Values train_sharded(comm::Group group, const Options& options,
                     const DataParallelOptions& parallel_options = {},
                     const OssOptions& oss_options = kSmallBuckets, int steps = kSteps) {
  auto model = make_model(group.rank());  // rank 0's parameters are to win
  OSS<Optimizer> optimizer(group, *model, options, oss_options);
  ShardedDataParallel<torch::nn::Sequential> parallel(group, model, optimizer, parallel_options);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(parallel.forward(input(group.rank(), step))).backward();
    optimizer.step();
  }
  optimizer.wait_for_parameters();
  return values_of(*model);
}

}  // namespace fairshard::test
