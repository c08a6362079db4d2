#pragma once
// One backward's view of the buckets: which gradients have come, and what is under way.

#include "arrival_order.h"
#include "bucket_pool.h"
#include "packing.h"
#include "used_parameters.h"
#include <fairshard/shard/grad_reducer.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace fairshard::shard {

class BucketFiller {
 public:
  BucketFiller(std::vector<std::shared_ptr<FlatParameters>> parts, const ReducerOptions& options);

  /// Takes a parameter's .grad into its bucket, and starts what is complete.
  void take(ParameterId id);
  /// Takes what .grad has besides, starts what is incomplete and waits for everything. After an
  /// exception the filler is as new.
  void finish();
  /// Forgets a backward that was broken off.
  void reset();
  bool is_idle() const { return is_idle_; }

 private:
  /// A bucket of one of the parts.
  struct Fill {
    size_t part = 0;
    size_t bucket = 0;
    at::Tensor flat;
    std::vector<bool> is_taken;
    size_t missing = 0;
    bool is_active = false;
    /// Unless gradients are put into the bucket one by one.
    Packing packing;
    /// Where gradients lie that every rank has; kept from one backward to the next.
    at::Tensor replicated;
    // Only if the bucket is stepped in backward:
    /// Its flat memory, of which this rank's range has the reduced gradients until they are
    /// stepped.
    at::Tensor reduced;
    UsedParameters::Agreement agreement;
  };
  struct Started {
    Fill* fill;
    at::Tensor flat;
    /// Where the reduced values arrive, if that is not their place yet.
    at::Tensor arrival;
    comm::Work work;
  };

  void list_buckets();
  void begin();
  void announce();
  bool has_gradients_from_before() const;
  size_t buckets_in_flight(const Fill& fill) const;
  void ensure_flat(Fill& fill);
  void put(const Parameter& parameter, size_t number, Fill& fill);
  void pack(Fill& fill);
  void put_missing(Fill& fill);
  void start_ready();
  void start(Fill& fill);
  bool can_reduce_within(const Fill& fill) const;
  void finish_oldest();
  void wait(comm::Work& work);
  void step_before(size_t place);
  void deliver();
  std::vector<ParameterId> parameters_of(const Fill& fill) const;
  void agree_on_used();
  void learn_order();

  FlatParameters& part_of(const Fill& fill) const { return *parts_[fill.part]; }
  const Bucket& layout_of(const Fill& fill) const {
    return part_of(fill).plan().buckets()[fill.bucket];
  }
  at::ScalarType wire_dtype_of(const Fill& fill) const;
  bool averages_in_collective(const Fill& fill) const;
  std::string label(const Fill& fill) const;
  bool is_stepped_in_backward(const Fill& fill) const {
    return fill.is_active && is_order_known_ && part_of(fill).on_reduced;
  }
  bool is_packed(const Fill& fill) const {
    return Packing::is_for(part_of(fill).bucket(fill.bucket));
  }
  bool is_sharded() const { return options_.mode() == GradientMode::kSharded; }

  std::vector<std::shared_ptr<FlatParameters>> parts_;
  ReducerOptions options_;
  /// One over the number of ranks, as a number that does not change a tensor's dtype.
  at::Tensor scale_;
  /// In the order in which they are started.
  std::vector<Fill> fills_;
  /// For each part and bucket, its place in fills_.
  std::vector<std::vector<size_t>> places_;
  UsedParameters used_;
  /// Parameters as their gradients came, until the order is known.
  std::vector<ParameterId> arrivals_;
  bool is_order_known_ = false;
  /// The first bucket that has not been started.
  size_t next_ = 0;
  /// The first bucket that has not been stepped; see Note [Steps in backward].
  size_t next_to_step_ = 0;
  std::deque<Started> started_;
  BucketPool pool_;
  bool is_idle_ = true;
};

}  // namespace fairshard::shard
