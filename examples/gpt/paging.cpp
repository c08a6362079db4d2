#include "gpt/paging.h"

#include <initializer_list>
#include <memory>
#include <string>

namespace gpt {
namespace {

using fairshard::OffloadBlock;
using Values = OffloadBlock::Values;

/// Some of the model's own modules, to say which parameters a block has.
class SomeOf : public torch::nn::Module {
 public:
  SomeOf(const torch::nn::Module& model, std::initializer_list<const char*> names) {
    const auto children = model.named_children();
    for (const char* const name : names) {
      register_module(name, children[name]);
    }
  }
};

std::shared_ptr<torch::nn::Module> some_of(const Gpt& model,
                                           std::initializer_list<const char*> names) {
  return std::make_shared<SomeOf>(*model, names);
}

}  // namespace

std::vector<OffloadBlock> offload_blocks(const Gpt& model) {
  Gpt handle = model;  // the model itself is shared
  std::vector<OffloadBlock> result;
  result.push_back(
      {some_of(model, {"token_embedding", "position_embedding"}),
       [handle](const Values& values) mutable -> Values { return {handle->embed(values.at(0))}; }});
  for (Block& block : handle->blocks()) {
    result.push_back({block.ptr(), [block](const Values& values) mutable -> Values {
                        return {block(values.at(0))};
                      }});
  }
  result.push_back({some_of(model, {"final_norm", "token_embedding"}),
                    [handle](const Values& values) mutable -> Values {
                      return {handle->read_out(values.at(0))};
                    }});
  return result;
}

}  // namespace gpt
