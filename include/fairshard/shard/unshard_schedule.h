#pragma once
// When buckets are resharded and unsharded, so that parameters have memory only while blocks of the
// model need them.

#include <fairshard/comm/group.h>
#include <fairshard/shard/flat_bucket.h>

#include <memory>
#include <mutex>
#include <vector>

namespace fairshard::shard {

/// What an UnshardSchedule is made with.
struct UnshardOptions {
  /// A bucket that was stepped stays sharded until the next forward unshards it.
  bool reshard_after_step = false;
  /// Backward steps buckets.
  bool step_in_backward = false;
};

/// Note [Resharding]: a step's memory is highest where forward ends, with the activations of all
/// blocks, and there most parameters are needed by nobody. So when the blocks that use a bucket
/// have run, it is resharded; backward unshards it again, one bucket ahead. Where a backward ends
/// all values are in place, so that whoever looks at parameters between steps sees nothing of it.
/// Sent per step: half as much again. With reshard_after_step a bucket also stays sharded once it
/// was stepped, and the next forward unshards it: nothing more is sent, and the peak where forward
/// begins is gone, but between steps there is no model to look at.
///
/// Ranks must unshard in one order, though blocks may run on some of them only: over a group of
/// their own, whatever else is under way, forward unshards all that was stepped, in the order in
/// which blocks use it, and ends with the same buckets resharded; backward unshards those in the
/// layout's order, which is that of gradients. A pass that was broken off is completed by the next
/// forward in the same way. A rank may come to a reduction early and wait there for one that needs
/// values first: a rank that waits for long goes on unsharding (see BackwardContext::wait). Only a
/// block that runs again in forward when others have resharded its buckets must do so on all ranks;
/// from then on they are kept until its last run.
class UnshardSchedule : public std::enable_shared_from_this<UnshardSchedule> {
 public:
  /// Collective. `buckets` outlive it.
  UnshardSchedule(const comm::Group& group, std::vector<FlatBucket>& buckets,
                  std::shared_ptr<const ShardLayout> layout, const UnshardOptions& options);

  /// The parameters' numbers that each block of the model uses, and the blocks that run, in their
  /// order. A bucket with a parameter of none of these is never resharded. The same on all ranks.
  /// Collective.
  void set_blocks(std::vector<std::vector<size_t>> blocks, std::vector<size_t> order);
  /// Takes up a new layout, when all values are in place.
  void set_layout(std::shared_ptr<const ShardLayout> layout);

  // What the model does, in training with gradients. Blocks may run several times, and in backward.

  /// Completes a pass that was broken off. Of a forward that is not training nothing is resharded.
  /// Unless blocks say when they run, all values are in place when this returns. Collective.
  void begin_forward(bool is_training, bool by_block);
  /// Called before a block runs, and in backward when the gradients of its outputs have come:
  /// starts to unshard what it uses, and what comes next. If a model has several groups, all start
  /// before one waits. Collective if anything is sharded.
  void start_block(size_t block);
  /// Returns when what was started for a block is in place.
  void wait_for_block(size_t block);
  /// Reshards what no other block of this forward needs.
  void after_block(size_t block);
  /// Reshards the rest, the same on all ranks, if blocks say when their backward begins.
  /// Collective.
  void end_forward(bool do_reshard = true);
  /// Unshards all that was not stepped. Collective. Backward does this by itself.
  void end_backward();

  // What others do with the values.

  /// Returns when the values of a bucket, or all, are in place. Collective if they are not.
  void unshard(size_t bucket);
  void unshard_all();
  /// Starts to unshard the next bucket, or all, for backward. Returns whether there was one.
  bool start_next();
  void start_all();
  /// Called when a bucket was stepped: reshards it until the next forward, if that is wanted.
  /// Returns whether it is: if not, it is to be gathered now.
  bool reshard_stepped(size_t bucket);

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// How blocks use a bucket.
  struct Use {
    /// In a forward, and what is left of that in this one.
    int count = 0;
    int left = 0;
    /// Whether it was stepped since it was last unsharded.
    bool is_stepped = false;
  };
  enum class Pass { kNone, kForward, kBackward };

  // All of these expect the lock to be held; waits let go of it.
  bool is_sharded(size_t bucket) const;
  bool awaits_forward(size_t bucket) const;
  bool awaits_backward(size_t bucket) const;
  bool is_any_away() const;
  bool can_reshard(size_t bucket) const { return bucket > 0 && uses_[bucket].count > 0; }
  const std::vector<size_t>& buckets_of(size_t block) const;
  void index_blocks();
  void reshard(size_t bucket);
  bool reshard_until_forward(size_t bucket);
  void start(size_t bucket);
  void start_up_to(size_t bucket);
  bool start_next_for_forward();
  bool start_next_for_backward();
  void wait(Lock& lock, size_t bucket);
  void wait_for_all(Lock& lock);
  void unshard_rest_of_forward(Lock& lock);
  void unshard_rest_of_backward(Lock& lock);
  void complete_forward(Lock& lock);
  void call_when_backward_ends();

  std::vector<FlatBucket>& buckets_;
  std::shared_ptr<const ShardLayout> layout_;
  UnshardOptions options_;
  comm::Group group_;
  std::vector<std::vector<size_t>> blocks_;
  std::vector<size_t> block_order_;
  /// For each block, the buckets that it uses.
  std::vector<std::vector<size_t>> buckets_of_;
  /// All buckets, as a forward comes to use them.
  std::vector<size_t> forward_order_;
  std::vector<Use> uses_;
  /// From the beginning of a forward that reshards to the end of its backward.
  Pass pass_ = Pass::kNone;
  bool awaits_end_of_backward_ = false;
  /// A model on several devices has several threads in backward; see Note [Threads and locks].
  mutable std::mutex mutex_;
};

}  // namespace fairshard::shard
