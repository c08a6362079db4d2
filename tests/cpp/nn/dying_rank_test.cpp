// A rank that dies in backward, as a real process: the others must notice by themselves.
#include "support/expect_error.h"
#include <fairshard/comm.h>
#include <fairshard/nn/sharded_data_parallel.h>

#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

namespace fairshard {
namespace dying_rank_test {

TEST(DyingRank, EndsTheOthersWithItsOwnReason) {
  test::expect_error(
      [] {
        comm::launch(
            3,
            [](comm::Group group) {
              torch::nn::Sequential model(torch::nn::Linear(10, 300), torch::nn::Linear(300, 300),
                                          torch::nn::Linear(300, 5));
              OSS<torch::optim::SGD> optimizer(group, *model, torch::optim::SGDOptions(0.1),
                                               OssOptions().bucket_bytes(2000));
              ShardedDataParallel<torch::nn::Sequential> parallel(group, model, optimizer);
              parallel.forward(at::ones({2, 10})).sum().backward();
              if (group.rank() == 1) {
                model->parameters()[2].register_hook(
                    [](const at::Tensor&) { TORCH_CHECK(false, "struck by lightning"); });
              }
              parallel.forward(at::ones({2, 10})).sum().backward();
            },
            comm::LaunchOptions().timeout_s(60).grace_s(30));
      },
      {"rank 1 of 3", "struck by lightning"});
}

}  // namespace dying_rank_test
}  // namespace fairshard
