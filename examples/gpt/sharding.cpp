#include "gpt/sharding.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace gpt {
namespace {

using fairshard::AdamW;
using fairshard::DataParallelMode;
using fairshard::OssBase;
using ShardedAdamW = fairshard::OSS<AdamW>;

/// The library's default would hold most of so small a model in one bucket. A larger parameter has
/// a bucket of its own.
constexpr int64_t kBucketBytes = int64_t{256} << 10;

fairshard::DataParallelOptions parallel_options(DataParallelMode mode) {
  return fairshard::DataParallelOptions().mode(mode).bucket_bytes(kBucketBytes);
}

std::vector<std::reference_wrapper<OssBase>> listed(OssBase* optimizer) {
  return optimizer ? std::vector{std::ref(*optimizer)}
                   : std::vector<std::reference_wrapper<OssBase>>();
}

/// Gradients pass through buckets of whole parameters: those under way, and one that is being
/// filled.
uint64_t most_bucket_bytes(const OssBase& optimizer, int buckets_in_flight) {
  std::vector<uint64_t> sizes;
  for (const auto& part : optimizer.parts()) {
    for (size_t i = 0; i < part->plan().buckets().size(); ++i) {
      sizes.push_back(part->bucket(i).nbytes());
    }
  }
  std::ranges::sort(sizes, std::ranges::greater());
  uint64_t bytes = 0;
  for (size_t i = 0; i < sizes.size() && i <= static_cast<size_t>(buckets_in_flight); ++i) {
    bytes += sizes[i];
  }
  return bytes;
}

/// The gradients of what this rank owns.
uint64_t gradient_range_bytes(const OssBase& optimizer) {
  uint64_t bytes = 0;
  for (const auto& part : optimizer.parts()) {
    for (size_t i = 0; i < part->plan().buckets().size(); ++i) {
      bytes += static_cast<uint64_t>(part->plan().range_length(i, part->group().rank())) *
               part->bucket(i).itemsize();
    }
  }
  return bytes;
}

uint64_t state_bytes(AdamW& optimizer) {
  uint64_t bytes = 0;
  for (const auto& entry : optimizer.state()) {
    const auto& state = static_cast<const fairshard::FusedState&>(*entry.second);
    bytes += state.average.nbytes() + state.square_average.nbytes();
  }
  return bytes;
}

}  // namespace

ShardedGpt::ShardedGpt(const fairshard::comm::Group& group, const Gpt& model, DataParallelMode mode,
                       const torch::optim::AdamWOptions& options)
    : mode_(mode),
      whole_(mode == DataParallelMode::kReplicated
                 ? std::make_unique<AdamW>(model->parameters(), options)
                 : nullptr),
      sharded_(whole_ ? nullptr
                      : std::make_unique<ShardedAdamW>(group, *model, options,
                                                       fairshard::OssOptions()
                                                           .bucket_bytes(kBucketBytes)
                                                           .first_bucket_bytes(kBucketBytes))),
      parallel_(group, model, listed(sharded_.get()), parallel_options(mode)) {}

void ShardedGpt::step(double lr) {
  torch::optim::Optimizer& optimizer =
      sharded_ ? static_cast<torch::optim::Optimizer&>(*sharded_) : *whole_;
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(lr);
  }
  optimizer.step();
}

MemoryUse ShardedGpt::memory_use() {
  MemoryUse use;
  for (const auto& parameter : module()->parameters()) {
    use.weights += parameter.nbytes();
    use.gradients += parameter.grad().defined() ? parameter.grad().nbytes() : 0;
  }
  use.optimizer_state = state_bytes(sharded_ ? sharded_->base() : *whole_);
  if (mode_ == DataParallelMode::kGradients) {
    use.gradients += gradient_range_bytes(*sharded_);
    use.buckets = most_bucket_bytes(*sharded_, parallel_options(mode_).buckets_in_flight());
  }
  return use;
}

}  // namespace gpt
