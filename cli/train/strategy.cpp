#include "strategy.h"

#include <torch/utils.h>

namespace fairshard::cli::training {

LanguageModel make_language_model(const TrainOptions& options) {
  return options.hub ? make_hub_model(options) : make_byte_model(options);
}

std::unique_ptr<Strategy> make_strategy(const comm::Group& group, const TrainOptions& options,
                                        at::Device device) {
  torch::manual_seed(options.seed);
  LanguageModel model = make_language_model(options);
  if (options.offload > 0) {
    return make_offload(group, model, options, device);
  }
  model->to(device);
  model->set_checkpoint_activation(options.checkpoint_activation);
  return options.has_nodes() ? make_nodes_apart(group, model, options)
                             : make_data_parallel(group, model, options);
}

}  // namespace fairshard::cli::training
