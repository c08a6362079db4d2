// Trains a small GPT in mixed precision and prints every loss, for a test that does the same with
// Python's torch.amp: fairshard-amp-loss-curve DEVICE STEPS, with float16 on cuda, bfloat16 on cpu.
#include "gpt/model.h"
#include <fairshard/amp/autocast.h>
#include <fairshard/comm.h>
#include <fairshard/nn/sharded_data_parallel.h>
#include <fairshard/optim/fused.h>
#include <fairshard/optim/grad_scaler.h>

#include <torch/nn/functional/loss.h>

#include <cstdio>
#include <cstdlib>

namespace {

/// The same numbers in every language: weights from torch's generator, and text from a formula.
void fill_weights(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(0);
  for (auto& item : model.named_parameters()) {
    const at::Tensor drawn = torch::randn(item.value().sizes()) * 0.05;
    const bool is_norm_weight = item.key().find("norm.weight") != std::string::npos;
    item.value().copy_(is_norm_weight ? drawn + 1 : drawn);
  }
}

at::Tensor text_of(int64_t step, at::Device device) {
  const at::Tensor row = torch::arange(8, torch::kLong).unsqueeze(1) * 31 + step * 17;
  const at::Tensor place = torch::arange(33, torch::kLong).unsqueeze(0);
  return ((row + place * 3 + (place % 5) * (row % 7)) % 97).to(device);
}

void train(const fairshard::comm::Group& group, at::Device device, int steps) {
  gpt::Gpt model(gpt::GptOptions().layers(2).width(64).heads(4).context(32));
  fill_weights(*model);
  model->to(device);
  fairshard::OSS<fairshard::AdamW> optimizer(group, *model, torch::optim::AdamWOptions(3e-3));
  fairshard::ShardedDataParallel<gpt::Gpt> parallel(group, model, optimizer);
  fairshard::ShardedGradScaler scaler(
      group, fairshard::GradScalerOptions().init_scale(65536.0 * 1024).growth_interval(20));
  for (int step = 0; step < steps; ++step) {
    const at::Tensor text = text_of(step, device);
    at::Tensor loss;
    {
      const fairshard::Autocast autocast(device.type());
      const at::Tensor logits = parallel.forward(text.slice(1, 0, -1));
      loss = gpt::loss_of(logits, text.slice(1, 1));
    }
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    optimizer.clip_grad_norm(1.0);
    scaler.step(optimizer);
    scaler.update();
    std::printf("%.6f %.0f\n", loss.item<double>(), scaler.get_scale());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s DEVICE STEPS\n", argv[0]);
    return 2;
  }
  const at::Device device(argv[1]);
  const int steps = std::atoi(argv[2]);
  fairshard::comm::launch_threads(
      1, [&](const fairshard::comm::Group& group) { train(group, device, steps); });
  return 0;
}
