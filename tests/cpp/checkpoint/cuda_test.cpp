// A state on a GPU, saved beside later steps and loaded again, with the GPU's random generator.
// Where there is no GPU, the same on the CPU.
#include "support/temporary_directory.h"
#include "support/training.h"
#include <fairshard/checkpoint.h>
#include <fairshard/optim/fused.h>

#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

namespace fairshard {
namespace cuda_test {

at::Device device() { return at::hasCUDA() ? at::Device("cuda:0") : at::Device("cpu"); }

void step(torch::nn::Sequential& model, AdamW& optimizer, int number) {
  optimizer.zero_grad();
  test::loss_of(model->forward(test::input(0, number).to(device()))).backward();
  optimizer.step();
}

TEST(CudaCheckpoint, AStateOnADeviceComesBack) {
  const test::TemporaryDirectory directory;
  auto model = test::make_model();
  model->to(device());
  AdamW optimizer(model->parameters());
  Checkpoint checkpoint(directory.path());
  checkpoint.add("model", *model).add("optimizer", optimizer).add_rng();
  at::rand({3}, device());
  step(model, optimizer, 0);
  checkpoint.save_async(1);
  const at::Tensor random = at::rand({10}, device());
  step(model, optimizer, 1);  // while it is written
  step(model, optimizer, 2);
  checkpoint.wait();

  auto resumed = test::make_model(7);
  resumed->to(device());
  AdamW resumed_optimizer(resumed->parameters());
  Checkpoint again(directory.path());
  again.add("model", *resumed).add("optimizer", resumed_optimizer).add_rng();
  again.load();
  EXPECT_TRUE(at::rand({10}, device()).equal(random));
  step(resumed, resumed_optimizer, 1);
  step(resumed, resumed_optimizer, 2);
  test::require_same(test::values_of(*resumed), test::values_of(*model), true);
}

}  // namespace cuda_test
}  // namespace fairshard
