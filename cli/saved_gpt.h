#pragma once
// How a checkpoint says which model it has, so that it can be used without the options it was
// trained with.

#include "gpt/model.h"
#include <fairshard/checkpoint.h>

#include <string>

namespace fairshard::cli {

/// Adds the sizes of a model, as values beside the parts. `options` must live as long as the
/// checkpoint.
void add_sizes(Checkpoint& checkpoint, gpt::GptOptions& options);

/// The model of a checkpoint: its sizes and its weights; nothing else is read. If nodes differ,
/// that of the first. Throws, with the folder, if it is not one of `fairshard train`.
gpt::Gpt load_gpt(const std::string& folder);

}  // namespace fairshard::cli
