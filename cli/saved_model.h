#pragma once
// How a checkpoint says which model it has, so that it can be used without the options it was
// trained with.

#include "gpt/model.h"
#include <fairshard/checkpoint.h>

#include <string>

namespace fairshard::cli {

/// Names of values of a checkpoint whose model is not the byte-level GPT.
constexpr const char* kHubConfig = "hub/config";
constexpr const char* kHubFolder = "hub/folder";

/// What a checkpoint says of its model beside its weights.
struct SavedModel {
  /// Of the byte-level GPT, and how long windows are.
  gpt::GptOptions gpt;
  /// The config.json of another model, and the folder that it came from.
  std::string config;
  std::string folder;
};

/// Adds it, as values beside the parts. `model` must live as long as the checkpoint.
void add_model(Checkpoint& checkpoint, SavedModel& model);

/// The byte-level GPT of a checkpoint: its sizes and its weights; nothing else is read. If nodes
/// differ, that of the first. Throws, with the folder, if it is not one of `fairshard train`.
gpt::Gpt load_gpt(const std::string& folder);

}  // namespace fairshard::cli
