#include <fairshard/models/paging.h>

#include <memory>
#include <string>
#include <utility>

namespace fairshard::models {
namespace {

using Values = OffloadBlock::Values;

/// Some of the model's own modules, to say which parameters a block has.
std::shared_ptr<torch::nn::Module> joined(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  auto all = std::make_shared<torch::nn::Module>("part");
  for (size_t i = 0; i < modules.size(); ++i) {
    all->register_module(std::to_string(i), modules[i]);
  }
  return all;
}

}  // namespace

// Blocks pass on {hidden, cosines and sines, if there are any, and labels, if they were given}.
std::vector<OffloadBlock> offload_blocks(const CausalModel& model) {
  CausalModel handle = model;  // the model itself is shared
  std::vector<OffloadBlock> result;
  result.push_back({joined(model->embedding_modules()), [handle](const Values& inputs) mutable {
                      const at::Tensor hidden = handle->embed(inputs.at(0));
                      const Rotation turned = handle->rotation(hidden, /*first=*/0);
                      Values values{hidden};
                      if (turned.cos.defined()) {
                        values.insert(values.end(), {turned.cos, turned.sin});
                      }
                      values.insert(values.end(), inputs.begin() + 1, inputs.end());
                      return values;
                    }});
  for (const auto& block : handle->blocks()) {
    result.push_back({block, [block](const Values& inputs) {
                        Values values = inputs;
                        const bool has_rotation = inputs.size() > 2;
                        const Rotation turned =
                            has_rotation ? Rotation{inputs[1], inputs[2]} : Rotation();
                        values[0] = block->forward(inputs.at(0), turned, nullptr);
                        return values;
                      }});
  }
  result.push_back(
      {joined(model->read_out_modules()), [handle](const Values& inputs) mutable -> Values {
         const at::Tensor hidden = handle->norm(inputs.at(0));
         const bool has_labels = inputs.size() % 2 == 0;
         return {has_labels ? handle->loss_of(hidden, inputs.back()) : handle->logits(hidden)};
       }});
  return result;
}

}  // namespace fairshard::models
