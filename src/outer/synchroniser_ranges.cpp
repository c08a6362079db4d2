// What a Synchroniser keeps, by ranges of parameters: other numbers of nodes and ranks may load it.
#include "synchroniser_impl.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace fairshard::outer {

bool Synchroniser::is_optional(const std::string& field) {
  return field == "pending" || field == "excess" || field == "incoming";
}

/// Of a buffer that has the elements of a bucket which this rank owns, or all of them.
void Synchroniser::Impl::add_ranges(const std::string& field, size_t bucket,
                                    const at::Tensor& buffer, bool is_own,
                                    std::vector<OuterRange>& result) const {
  const int64_t first = is_own ? buckets_[bucket].begin : 0;
  for (const auto& slot : buckets_[bucket].slots) {
    const int64_t from = std::max(slot.offset, first);
    const int64_t to = std::min(slot.offset + slot.numel, first + buffer.numel());
    if (from < to) {
      const Whole& whole = wholes_[slot.parameter];
      const int64_t begin = whole.begin + from - slot.offset;
      result.push_back({field, whole.name, whole.tensor, is_partitioned_, begin, begin + to - from,
                        buffer.narrow(0, from - first, to - from), bucket});
    }
  }
}

/// Outer parameters and momentum are whole on each rank unless buffers are sharded: with `is_own`
/// only the rank's range of them.
void Synchroniser::Impl::add_kept_ranges(bool is_own, std::vector<OuterRange>& result) const {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const OuterBucket& bucket = buckets_[b];
    for (const auto& [field, buffer] :
         {std::pair("outer", bucket.outer), std::pair("momentum", bucket.momentum)}) {
      if (!buffer.defined()) {
        continue;
      }
      if (!options.shard_buffers() && is_own) {
        add_ranges(field, b, buffer.narrow(0, bucket.begin, bucket.end - bucket.begin), true,
                   result);
      } else {
        add_ranges(field, b, buffer, options.shard_buffers(), result);
      }
    }
    if (bucket.error.defined()) {
      add_ranges("error", b, bucket.error, true, result);
    }
  }
}

std::vector<OuterRange> Synchroniser::Impl::ranges() {
  const at::NoGradGuard no_grad;
  std::vector<OuterRange> result;
  add_kept_ranges(/*is_own=*/true, result);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].pending) {
      add_ranges("pending", b, buckets_[b].pending->wait(), true, result);
    }
  }
  if (gossip) {
    for (const auto& [field, buffers] :
         {std::pair("excess", &gossip->excess()), std::pair("incoming", &gossip->arrived())}) {
      for (size_t b = 0; b < buffers->size(); ++b) {
        add_ranges(field, b, (*buffers)[b], true, result);
      }
    }
  }
  return result;
}

std::vector<OuterRange> Synchroniser::Impl::wanted_ranges() {
  const at::NoGradGuard no_grad;
  std::vector<OuterRange> result;
  add_kept_ranges(/*is_own=*/false, result);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const OuterBucket& bucket = buckets_[b];
    const auto want = [&](const char* field, at::Device device) {
      const auto options = at::device(device).dtype(bucket.dtype);
      add_ranges(field, b, at::zeros({bucket.end - bucket.begin}, options), true, result);
    };
    if (gossip) {
      want("excess", bucket.device);
      want("incoming", bucket.device);
    } else if (options.delay() > 0) {
      want("pending", state_device(bucket));
    }
  }
  return result;
}

void Synchroniser::Impl::take_range(const OuterRange& range) {
  if (Synchroniser::is_optional(range.field)) {
    const OuterBucket& bucket = buckets_[range.bucket];
    // All ranges of a bucket are views of one tensor.
    arrived_[{range.field, range.bucket}] =
        range.values.as_strided({bucket.end - bucket.begin}, {1}, 0);
  }
}

void Synchroniser::Impl::finish_loading(const std::map<std::string, double>& saved) {
  const at::NoGradGuard no_grad;
  Arrived arrived = std::exchange(arrived_, {});
  std::vector<at::Tensor> excess;
  std::vector<at::Tensor> incoming;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const at::Tensor pending = arrived[{"pending", b}];
    buckets_[b].pending = pending.defined() ? std::make_unique<PendingAverage>(pending) : nullptr;
    for (const auto& [field, list] :
         {std::pair("excess", &excess), std::pair("incoming", &incoming)}) {
      if (const at::Tensor buffer = arrived[{field, b}]; buffer.defined()) {
        list->push_back(buffer);
      }
    }
  }
  set_counts(saved);
  if (gossip && saved.at("nodes") == nodes.count()) {
    gossip->load(saved.at("push_sum_weight"), std::move(excess),
                 saved.at("arriving_push_sum_weight"), std::move(incoming));
  } else if (gossip) {
    gossip->load(1, {}, 0, {});  // what was under way was between other nodes
  }
}

}  // namespace fairshard::outer
