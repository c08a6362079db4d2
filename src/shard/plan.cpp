#include <fairshard/shard/plan.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace fairshard::shard {
namespace {

constexpr int64_t kAlignBytes = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// What parameters of one bucket have in common.
auto kind_of(const Parameter& parameter) {
  const auto device = parameter.tensor.device();
  return std::tuple(parameter.group, parameter.tensor.scalar_type(), device.type(), device.index(),
                    parameter.tensor.requires_grad());
}

}  // namespace

ShardPlan::ShardPlan(const std::vector<Parameter>& parameters, int ranks,
                     const PlanOptions& options)
    : ranks_(ranks), places_(parameters.size()) {
  TORCH_CHECK_VALUE(options.bucket_bytes() >= 0, "bucket_bytes is ", options.bucket_bytes(),
                    ", but must not be negative");
  std::map<decltype(kind_of(parameters[0])), size_t> open;
  for (size_t i = parameters.size(); i-- > 0;) {
    const at::Tensor& tensor = parameters[i].tensor;
    const auto align = kAlignBytes / tensor.element_size();
    const bool is_first = buckets_.size() <= 1;
    const int64_t limit = is_first ? std::min(options.first_bucket_bytes(), options.bucket_bytes())
                                   : options.bucket_bytes();
    const auto found = open.find(kind_of(parameters[i]));
    const bool fits =
        found != open.end() &&
        (buckets_[found->second].length + tensor.numel()) * tensor.element_size() <= limit;
    if (!fits) {
      open[kind_of(parameters[i])] = buckets_.size();
      buckets_.push_back({tensor.scalar_type(), tensor.device(), {}, 0});
    }
    const size_t index = open[kind_of(parameters[i])];
    Bucket& bucket = buckets_[index];
    places_[i] = {index, bucket.slots.size()};
    bucket.slots.push_back({i, bucket.length, tensor.numel()});
    bucket.length = round_up(bucket.length + tensor.numel(), align);
  }
  for (auto& bucket : buckets_) {
    const auto align = kAlignBytes / static_cast<int64_t>(c10::elementSize(bucket.dtype));
    bucket.length = round_up(bucket.length, align * ranks);
  }
}

std::vector<Piece> ShardPlan::pieces(int rank) const {
  std::vector<Piece> result;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const int64_t begin = rank * range_length(b);
    const int64_t end = begin + range_length(b);
    for (const Slot& slot : buckets_[b].slots) {
      const int64_t from = std::max(slot.offset, begin);
      const int64_t to = std::min(slot.offset + slot.numel, end);
      if (from < to) {
        result.push_back({b, slot.parameter, from - slot.offset, to - slot.offset, from - begin});
      }
    }
  }
  return result;
}

}  // namespace fairshard::shard
