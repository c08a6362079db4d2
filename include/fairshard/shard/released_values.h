#pragma once
// Parameters whose memory is given back while no block needs them.

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
/// sees nothing of it. Sent per step: half as much again. If asked to, a bucket also stays away
/// once it was stepped, and the next forward gathers it instead: nothing more is sent, and the peak
/// where forward begins is gone, but between steps there is no model to look at.
///
/// Ranks must gather in one order, though blocks may run on some of them only: over a group of
/// their own, whatever else is under way, forward gathers all that was stepped, against the plan's
/// order, and ends with the same buckets released; backward gathers those in the plan's order,
/// which is that of gradients. A pass that was broken off is made good by the next forward in the
/// same way. A rank may come to a reduction early and wait there for one that needs values first:
/// who waits for long goes on gathering (see BucketFiller::wait). Only a block that runs more often
/// than in any forward before must do so on all ranks.
class ReleasedValues : public std::enable_shared_from_this<ReleasedValues> {
 public:
  /// Collective. With `gather_in_forward`, what was stepped stays away until the next forward.
  ReleasedValues(FlatParameters& part, bool gather_in_forward);

  /// For each block of the model, the numbers of the parameters that it uses. A bucket with a
  /// parameter of no block is never released. The same on all ranks. Collective.
  void set_blocks(std::vector<std::vector<size_t>> blocks);
  /// Takes up a new plan, when all values are in place.
  void follow_plan();

  // What the model does, in training with gradients. Blocks may run several times, and in backward.

  /// Makes good a pass that was broken off. Collective. Of a forward that is not training nothing
  /// is released.
  void begin_forward(bool is_training);
  /// Returns when the block's values are in place. Collective if they are not.
  void before_block(size_t block);
  /// Releases what no other block of this forward needs.
  void after_block(size_t block);
  /// Releases the rest, the same on all ranks, if blocks say when their backward begins.
  /// Collective.
  void end_forward(bool releases = true);
  /// Returns when the block's values are in place. Collective.
  void before_backward_of(size_t block);

  // What others do with the values.

  /// Returns when a bucket's values are in place. Collective if any up to it are not.
  void bring_back(size_t bucket);
  /// Starts to gather the next bucket, or all, for backward. Returns whether there was one.
  bool start_next();
  void start_all();
  /// Called when a bucket was stepped: releases it until the next forward, if that is wanted.
  /// Returns whether it is: if not, it is to be gathered now.
  bool keep_away(size_t bucket);
  bool is_away(size_t bucket) const { return states_[bucket].is_away; }

 private:
  struct State {
    bool is_away = false;
    /// Whether it is away because it was stepped. Backward does not need it.
    bool is_for_forward = false;
    /// What this rank keeps until the rest is asked for.
    at::Tensor own;
    /// What brings the rest, once that has been started.
    comm::Work fetch;
    /// How often blocks use this bucket in a forward, and how often they have yet to in this one.
    int uses = 0;
    int left = 0;
  };

  /// What a parameter is while its bucket is away.
  const at::Tensor& stand_in(size_t parameter);
  const std::vector<size_t>& buckets_of(size_t block) const;
  bool is_any_away() const;
  void finish_forward();
  void finish_backward();
  void release(size_t bucket);
  void release_all();
  void start_fetch(size_t bucket);
  bool start_next_for_forward();
  void wait(size_t bucket);
  bool is_releasable(size_t bucket) const { return bucket > 0 && states_[bucket].uses > 0; }

  enum class Pass { kNone, kForward, kBackward };

  FlatParameters& part_;
  comm::Group group_;
  bool gathers_in_forward_;
  std::vector<std::vector<size_t>> blocks_;
  /// For each block, the buckets that it uses.
  std::vector<std::vector<size_t>> buckets_of_;
  std::vector<State> states_;
  std::vector<at::Tensor> stand_ins_;
  /// From the beginning of a forward that releases to the end of its backward.
  Pass pass_ = Pass::kNone;
  bool awaits_end_of_backward_ = false;
  /// A model on several devices has several threads in backward.
  mutable std::recursive_mutex mutex_;
};

}  // namespace fairshard::shard
