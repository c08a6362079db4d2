#pragma once
// One backward's view of the buckets: which gradients have come, and what is under way.

#include <fairshard/shard/grad_reducer.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace fairshard::shard {

class BucketFiller {
 public:
  BucketFiller(std::shared_ptr<FlatParameters> parameters, const ReducerOptions& options);

  /// Takes a parameter's .grad into its bucket, and starts what is complete.
  void take(size_t parameter);
  /// Takes what .grad has besides, starts what is incomplete and waits for everything. After an
  /// exception the filler is as new.
  void finish();
  /// Forgets a backward that was broken off.
  void reset();
  bool is_idle() const { return is_idle_; }

 private:
  struct Fill {
    at::Tensor flat;
    std::vector<bool> is_taken;
    size_t missing = 0;
    bool is_active = false;
  };
  struct Started {
    size_t bucket;
    at::Tensor flat;
    /// Where the reduced range arrives; added to the rank's own if there is one from before.
    at::Tensor range;
    comm::Work work;
  };

  void begin();
  at::Tensor make_flat(size_t bucket);
  void put(size_t parameter, Fill& fill);
  void put_missing(size_t bucket);
  void clear_padding(size_t bucket, const at::Tensor& flat) const;
  void start_ready();
  void start(size_t bucket);
  void finish_oldest();
  std::vector<bool> agree_on_used();
  std::string label(size_t bucket) const;

  bool is_sharded() const { return options_.mode() == GradientMode::kSharded; }

  std::shared_ptr<FlatParameters> parameters_;
  ReducerOptions options_;
  /// One over the number of ranks, as a number that does not change a tensor's dtype.
  at::Tensor scale_;
  std::vector<Fill> fills_;
  std::vector<bool> is_used_;
  /// The first bucket that has not been started.
  size_t next_ = 0;
  std::deque<Started> started_;
  std::vector<at::Tensor> pool_;
  std::vector<at::Tensor> replicated_;
  bool is_idle_ = true;
};

}  // namespace fairshard::shard
