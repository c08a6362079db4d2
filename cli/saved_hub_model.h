#pragma once
// The model of a checkpoint of `fairshard train --model`.

#include <fairshard/models/model.h>

#include <c10/core/ScalarType.h>

#include <string>

namespace fairshard::cli {

/// Whether a checkpoint has such a model, and not the byte-level GPT.
bool has_hub_model(const std::string& checkpoint);

/// Its config and weights; nothing else is read. If nodes differ, that of the first.
models::CausalModel load_hub_model(const std::string& checkpoint);

/// Writes it to a folder that transformers loads, with the files of the tokenizer, if the folder
/// that it came from is still there. Weights are read one after another.
void export_hub_model(const std::string& checkpoint, const std::string& folder,
                      at::ScalarType dtype = at::kFloat);

}  // namespace fairshard::cli
