#include "rope.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fairshard::models {
namespace {

/// YaRN keeps the entropy of attention over longer texts.
double entropy_scale(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

double yarn_attention_factor(const ConfigJson& rope, double factor) {
  if (rope.has("attention_factor")) {
    return rope.number("attention_factor");
  }
  const double weight = rope.number("mscale", 0);
  const double weight_of_all = rope.number("mscale_all_dim", 0);
  return weight != 0 && weight_of_all != 0
             ? entropy_scale(factor, weight) / entropy_scale(factor, weight_of_all)
             : entropy_scale(factor, 1);
}

void check_scaling(const RopeConfig& rope, const std::string& what) {
  TORCH_CHECK_VALUE(rope.theta > 1, what, ": the base of rotary embeddings, rope_theta, is ",
                    rope.theta, ", but must be above 1");
  TORCH_CHECK_VALUE(rope.factor > 0, what, ": 'factor' is ", rope.factor, ", but must be positive");
  TORCH_CHECK_VALUE(rope.type != "llama3" || rope.high_freq_factor > rope.low_freq_factor, what,
                    ": 'high_freq_factor' is ", rope.high_freq_factor,
                    ", but must be above 'low_freq_factor', ", rope.low_freq_factor);
}

/// Up to here features turn `turns` times or more within the length that a model was trained with.
double feature_that_turns(double turns, const RopeConfig& rope, int64_t head_dim) {
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  return static_cast<double>(head_dim) * std::log(length / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

/// Slow frequencies are divided by the factor, fast ones are left alone, and those between them
/// are mixed.
at::Tensor llama3_frequencies(const RopeConfig& rope, const at::Tensor& plain) {
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  const at::Tensor turns = plain * (length / (2 * std::numbers::pi));
  const at::Tensor kept =
      ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1);
  return (1 - kept) * plain / rope.factor + kept * plain;
}

at::Tensor yarn_frequencies(const RopeConfig& rope, const at::Tensor& plain, int64_t head_dim) {
  double first = feature_that_turns(rope.beta_fast, rope, head_dim);
  double last = feature_that_turns(rope.beta_slow, rope, head_dim);
  if (rope.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(head_dim - 1));
  constexpr double kNoStep = 0.001;
  const double width = first == last ? kNoStep : last - first;
  const at::Tensor divided =
      ((at::arange(head_dim / 2, plain.options()) - first) / width).clamp(0, 1);
  return plain / rope.factor * divided + plain * (1 - divided);
}

}  // namespace

RopeConfig read_rope(const ConfigJson& json, const ModelConfig& config) {
  RopeConfig rope;
  const auto scaling = json.object("rope_scaling");
  const auto parameters = scaling ? scaling : json.object("rope_parameters");
  rope.theta = json.number("rope_theta", rope.theta);
  TORCH_CHECK_VALUE(config.head_dim % 2 == 0, json.what(), ": head_dim is ", config.head_dim,
                    ", but rotary embeddings need an even one");
  if (!parameters) {
    check_scaling(rope, json.what());
    return rope;
  }
  rope.theta = parameters->number("rope_theta", rope.theta);
  rope.type = parameters->text("rope_type", parameters->text("type", "default").c_str());
  const bool is_yarn = rope.type == "yarn", is_llama3 = rope.type == "llama3";
  TORCH_CHECK_VALUE(is_yarn || is_llama3 || rope.type == "linear" || rope.type == "default",
                    parameters->what(), ": the type '", rope.type,
                    "' of rotary embeddings is not supported; those that are: default, linear, "
                    "llama3, yarn");
  for (const auto& object : {json, *parameters}) {
    TORCH_CHECK_VALUE(object.number("partial_rotary_factor", 1) == 1, object.what(),
                      ": a 'partial_rotary_factor' is not supported");
  }
  if (rope.type == "default") {
    check_scaling(rope, parameters->what());
    return rope;
  }
  rope.factor = parameters->number("factor");
  if (is_llama3 || is_yarn) {
    constexpr const char* kLength = "original_max_position_embeddings";
    rope.original_max_position_embeddings =
        json.size(kLength, parameters->size(kLength, config.max_position_embeddings));
  }
  if (is_llama3) {
    rope.low_freq_factor = parameters->number("low_freq_factor");
    rope.high_freq_factor = parameters->number("high_freq_factor");
  }
  if (is_yarn) {
    rope.beta_fast = parameters->number("beta_fast", rope.beta_fast);
    rope.beta_slow = parameters->number("beta_slow", rope.beta_slow);
    rope.truncate = parameters->flag("truncate", rope.truncate);
    rope.attention_factor = yarn_attention_factor(*parameters, rope.factor);
  }
  check_scaling(rope, parameters->what());
  return rope;
}

at::Tensor rope_frequencies(const RopeConfig& rope, int64_t head_dim) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor plain = at::pow(rope.theta, exponents).reciprocal();
  if (rope.type == "linear") {
    return plain / rope.factor;
  }
  return rope.type == "llama3" ? llama3_frequencies(rope, plain)
         : rope.type == "yarn" ? yarn_frequencies(rope, plain, head_dim)
                               : plain;
}

Rotation rotation_of(const RopeConfig& rope, const at::Tensor& frequencies,
                     const Positions& positions, const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  const auto in_float32 = options.dtype(at::kFloat);  // positions of bfloat16 end at 256
  const at::Tensor angles = at::outer(at::arange(positions.begin, positions.end, in_float32),
                                      frequencies.to(in_float32.device()));
  return {(angles.cos() * rope.attention_factor).to(options.dtype()),
          (angles.sin() * rope.attention_factor).to(options.dtype())};
}

at::Tensor rotated(const at::Tensor& heads, const Rotation& rotation) {
  const auto halves = heads.chunk(2, -1);
  return at::cat({halves[0] * rotation.cos - halves[1] * rotation.sin,
                  halves[1] * rotation.cos + halves[0] * rotation.sin},
                 -1);
}

}  // namespace fairshard::models
