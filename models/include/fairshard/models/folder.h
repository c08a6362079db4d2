#pragma once
// Models from and to the folders that transformers' from_pretrained() and save_pretrained() know.

#include <fairshard/models/model.h>
#include <fairshard/store/safetensors.h>

#include <torch/arg.h>

#include <optional>
#include <string>
#include <vector>

namespace fairshard::models {

/// What load_model() is given.
struct LoadOptions {
  /// The dtype of the weights in memory; if it is not given, that which config.json names, else
  /// float32.
  TORCH_ARG(std::optional<at::ScalarType>, dtype);
};

/// Reads config.json and model.safetensors, or several files and their index. Weights that are
/// missing, too many or of other sizes are named. Local: every rank reads.
CausalModel load_model(const std::string& folder, const LoadOptions& options = {});

/// What save_model() is given.
struct SaveOptions {
  /// More than this goes to several files and an index of them; 0: one file.
  TORCH_ARG(int64_t, max_file_bytes) = 0;
};

/// Writes config.json, as it was read but for the class and the dtype, and the weights, in their
/// dtype and under transformers' names; a tied head is left out, as it is there. Makes the folder,
/// if need be, and refuses to replace a file. config.json comes last. Local: one rank calls it.
void save_model(const CausalModel& model, const std::string& folder,
                const SaveOptions& options = {});
/// The same for weights that are not in a model, under their names there, all of one dtype.
void save_model(const ModelConfig& config, const std::vector<store::TensorToWrite>& weights,
                const std::string& folder, const SaveOptions& options = {});

}  // namespace fairshard::models
