// What a user's first program may look like, built against an installed fairshard.
#include <fairshard/comm.h>

#include <torch/nn.h>
#include <torch/optim.h>

#include <iostream>

int main() {
  fairshard::comm::launch(2, [](fairshard::comm::Group group) {
    torch::manual_seed(0);
    torch::nn::Linear model(4, 1);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    model->forward(torch::full({2, 4}, group.rank() + 1.0)).pow(2).mean().backward();
    for (const auto& parameter : model->parameters()) {
      fairshard::comm::all_reduce(group, parameter.grad(), fairshard::comm::ReduceOp::kAvg).wait();
    }
    optimizer.step();
  });
  std::cout << "trained a step on 2 ranks\n";
}
