#include "strategy.h"

#include <torch/utils.h>

namespace fairshard::cli::training {

std::unique_ptr<Strategy> make_strategy(const comm::Group& group, const TrainOptions& options,
                                        at::Device device) {
  torch::manual_seed(options.seed);
  gpt::Gpt model(options.model);
  if (options.offload > 0) {
    return make_offload(group, model, options, device);
  }
  model->to(device);
  model->set_checkpoint_activation(options.checkpoint_activation);
  return options.has_nodes() ? make_nodes_apart(group, model, options)
                             : make_data_parallel(group, model, options);
}

}  // namespace fairshard::cli::training
