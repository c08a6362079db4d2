#pragma once
// Parameters whose memory is given back between a block's forward and its backward.

#include <fairshard/comm/collectives.h>
#include <fairshard/comm/group.h>

#include <memory>
#include <mutex>
#include <vector>

namespace fairshard::shard {

class FlatParameters;

/// Note [Released values]: a step's memory is highest where forward ends, with the activations of
/// all blocks, and there most parameters are needed by nobody. So when the blocks that use a bucket
/// have run, each rank keeps only what it owns of it; backward gathers it again, one bucket ahead.
/// Where a backward ends all values are in place, so that whoever looks at parameters between steps
/// sees nothing of it. Sent per step: half as much again.
///
/// Ranks must gather in one order, though blocks may run on some of them only: every forward ends
/// with the same buckets released, and backward gathers all of them, in the plan's order, which is
/// that of gradients, over a group of its own, whatever else is under way. A rank may come to a
/// reduction early and wait there for one that needs values first: who waits for long goes on
/// gathering (see BucketFiller::wait). Only a block that runs again in forward must do so on all
/// ranks.
class ReleasedValues : public std::enable_shared_from_this<ReleasedValues> {
 public:
  /// Collective.
  explicit ReleasedValues(FlatParameters& part);

  /// For each block of the model, the numbers of the parameters that it uses. A bucket with a
  /// parameter of no block is never released. The same on all ranks.
  void set_blocks(std::vector<std::vector<size_t>> blocks);
  /// Takes up a new plan, when all values are in place.
  void follow_plan();

  // What the model does, in training with gradients. Blocks may run several times, and in backward.

  /// Makes good a forward that no backward has followed. Collective. Of a forward that is not
  /// training nothing is released.
  void begin_forward(bool is_training);
  /// Returns when the block's values are in place. Collective if they are not.
  void before_block(size_t block);
  /// Releases what no other block of this forward needs.
  void after_block(size_t block);
  /// Releases the rest, the same on all ranks.
  void end_forward();
  /// Returns when the block's values are in place. Collective.
  void before_backward_of(size_t block);

  /// Returns when a bucket's values are in place. Collective if any up to it are not.
  void bring_back(size_t bucket);
  void bring_back_all();
  /// Starts to gather the next bucket that is away, or all. Returns whether there was one.
  bool start_next();
  void start_all();
  bool is_any_away() const;

 private:
  struct State {
    bool is_away = false;
    /// What this rank keeps meanwhile.
    at::Tensor own;
    /// What brings the rest, once that has been started.
    comm::Work fetch;
    /// Of this bucket, blocks that use it, and those that have not run in this forward.
    int uses = 0;
    int left = 0;
  };

  /// What a parameter is while its bucket is away.
  const at::Tensor& stand_in(size_t parameter);
  void end_backward();
  void release(size_t bucket);
  void start_fetch(size_t bucket);
  void wait(size_t bucket);
  bool is_releasable(size_t bucket) const { return bucket > 0 && states_[bucket].uses > 0; }

  FlatParameters& part_;
  comm::Group group_;
  std::vector<std::vector<size_t>> blocks_;
  /// For each block, the buckets that it uses.
  std::vector<std::vector<size_t>> buckets_of_;
  std::vector<State> states_;
  std::vector<at::Tensor> stand_ins_;
  bool awaits_end_of_backward_ = false;
  /// Within a forward that releases, and from there to the end of its backward.
  bool is_releasing_ = false;
  bool is_open_ = false;
  /// A model on several devices has several threads in backward.
  mutable std::recursive_mutex mutex_;
};

}  // namespace fairshard::shard
