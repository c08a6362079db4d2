#pragma once
// The buckets of one backward, in the order in which they are reduced.

#include "arrival_order.h"
#include "reduction.h"

#include <memory>
#include <optional>
#include <vector>

namespace fairshard::shard {

/// Takes gradients as they come, and starts buckets in their order when they are complete. What
/// happens to them then is a Reduction's affair.
class BucketQueue {
 public:
  BucketQueue(std::vector<ReducedGroup> groups, const ReducerOptions& options);

  /// Begins a backward, before anything of it is in .grad.
  void begin();
  /// To be called before a backward that is not reduced puts anything into .grad.
  void begin_unreduced();
  /// Takes a parameter's .grad into its bucket, and starts what is complete.
  void take(ParameterId id);
  /// Takes what .grad has besides, starts what is incomplete and waits for everything. After an
  /// exception the queue is as new.
  void finish();
  /// Forgets a backward that was broken off.
  void reset();
  bool is_idle() const { return is_idle_; }
  void set_join(std::shared_ptr<Join> join) { join_ = std::move(join); }

 private:
  void choose_reductions();
  void list_buckets();
  void announce();
  bool has_gradients_from_before() const;
  void collect(PendingBucket& bucket, size_t slot);
  void collect_missing(PendingBucket& bucket);
  void ensure_memory(PendingBucket& bucket);
  void start_ready();
  void start(PendingBucket& bucket);
  UsedParameters::Agreement start_agreement();
  void publish();
  void learn_order();
  void return_what_is_free() const;
  Reduction& reduction_of(const PendingBucket& bucket) const { return *reductions_[bucket.group]; }

  std::vector<ReducedGroup> groups_;
  BackwardContext context_;
  /// One per group.
  std::vector<std::shared_ptr<Reduction>> reductions_;
  /// One over the number of ranks, as a number that does not change a tensor's dtype.
  at::Tensor scale_;
  /// In the order in which they are started.
  std::vector<PendingBucket> buckets_;
  /// For each group and bucket, its place in buckets_.
  std::vector<std::vector<size_t>> places_;
  /// See Note [Static graphs] in used_parameters.h.
  std::shared_ptr<const UsedParameters::Promise> promise_;
  /// Parameters as their gradients came, until the order is known.
  std::vector<ParameterId> arrivals_;
  bool is_order_known_ = false;
  /// The first bucket that has not been started.
  size_t next_ = 0;
  bool is_idle_ = true;
  std::shared_ptr<Join> join_;
  /// Within join(): whether there were gradients before backwards that were not reduced.
  std::optional<bool> had_gradients_;
};

}  // namespace fairshard::shard
