#pragma once
// Reduces gradients between ranks while backward is still running.

#include <fairshard/shard/join.h>
#include <fairshard/shard/reducer_options.h>

#include <memory>
#include <vector>

namespace fairshard::shard {

/// Hooks on the parameters' gradients. A gradient that arrives is put into its bucket; a full
/// bucket is reduced as soon as those before it have been started, so that all ranks start them in
/// one order whatever the order of their gradients. When backward ends, the rest is flushed (a
/// parameter without a gradient counts as zeros if it has one on another rank) and waited for:
/// backward() returns with reduced gradients, or throws.
///
/// Note [Unused parameters]: ranks agree by one small reduction per backward on which parameters
/// had a gradient anywhere. One that had none is left out of the step, as torch does it, instead of
/// being stepped with zeros (which would decay its weights). With static_graph they agree once.
///
/// Note [Order of buckets]: buckets are first filled with the last parameters first, which is how
/// gradients arrive if layers run as they are registered. The first backward sees how they do
/// arrive; when it ends, rank 0's order is everybody's, and the buckets are filled anew by it.
///
/// Note [Steps in backward]: with step_in_backward a bucket is stepped as soon as it is reduced.
/// Its gradients are dropped at once and its values gathered behind the rest of backward, so that
/// no rank ever holds all of its gradients, and when backward ends, nearly all is done. That holds
/// for the first backward, too, so such a group keeps the buckets that it was made with; only the
/// order in which they are started is learnt. Ranks must gather at the same points of one order,
/// though their gradients may come in different ones: a
/// bucket is stepped right before the one is started that is `buckets_in_flight` later (or one,
/// where values are resharded, for the least memory), and ranks agree on unused parameters bucket
/// by bucket.
///
/// Note [Reducers that share parameters]: two models may share a module (a GAN, a student and its
/// teacher), or one optimizer. A gradient must be reduced once, whichever model's backward brings
/// it, so reducers with a flat group in common share their hooks and reduce all of their groups
/// together.
///
/// Note [Threads and locks]: hooks run on autograd's threads (one per device) and do not hold
/// Python's lock. Locks are taken in this order, and never the other way round:
///   1. the reducer's, by every hook, prepare() and reduce(): one gradient at a time;
///   2. an UnshardSchedule's, by hooks on the outputs of blocks as well, and not while waiting;
///   3. Python's, by a ShardedStep's callbacks (with step_in_backward) and destructors of Python
///      objects.
/// So whoever holds Python's lock lets go of it before calling anything here. A callback may read
/// and write slices and their gradients; it may not start a backward, a forward or a collective of
/// the same group. comm/ has threads of its own: one per backend of ours, which touches only
/// tensors of collectives that were started and not yet waited for; one per process group that
/// wakes up now and then to see whether the rank waits for long, blocks on nothing and takes no
/// lock of ours for longer than it takes to read a few numbers; and one beside it that speaks to
/// the group's store, once ranks wait, which may block there, and for which nobody waits (Note
/// [Left boards]). None of them takes Python's lock or runs callbacks. One backward at a time.
class GradReducer {
 public:
  /// All have one process group.
  GradReducer(std::vector<ReducedGroup> groups, const ReducerOptions& options = {});
  ~GradReducer();
  GradReducer(const GradReducer&) = delete;
  GradReducer& operator=(const GradReducer&) = delete;

  /// Call it before a forward: follows parameters that were replaced, frozen or unfrozen.
  void prepare();

  /// Reduces what is in .grad now, as the end of a backward would. Collective; blocks.
  void reduce();

  /// With false, backward leaves gradients in .grad, where they add up, and reduces nothing; the
  /// next backward with true reduces the sum. The same on all ranks.
  void set_sync(bool is_on);
  bool sync() const;

  /// Set while ranks may run out of inputs.
  void set_join(std::shared_ptr<Join> join);

 private:
  class Hooks;
  std::shared_ptr<Hooks> hooks_;
};

}  // namespace fairshard::shard
