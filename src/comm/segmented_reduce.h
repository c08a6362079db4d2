#pragma once
// Reduce-scatter and all-reduce, a segment at a time.

#include "call.h"
#include "progress.h"
#include "round.h"
#include "staging.h"

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <mutex>
#include <vector>

namespace fairshard::comm {

/// Every rank sends every peer its part, and reduces the parts that it is sent.
///
/// Note [Segments]: parts travel as messages of a megabyte or less. While some arrive, others
/// that have arrived are summed, still in the cache, and their memory then receives the next ones:
/// so a few megabytes do for a collective of any size. An all-reduce sends the sums of a segment to
/// all as soon as they are there.
class SegmentedReduce final : public Operation {
 public:
  /// What a rank does with the sums of its part.
  enum class Then {
    kKeep,
    /// Sends them to all, and receives those of rank i into inputs[i]. The output is
    /// inputs[rank].
    kGather,
  };

  /// `inputs` has a part for every rank; what they send for inputs[rank] is reduced to `output`.
  /// Posts what is short.
  SegmentedReduce(c10::intrusive_ptr<c10d::Backend> transport, const Call& call, at::Tensor output,
                  std::vector<at::Tensor> inputs, Then then, std::shared_ptr<Staging> staging);

  void start() override;
  bool advance(const Patience& patience) override;
  void abort() override;

 private:
  bool is_any_long() const;
  void post();
  void abort_rounds();
  int64_t segments(const at::Tensor& part) const;
  at::Tensor segment(const at::Tensor& part, int64_t index) const;
  /// Where a segment of this rank's part arrives from a peer.
  at::Tensor arrival(int64_t index, int peer) const;
  Round post_arrivals(int64_t index) const;
  void reduce(int64_t index);
  /// Whether it is what all peers are sent, so that it must not be written to before they have it.
  bool is_sent(const at::Tensor& output) const;

  const c10::intrusive_ptr<c10d::Backend> transport_;
  const Call call_;
  const at::Tensor output_;
  const std::vector<at::Tensor> inputs_;
  const Then then_;
  const std::shared_ptr<Staging> staging_;
  const int64_t segment_numel_;
  const int64_t depth_;

  at::Tensor block_;
  bool is_reduced_ = false;

  /// Of the rounds: abort() is called from another thread.
  std::mutex mutex_;
  bool is_aborted_ = false;
  Round sends_;
  Round gathered_;
  /// Segment i is in round i % depth.
  std::vector<Round> arrivals_;
};

}  // namespace fairshard::comm
