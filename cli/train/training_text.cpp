#include "training_text.h"

#include <filesystem>

namespace fairshard::cli::training {

bool is_token_file(const std::string& path) {
  return std::filesystem::path(path).extension() == ".safetensors";
}

std::unique_ptr<TrainingText> open_text(const TrainOptions& options) {
  return is_token_file(options.data) ? open_tokens(options) : open_bytes(options);
}

}  // namespace fairshard::cli::training
