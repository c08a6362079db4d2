#include <fairshard/data/resumable_sampler.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>

namespace fairshard {
namespace {

/// One number of two, such that neighbours lead to generators that have nothing in common.
uint64_t mixed(uint64_t seed, uint64_t epoch) {
  uint64_t value = seed + (epoch + 1) * 0x9E3779B97F4A7C15ULL;  // an odd number without a pattern
  for (int i = 0; i < 2; ++i) {
    value = (value ^ (value >> 31)) * 0xD6E8FEB86659FD93ULL;
  }
  return value ^ (value >> 32);
}

}  // namespace

ResumableSampler::ResumableSampler(int rank, int ranks, int64_t samples,
                                   const SamplerOptions& options)
    : rank_(rank), ranks_(ranks), samples_(samples), options_(options) {
  TORCH_CHECK_VALUE(rank >= 0, "ResumableSampler: this process is not in the group of ", ranks,
                    " ranks");
  TORCH_CHECK_VALUE(options.batch() >= 1 && options.batch() % ranks == 0, "batch is ",
                    options.batch(), ", but must be a multiple of the ", ranks, " rank(s)");
  TORCH_CHECK_VALUE(samples >= options.batch(), "there are ", samples, " samples, but a batch has ",
                    options.batch());
}

ResumableSampler::ResumableSampler(const comm::Group& group, int64_t samples,
                                   const SamplerOptions& options)
    : ResumableSampler(group.rank(), group.size(), samples, options) {}

ResumableSampler::ResumableSampler(int64_t samples, const SamplerOptions& options)
    : ResumableSampler(0, 1, samples, options) {}

std::vector<size_t> ResumableSampler::next() {
  if (samples_ - position_ < options_.batch()) {
    go_to(epoch_ + 1, 0);
  }
  if (options_.shuffle() && ordered_epoch_ != epoch_) {
    auto generator =
        at::detail::createCPUGenerator(mixed(options_.seed(), static_cast<uint64_t>(epoch_)));
    const at::Tensor order = at::randperm(samples_, generator, at::kLong);
    order_.assign(order.const_data_ptr<int64_t>(), order.const_data_ptr<int64_t>() + samples_);
    ordered_epoch_ = epoch_;
  }
  const int64_t own = options_.batch() / ranks_;
  std::vector<size_t> result;
  for (int64_t i = position_ + rank_ * own; i < position_ + (rank_ + 1) * own; ++i) {
    result.push_back(static_cast<size_t>(options_.shuffle() ? order_[i] : i));
  }
  position_ += options_.batch();
  return result;
}

void ResumableSampler::go_to(int64_t epoch, int64_t position) {
  TORCH_CHECK_VALUE(epoch >= 0 && position >= 0 && position <= samples_, "epoch ", epoch,
                    ", position ", position, " is nowhere in ", samples_, " samples");
  epoch_ = epoch;
  position_ = position;
}

void ResumableSampler::set_seed(uint64_t seed) {
  options_.seed(seed);
  ordered_epoch_.reset();
}

}  // namespace fairshard
