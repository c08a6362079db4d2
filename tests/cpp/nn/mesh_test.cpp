// Shards within nodes and replicas between them, against plain training with the same sums.
#include "support/expect_error.h"
#include "support/training.h"

#include <gtest/gtest.h>

namespace fairshard {
namespace mesh_test {

using comm::Group;
using comm::Mesh;
using test::Values;
using torch::optim::SGDOptions;

/// Plain data parallelism whose gradients are summed within nodes, and then between them.
Values train_plainly(const Mesh& mesh, const SGDOptions& options) {
  auto model = test::make_model();
  torch::optim::SGD optimizer(model->parameters(), options);
  for (int step = 0; step < test::kSteps; ++step) {
    optimizer.zero_grad();
    test::loss_of(model->forward(test::input(mesh.all().rank(), step))).backward();
    for (const auto& parameter : model->parameters()) {
      parameter.mutable_grad() = parameter.grad().div(mesh.all().size());
      comm::all_reduce(mesh.shards(), parameter.grad()).wait();
      comm::all_reduce(mesh.replicas(), parameter.grad()).wait();
    }
    optimizer.step();
  }
  return test::values_of(*model);
}

Values train_sharded(const Mesh& mesh, const SGDOptions& options, const OssOptions& oss_options) {
  auto model = test::make_model(mesh.all().rank());  // rank 0's parameters are to win
  OSS<torch::optim::SGD> optimizer(mesh, *model, options, oss_options);
  ShardedDataParallel<torch::nn::Sequential> parallel(mesh.all(), model, optimizer);
  for (int step = 0; step < test::kSteps; ++step) {
    optimizer.zero_grad();
    test::loss_of(parallel.forward(test::input(mesh.all().rank(), step))).backward();
    optimizer.step();
  }
  optimizer.wait_for_parameters();
  return test::values_of(*model);
}

TEST(Mesh, TrainsAsPlainDataParallelismWithTheSameSums) {
  test::run_ranks(4, [](const Group& group) {
    const auto options = SGDOptions(0.1).momentum(0.9);
    for (const int ranks_per_node : {1, 2, 4}) {
      const Mesh mesh(group, ranks_per_node);
      const Values plain = train_plainly(mesh, options);
      const auto small = test::kSmallBuckets;
      for (const OssOptions& oss :
           {small, OssOptions(small).overlap_gather(true), OssOptions(small).step_in_backward(true),
            OssOptions(small).release_parameters(true).overlap_gather(true)}) {
        // Sums of four in one node are taken in rank order, those of an all-reduce as well.
        test::require_same(train_sharded(mesh, options, oss), plain, true);
      }
    }
  });
}

TEST(Mesh, NodesAreWhole) {
  test::run_ranks(3, [](const Group& group) {
    test::expect_error([&] { Mesh(group, 2); },
                       {"3 ranks do not make whole nodes of 2 ranks each"});
  });
}

}  // namespace mesh_test
}  // namespace fairshard
