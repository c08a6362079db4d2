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
/// their own, whatever else is under way, forward gathers all that was stepped, in the order in
/// which blocks use it, and ends with the same buckets released; backward gathers those in the
/// plan's order, which is that of gradients. A pass that was broken off is made good by the next
/// forward in the same way. A rank may come to a reduction early and wait there for one that needs
/// values first: who waits for long goes on gathering (see BucketFiller::wait). Only a block that
/// runs again in forward when others have released its buckets must do so on all ranks; from then
/// on they are kept until its last run.
class ReleasedValues : public std::enable_shared_from_this<ReleasedValues> {
 public:
  /// Collective. With `gather_in_forward`, what was stepped stays away until the next forward.
  ReleasedValues(FlatParameters& part, bool gather_in_forward);

  /// For each block of the model, in the order of a forward, the numbers of the parameters that it
  /// uses. A bucket with a parameter of no block is never released. The same on all ranks.
  /// Collective.
  void set_blocks(std::vector<std::vector<size_t>> blocks);
  /// Takes up a new plan, when all values are in place.
  void follow_plan();

  // What the model does, in training with gradients. Blocks may run several times, and in backward.

  /// Makes good a pass that was broken off. Of a forward that is not training nothing is released.
  /// If blocks do not say when they run, all values are in place when this returns. Collective.
  void begin_forward(bool is_training, bool by_block = true);
  /// Called before a block runs, and in backward when the gradients of its outputs have come:
  /// starts to gather what it uses, and what comes next. If a model has several parts, all start
  /// before one waits. Collective if anything is away.
  void start_block(size_t block);
  /// Returns when what was started for a block is in place.
  void wait_for_block(size_t block);
  /// Releases what no other block of this forward needs.
  void after_block(size_t block);
  /// Releases the rest, the same on all ranks, if blocks say when their backward begins.
  /// Collective.
  void end_forward(bool releases = true);
  /// Brings back all that was not stepped. Collective. Backward does this by itself.
  void end_backward();

  // What others do with the values.

  /// Returns when the values of a bucket, or all, are in place. Collective if they are not.
  void bring_back(size_t bucket);
  void bring_back_all();
  /// Starts to gather the next bucket, or all, for backward. Returns whether there was one.
  bool start_next();
  void start_all();
  /// Called when a bucket was stepped: releases it until the next forward, if that is wanted.
  /// Returns whether it is: if not, it is to be gathered now.
  bool keep_away(size_t bucket);
  bool is_away(size_t bucket) const { return states_[bucket].where != Where::kHere; }
  /// Throws if somebody has given a parameter of a bucket that is away other data.
  void check_not_replaced(size_t bucket) const;

 private:
  enum class Where {
    kHere,
    /// Between its blocks' forward and their backward.
    kAwayForBackward,
    /// Stepped since.
    kAwayForForward,
    kComing,
  };
  struct State {
    Where where = Where::kHere;
    /// While it is away, what this rank keeps.
    at::Tensor own;
    /// While it is coming, what brings the rest.
    comm::Work fetch;
    /// How often blocks use this bucket in a forward, and how often they have yet to in this one.
    int uses = 0;
    int left = 0;
  };
  enum class Pass { kNone, kForward, kBackward };

  /// What a parameter is while its bucket is away.
  const at::Tensor& stand_in(size_t parameter);
  bool is_releasable(size_t bucket) const { return bucket > 0 && states_[bucket].uses > 0; }
  bool is_trained(size_t bucket) const;
  bool is_any_away() const;
  const std::vector<size_t>& buckets_of(size_t block) const;
  void release(size_t bucket);
  void release_all();
  void start(size_t bucket);
  void start_up_to(size_t bucket);
  bool start_next_for_forward();
  void wait(size_t bucket);
  void wait_for_all_coming();
  void gather_rest_for_forward();
  void make_good_forward();
  void call_when_backward_ends();

  FlatParameters& part_;
  comm::Group group_;
  bool gathers_in_forward_;
  std::vector<std::vector<size_t>> blocks_;
  /// For each block, the buckets that it uses.
  std::vector<std::vector<size_t>> buckets_of_;
  /// All buckets, as a forward comes to use them.
  std::vector<size_t> forward_order_;
  std::vector<State> states_;
  std::vector<at::Tensor> stand_ins_;
  /// From the beginning of a forward that releases to the end of its backward.
  Pass pass_ = Pass::kNone;
  bool awaits_end_of_backward_ = false;
  /// A model on several devices has several threads in backward. Public members take it.
  mutable std::recursive_mutex mutex_;
};

}  // namespace fairshard::shard
