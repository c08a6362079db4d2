#include "segmented_reduce.h"

#include "peers.h"
#include "reduce.h"
#include <fairshard/comm/staging_bytes.h>

#include <algorithm>
#include <utility>

namespace fairshard::comm {
namespace {

/// So many segments are on their way from each peer.
constexpr int64_t kDepth = 2;

/// Long against a message's latency, but all that is on its way together is not to be much, and
/// less where ranks keep only what they own, to save memory.
int64_t segment_bytes(int ranks, bool is_all_reduce) {
  constexpr int64_t kTogether = 8;  // of the longest ones, from all peers
  const int64_t longest = is_all_reduce ? 1 << 20 : 512 << 10;
  return std::clamp<int64_t>(kTogether * longest / (kDepth * std::max(ranks - 1, 1)), 64 << 10,
                             longest) &
         -64;
}

}  // namespace

int64_t staging_bytes(int ranks, int64_t part_bytes, bool is_all_reduce) {
  if (ranks == 1) {
    return 0;
  }
  const int64_t segment = segment_bytes(ranks, is_all_reduce);
  const int64_t count = std::min(kDepth, (part_bytes + segment - 1) / segment);
  return count * (ranks - 1) * std::min(segment, part_bytes);
}

SegmentedReduce::SegmentedReduce(c10::intrusive_ptr<c10d::Backend> transport, const Call& call,
                                 at::Tensor output, std::vector<at::Tensor> inputs, Then then,
                                 std::shared_ptr<Staging> staging)
    : transport_(std::move(transport)),
      call_(call),
      output_(std::move(output)),
      inputs_(std::move(inputs)),
      then_(then),
      staging_(std::move(staging)),
      segment_numel_(segment_bytes(call.size, then == Then::kGather) /
                     static_cast<int64_t>(c10::elementSize(call.dtype))),
      depth_(std::min(kDepth, segments(inputs_[call.rank]))),
      sends_(transport_, call_),
      gathered_(transport_, call_) {
  block_ = staging_->take(staging_bytes(
      call_.size, static_cast<int64_t>(inputs_[call_.rank].nbytes()), then_ == Then::kGather));
  sends_.post_headers();
  if (!is_any_long()) {
    post();
  }
}

bool SegmentedReduce::is_any_long() const {
  return std::any_of(inputs_.begin(), inputs_.end(), is_long);
}

void SegmentedReduce::start() {
  const std::lock_guard lock(mutex_);
  if (is_any_long()) {
    post();
  }
  if (is_aborted_) {
    abort_rounds();
  }
}

void SegmentedReduce::post() {
  for (int64_t i = 0; i < depth_; ++i) {
    arrivals_.push_back(post_arrivals(i));
  }
  if (then_ == Then::kGather) {
    // A peer's sums come only after all that this rank sent for them has arrived there, so that
    // its memory is free.
    for_each_peer(call_, [&](int peer) {
      for (int64_t i = 0; i < segments(inputs_[peer]); ++i) {
        gathered_.post_receive(segment(inputs_[peer], i), peer, 2 * i + 1);
      }
    });
  }
  int64_t most = 0;
  for (const at::Tensor& input : inputs_) {
    most = std::max(most, segments(input));
  }
  for (int64_t i = 0; i < most; ++i) {
    for_each_peer(call_, [&](int peer) {
      if (i < segments(inputs_[peer])) {
        sends_.post_send(segment(inputs_[peer], i), peer, 2 * i);
      }
    });
  }
}

int64_t SegmentedReduce::segments(const at::Tensor& part) const {
  return (part.numel() + segment_numel_ - 1) / segment_numel_;
}

at::Tensor SegmentedReduce::segment(const at::Tensor& part, int64_t index) const {
  const int64_t begin = index * segment_numel_;
  return part.slice(0, begin, std::min(begin + segment_numel_, part.numel()));
}

at::Tensor SegmentedReduce::arrival(int64_t index, int peer) const {
  const at::Tensor& own = inputs_[call_.rank];
  const int64_t numel = segment(own, index).numel();
  const int64_t bytes = own.element_size();
  const int64_t longest = std::min(segment_numel_, own.numel());
  const int64_t place = (index % depth_) * (call_.size - 1) + (peer < call_.rank ? peer : peer - 1);
  return block_.narrow(0, place * longest * bytes, numel * bytes).view(own.scalar_type());
}

Round SegmentedReduce::post_arrivals(int64_t index) const {
  Round round(transport_, call_);
  for_each_peer(call_,
                [&](int peer) { round.post_receive(arrival(index, peer), peer, 2 * index); });
  return round;
}

void SegmentedReduce::reduce(int64_t index) {
  std::vector<at::Tensor> parts(call_.size);
  for_each_peer(call_, [&](int peer) { parts[peer] = arrival(index, peer); });
  parts[call_.rank] = segment(inputs_[call_.rank], index);
  const at::Tensor sums = segment(output_, index);
  reduce_in_rank_order(sums, parts, call_.rank, call_.op);

  const std::lock_guard lock(mutex_);
  if (then_ == Then::kGather) {
    for_each_peer(call_, [&](int peer) { sends_.post_send(sums, peer, 2 * index + 1); });
  }
  if (index + depth_ < segments(inputs_[call_.rank])) {
    arrivals_[index % depth_] = post_arrivals(index + depth_);
  }
  if (is_aborted_) {
    sends_.abort();
    arrivals_[index % depth_].abort();
  }
}

bool SegmentedReduce::is_sent(const at::Tensor& output) const {
  const int peer = (call_.rank + 1) % call_.size;
  return inputs_[peer].const_data_ptr() == output.const_data_ptr();
}

bool SegmentedReduce::advance(const Patience& patience) {
  if (!is_reduced_) {
    sends_.check_headers(patience);
    if (then_ == Then::kKeep && is_sent(output_)) {
      sends_.complete(patience);
    }
    for (int64_t i = 0; i < segments(inputs_[call_.rank]); ++i) {
      arrivals_[i % depth_].complete(patience);
      reduce(i);
    }
    is_reduced_ = true;
    if (then_ == Then::kGather) {
      return false;
    }
  }
  gathered_.complete(patience);
  sends_.complete(patience);
  staging_->give_back(block_);
  return true;
}

void SegmentedReduce::abort() {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  abort_rounds();
}

void SegmentedReduce::abort_rounds() {
  sends_.abort();
  gathered_.abort();
  for (Round& round : arrivals_) {
    round.abort();
  }
}

}  // namespace fairshard::comm
