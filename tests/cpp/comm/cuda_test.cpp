// NCCL with one rank, and Gloo for two ranks on one GPU. Where there is no GPU, what is tested is
// that the group says so.
#include "support/expect_error.h"
#include <fairshard/comm.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace fairshard::comm {
namespace cuda_test {

TEST(Cuda, OneRankUsesNccl) {
  const Group group = init_process_group(Environment{});
  if (!at::hasCUDA()) {
    test::expect_error([&] { group.backend_name(c10::DeviceType::CUDA); }, {"cuda"});
    return;
  }
  EXPECT_EQ(group.backend_name(c10::DeviceType::CUDA), "nccl");
  // A group of one needs no collective of ours, so this asks c10d's NCCL itself.
  const at::Tensor tensor = at::ones({1000}, at::kCUDA);
  std::vector<at::Tensor> tensors{tensor};
  group.process_group()->allreduce(tensors)->wait();
  all_reduce(group, tensor).wait();
  EXPECT_EQ(tensor.sum().item<float>(), 1000);
}

TEST(Cuda, TwoRanksOnOneGpuUseGloo) {
  launch_threads(2, [](Group group) {
    if (!at::hasCUDA()) {
      test::expect_error([&] { group.backend_name(c10::DeviceType::CUDA); }, {"cuda"});
      return;
    }
    const auto on_gpu = at::TensorOptions(at::kCUDA).dtype(at::kFloat);
    const at::Tensor whole = at::arange(100000, on_gpu).add(group.rank());
    const at::Tensor part = at::empty({50000}, on_gpu);
    reduce_scatter(group, part, whole).wait();
    const at::Tensor expected = at::arange(100000, on_gpu).mul(2).add(1);
    TORCH_CHECK(part.equal(expected.slice(0, group.rank() * 50000, group.rank() * 50000 + 50000)),
                "wrong part");
    const at::Tensor gathered = at::empty({100000}, on_gpu);
    all_gather(group, gathered, part).wait();
    TORCH_CHECK(gathered.equal(expected), "wrong whole");
    at::Tensor sum = at::full({70000}, group.rank() + 1.0, on_gpu);
    all_reduce(group, sum).wait();
    TORCH_CHECK(sum.eq(3).all().item<bool>(), "wrong sum");
    at::Tensor copy = at::full({5}, group.rank() + 1.0, on_gpu);
    broadcast(group, copy, 1).wait();
    TORCH_CHECK(copy.eq(2).all().item<bool>(), "wrong copy");
  });
}

}  // namespace cuda_test
}  // namespace fairshard::comm
