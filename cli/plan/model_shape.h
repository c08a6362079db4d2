#pragma once
// plan/ predicts what a model needs before it is trained. This header: what is known of the model.

#include "gpt/model_options.h"
#include <fairshard/models/config.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fairshard::cli::planning {

inline constexpr int64_t kFloat = 4;  ///< bytes of an element

struct ParameterShape {
  std::string name;
  int64_t numel = 0;
};

/// A model's folder, as the trainer takes it.
struct HubShape {
  std::string folder;
  models::ModelConfig config;
  /// Tokens per window.
  int64_t context = 0;
};

struct ModelShape {
  std::string name;
  /// In the order in which a module registers them.
  std::vector<ParameterShape> parameters;
  /// Parts that run one after another, by the numbers of their parameters. Parts may share some.
  std::vector<std::vector<size_t>> blocks;
  /// Where it is known what is computed, and so what must be kept for backward.
  std::optional<gpt::GptOptions> gpt;
  std::optional<HubShape> hub;

  /// Whether the trainer can train it, so that it is known what is computed.
  bool is_trainable() const { return gpt || hub; }
  /// Tokens of a window, if it is.
  int64_t window() const { return gpt ? gpt->context() : hub.value().context; }
  int64_t parameter_count() const;
};

/// The trainer's model. Its blocks are the embeddings, the layers and the read-out.
ModelShape shape_of_gpt(const std::string& name, const gpt::GptOptions& options);

/// The numbers of a layer's first parameter and of those after the layers; see shape_of_gpt().
constexpr size_t kTokenEmbedding = 0;
constexpr size_t kPositionEmbedding = 1;
constexpr size_t first_of_layer(int64_t layer) { return 2 + 12 * static_cast<size_t>(layer); }

/// A model's folder, by its config.json, for windows of `context` tokens, or 0: the usual. Its
/// blocks are the embeddings, the layers and the read-out.
ModelShape shape_of_hub(const std::string& folder, int64_t context);

/// The tensors of a safetensors file, or those of the part "model" of a checkpoint. What is not
/// floating point is passed over. Throws c10::ValueError with the path if there is nothing to train
/// in it.
ModelShape shape_of_path(const std::string& path);

/// So many parameters, in a hundred equal tensors.
ModelShape shape_of_count(int64_t parameters);

}  // namespace fairshard::cli::planning
