#include "gradients.h"
#include <fairshard/optim/grad_scaler.h>
#include <fairshard/optim/oss.h>
#include <fairshard/scale/scaled_backward.h>
#include <fairshard/scale/unscale.h>

#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <atomic>

namespace fairshard {
namespace {

/// The ranks that step together, and so must agree.
const comm::Group& group_of(const torch::optim::Optimizer& optimizer, const comm::Group& others) {
  const auto* const oss = dynamic_cast<const OssBase*>(&optimizer);
  return oss ? oss->sharded_step().group() : others;
}

int64_t next_number() {
  static std::atomic<int64_t> last = 0;
  return ++last;
}

}  // namespace

ShardedGradScaler::ShardedGradScaler(comm::Group group, const GradScalerOptions& options)
    : group_(std::move(group)), options_(options), number_(next_number()) {
  TORCH_CHECK_VALUE(options.init_scale() > 0, "init_scale is ", options.init_scale(),
                    ", but must be above 0");
  TORCH_CHECK_VALUE(options.growth_factor() > 1, "growth_factor is ", options.growth_factor(),
                    ", but must be above 1");
  TORCH_CHECK_VALUE(options.backoff_factor() > 0 && options.backoff_factor() < 1,
                    "backoff_factor is ", options.backoff_factor(),
                    ", but must be between 0 and 1");
  TORCH_CHECK_VALUE(options.growth_interval() >= 1, "growth_interval is ",
                    options.growth_interval(), ", but must be at least 1");
  scale_ = at::full({1}, options.init_scale(), at::kFloat);
  steps_since_growth_ = at::zeros({1}, at::kInt);
}

at::Tensor ShardedGradScaler::scale(const at::Tensor& loss) {
  if (!is_enabled()) {
    return loss;
  }
  scale_ = scale_.to(loss.device());
  steps_since_growth_ = steps_since_growth_.to(loss.device());
  at::Tensor scaled = loss * scale_.view(std::vector<int64_t>(loss.dim(), 1));
  if (scaled.requires_grad()) {
    scaled.register_hook([number = number_, scale = scale_](const at::Tensor&) {
      scale::mark_scaled_backward(number, scale);
    });
  }
  return scaled;
}

void ShardedGradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) {
    return;
  }
  Progress& progress = optimizers_[&optimizer];
  TORCH_CHECK(progress.stage != Stage::kUnscaled,
              "unscale_() has already been called for this optimizer since the last update()");
  TORCH_CHECK(progress.stage != Stage::kStepped,
              "unscale_() is called after step(), without an update() between them");
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  progress.found_infinity = scale::unscale(
      group_of(optimizer, group_), detail::gradient_memory_of(optimizer), inverse, scale_.device());
  if (const auto* const oss = dynamic_cast<const OssBase*>(&optimizer)) {
    oss->sharded_step().set_scaled_by(0);
  }
  progress.stage = Stage::kUnscaled;
}

bool ShardedGradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) {
    optimizer.step();
    return true;
  }
  Progress& progress = optimizers_[&optimizer];
  TORCH_CHECK(progress.stage != Stage::kStepped,
              "step() has already been called for this optimizer since the last update()");
  if (progress.stage == Stage::kReady) {
    unscale_(optimizer);
  }
  const bool is_finite = progress.found_infinity.item<float>() == 0;
  if (is_finite) {
    optimizer.step();
  }
  progress.stage = Stage::kStepped;
  return is_finite;
}

void ShardedGradScaler::update(std::optional<double> new_scale) {
  if (!is_enabled()) {
    return;
  }
  if (new_scale) {
    TORCH_CHECK_VALUE(*new_scale > 0, "the new scale is ", *new_scale, ", but must be above 0");
    scale_.fill_(*new_scale);
  } else {
    at::Tensor found = at::zeros({1}, scale_.options());
    bool has_any = false;
    for (const auto& [optimizer, progress] : optimizers_) {
      if (progress.found_infinity.defined()) {
        found.add_(progress.found_infinity);
        has_any = true;
      }
    }
    TORCH_CHECK(has_any, "update() is called before step(): no optimizer's gradients were checked");
    at::_amp_update_scale_(scale_, steps_since_growth_, found, options_.growth_factor(),
                           options_.backoff_factor(), options_.growth_interval());
  }
  optimizers_.clear();
}

double ShardedGradScaler::get_scale() const { return is_enabled() ? scale_.item<double>() : 1.0; }

int64_t ShardedGradScaler::get_growth_tracker() const {
  return steps_since_growth_.item<int64_t>();
}

void ShardedGradScaler::set_progress(double scale, int64_t growth_tracker) {
  TORCH_CHECK_VALUE(scale > 0, "the scale is ", scale, ", but must be above 0");
  scale_.fill_(scale);
  steps_since_growth_.fill_(growth_tracker);
}

void ShardedGradScaler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("scale", scale_, true);
  archive.write("steps_since_growth", steps_since_growth_, true);
}

void ShardedGradScaler::load(torch::serialize::InputArchive& archive) {
  at::Tensor scale;
  at::Tensor steps;
  archive.read("scale", scale, true);
  archive.read("steps_since_growth", steps, true);
  scale_ = scale.to(scale_.device());
  steps_since_growth_ = steps.to(scale_.device());
}

}  // namespace fairshard
