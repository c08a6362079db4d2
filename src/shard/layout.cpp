#include <fairshard/shard/layout.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace fairshard::shard {
namespace {

/// Counted in elements and not in bytes, so that a plan outlives a change of dtype: 64 bytes of the
/// narrowest dtype that is trained in.
constexpr int64_t kAlignElements = 32;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// What parameters of one bucket have in common.
auto kind_of(const Parameter& parameter) {
  const auto device = parameter.tensor.device();
  return std::tuple(parameter.group, parameter.tensor.scalar_type(), device.type(), device.index(),
                    parameter.tensor.requires_grad());
}

std::vector<size_t> last_first(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.rbegin(), order.rend(), size_t{0});
  return order;
}

/// See Note [Size of buckets] in plan.h.
int64_t fitting_bucket_bytes(const std::vector<Parameter>& parameters, int ranks,
                             bool least_memory) {
  const bool is_on_host = parameters.empty() || !parameters[0].tensor.is_cuda();
  const int64_t most = int64_t{is_on_host || least_memory ? 25 : 128} << 20;
  const int64_t buckets = least_memory ? 16 : 8;
  const int64_t least = least_memory ? int64_t{1} << 20 : ranks * (int64_t{4} << 20);
  int64_t bytes = 0;
  for (const Parameter& parameter : parameters) {
    bytes += static_cast<int64_t>(parameter.tensor.nbytes());
  }
  return std::min(std::max(bytes / buckets, least), most);
}

/// Parameters for each bucket.
std::vector<std::vector<size_t>> fill_buckets(const std::vector<Parameter>& parameters,
                                              const std::vector<size_t>& order,
                                              int64_t bucket_bytes, int64_t first_bucket_bytes) {
  struct Open {
    size_t bucket;
    int64_t bytes;
  };
  std::vector<std::vector<size_t>> buckets;
  std::map<decltype(kind_of(parameters[0])), Open> open;
  for (const size_t i : order) {
    const at::Tensor& tensor = parameters[i].tensor;
    const int64_t bytes = tensor.numel() * tensor.element_size();
    const auto is_full = [&](const Open& some) {
      return some.bytes + bytes > bucket_bytes ||
             (some.bucket == 0 && some.bytes >= first_bucket_bytes);
    };
    auto found = open.find(kind_of(parameters[i]));
    if (found == open.end() || is_full(found->second)) {
      found = open.insert_or_assign(kind_of(parameters[i]), Open{buckets.size(), 0}).first;
      buckets.emplace_back();
    }
    found->second.bytes += bytes;
    buckets[found->second.bucket].push_back(i);
  }
  return buckets;
}

/// The owner of each parameter: the largest first, each to the rank that has least so far.
std::vector<int> balance(const std::vector<Parameter>& parameters, int ranks) {
  std::vector<size_t> by_size(parameters.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) {
    return parameters[a].tensor.numel() > parameters[b].tensor.numel();
  });
  std::vector<int64_t> loads(ranks);
  std::vector<int> owners(parameters.size());
  for (const size_t i : by_size) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += parameters[i].tensor.numel();
    owners[i] = static_cast<int>(least - loads.begin());
  }
  return owners;
}

}  // namespace

ShardLayout::ShardLayout(const std::vector<Parameter>& parameters, int ranks,
                         const LayoutOptions& options, std::vector<size_t> order)
    : ranks_(ranks),
      order_(order.empty() ? last_first(parameters.size()) : std::move(order)),
      places_(parameters.size()) {
  const int64_t bytes = options.bucket_bytes().value_or(
      fitting_bucket_bytes(parameters, ranks, options.least_memory()));
  TORCH_CHECK_VALUE(bytes >= 0, "bucket_bytes is ", bytes, ", but must not be negative");
  const bool is_even = options.partition() == Partition::kEven;
  const auto owners = is_even ? std::vector<int>() : balance(parameters, ranks);
  for (auto& members : fill_buckets(parameters, order_, bytes, options.first_bucket_bytes())) {
    if (!is_even) {
      std::stable_sort(members.begin(), members.end(),
                       [&](size_t a, size_t b) { return owners[a] < owners[b]; });
    }
    Bucket bucket;
    int64_t end = 0;
    for (const size_t i : members) {
      if (!is_even) {
        bucket.bounds.resize(owners[i] + 1, end);
      }
      places_[i] = {buckets_.size(), bucket.slots.size()};
      bucket.slots.push_back({i, end, parameters[i].tensor.numel()});
      end = round_up(end + parameters[i].tensor.numel(), kAlignElements);
    }
    bucket.bounds.resize(ranks + 1, end);
    if (is_even) {
      const int64_t length = round_up(end, kAlignElements * ranks) / ranks;
      for (int rank = 0; rank <= ranks; ++rank) {
        bucket.bounds[rank] = rank * length;
      }
    }
    buckets_.push_back(std::move(bucket));
  }
}

std::vector<Piece> ShardLayout::pieces(int rank) const {
  std::vector<Piece> result;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const auto some = pieces(rank, b);
    result.insert(result.end(), some.begin(), some.end());
  }
  return result;
}

std::vector<Piece> ShardLayout::pieces(int rank, size_t bucket) const {
  std::vector<Piece> result;
  const int64_t begin = buckets_[bucket].bounds[rank];
  const int64_t end = buckets_[bucket].bounds[rank + 1];
  for (const Slot& slot : buckets_[bucket].slots) {
    const int64_t from = std::max(slot.offset, begin);
    const int64_t to = std::min(slot.offset + slot.numel, end);
    if (from < to) {
      result.push_back(
          {bucket, slot.parameter, from - slot.offset, to - slot.offset, from - begin});
    }
  }
  return result;
}

}  // namespace fairshard::shard
