#pragma once
// What the tutorials leave open: ranks, a device, data, a model. The twin of _digits.py.

#include <fairshard/comm.h>
#include <fairshard/optim/oss.h>

#include <torch/nn.h>

#include <functional>
#include <vector>

namespace tutorials {

struct Batch {
  torch::Tensor data;
  torch::Tensor target;
};

/// A rank's batches of digits of 8 x 8 pixels: noisy copies of ten random patterns, so that nothing
/// is downloaded.
std::vector<Batch> make_dataloader(int rank, at::Device device);

torch::nn::Sequential make_model(at::Device device);

/// A GPU, if there is one; ranks may share it.
at::Device device_of(int rank);

/// One line per rank: did it learn, and how much of the optimizer state does it have.
void report(int rank, const std::vector<float>& losses, const fairshard::OssBase& optimizer);

/// Runs `train` on as many local ranks as the command line says, or else `ranks`. Returns what
/// main() returns.
int run_ranks(int argc, char** argv, int ranks,
              const std::function<void(fairshard::comm::Group)>& train);

}  // namespace tutorials
