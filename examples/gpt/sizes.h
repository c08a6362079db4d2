#pragma once
// Sizes of the model that have a name, for the trainer and the planner.

#include "gpt/model_options.h"

#include <string>
#include <vector>

namespace gpt {

struct NamedSize {
  std::string name;
  GptOptions options;
};

/// From the smallest to the largest.
const std::vector<NamedSize>& named_sizes();

/// The options of a size; throws c10::ValueError with all names if there is none of this name.
const GptOptions& size_named(const std::string& name);

}  // namespace gpt
