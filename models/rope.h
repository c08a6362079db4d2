#pragma once
// Rotary embeddings: queries and keys are turned by angles that grow with the position.

#include "config_json.h"
#include <fairshard/models/config.h>
#include <fairshard/models/model.h>

namespace fairshard::models {

/// What a config.json says of them, in its old form (rope_theta, rope_scaling) or its new one
/// (rope_parameters). `config` has all sizes. Types that are not known are refused by name.
RopeConfig read_rope(const ConfigJson& json, const ModelConfig& config);

/// How far each pair of features turns per position, {head_dim / 2} in float32.
at::Tensor rope_frequencies(const RopeConfig& rope, int64_t head_dim);

struct Positions {
  int64_t begin = 0;
  int64_t end = 0;
};

/// For some positions, from frequencies.
Rotation rotation_of(const RopeConfig& rope, const at::Tensor& frequencies,
                     const Positions& positions, const at::TensorOptions& options);

/// Queries or keys {batch, heads, length, head_dim}, turned. Pairs are features i and
/// i + head_dim / 2.
at::Tensor rotated(const at::Tensor& heads, const Rotation& rotation);

}  // namespace fairshard::models
