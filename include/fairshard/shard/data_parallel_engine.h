#pragma once
// What data parallelism does for a model, whatever kind of object that is: its parameters, buffers
// and blocks.

#include <fairshard/comm/group.h>
#include <fairshard/shard/grad_reducer.h>
#include <fairshard/shard/join.h>
#include <fairshard/shard/model_blocks.h>
#include <fairshard/shard/sharded_step.h>

#include <memory>
#include <optional>
#include <vector>

namespace fairshard::shard {

/// What a DataParallelEngine is made with.
struct EngineOptions {
  // Behaviour
  /// Where parameters have a ShardedStep: each rank gets only the gradients of what it owns.
  TORCH_ARG(bool, shard_gradients) = true;
  /// Rank 0's buffers go to all ranks when a backward ends.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// Rank 0's parameters and buffers go to all ranks at construction.
  TORCH_ARG(bool, sync_at_startup) = true;
  /// Gradients are reduced by hooks in backward; otherwise by reduce() alone.
  TORCH_ARG(bool, reduce_in_backward) = true;

  // Performance
  /// How much is communicated together where there is no ShardedStep, which has layouts of its own.
  TORCH_ARG(int64_t, bucket_bytes) = 25 << 20;
  /// See ReducerOptions.
  TORCH_ARG(bool, static_graph) = false;
  /// See ReducerOptions.
  TORCH_ARG(int, buckets_in_flight) = 2;
  /// The dtype in which gradients travel.
  TORCH_ARG(std::optional<at::ScalarType>, reduce_dtype);
};

/// Drives a step's model side: finds the ShardedSteps that the parameters belong to (or averages
/// all gradients on all ranks, where there is none), reduces gradients in backward, has values in
/// place where blocks need them, and keeps buffers alike.
///
/// Only backwards, and forwards in training mode, are collective: a rank may evaluate alone, unless
/// parameters are resharded after steps.
class DataParallelEngine {
 public:
  /// Collective: checks that all ranks have the same parameters.
  DataParallelEngine(comm::Group group, std::vector<Parameter> parameters,
                     const std::vector<at::Tensor>& buffers, const EngineOptions& options = {});
  ~DataParallelEngine();
  DataParallelEngine(const DataParallelEngine&) = delete;
  DataParallelEngine& operator=(const DataParallelEngine&) = delete;

  const comm::Group& group() const { return group_; }

  /// Finds the ShardedSteps that the parameters belong to now, as a training forward does.
  /// Collective where there is none.
  void connect();

  // A forward.

  /// To be called when the model has other parameters than before. Local.
  void set_parameters(std::vector<Parameter> parameters);
  /// Everything that comes before a forward. Unless blocks are known, all values are in place when
  /// this returns.
  void before_forward(bool is_training);
  /// Everything that comes after it. `do_reshard` says whether blocks tell when they have run.
  void after_forward(std::vector<at::Tensor> buffers, bool do_reshard = true);

  // Blocks: parts of the model, by number.

  /// Whether blocks() are to be told before and after they run: some values may be on their way or
  /// sharded while a forward runs.
  bool uses_blocks() const;
  /// Whether blocks().set() is to be called after a training forward: they are not known yet. Not
  /// within join(), where a rank may have no forward.
  bool wants_blocks() const { return uses_blocks() && !blocks_.are_known() && !join_; }
  ModelBlocks& blocks() { return blocks_; }
  /// Returns when all parameters are in place.
  void wait_for_parameters();

  // Gradients.

  /// What averages buckets instead of an all-reduce; see ReducerOptions. Once, the same on all
  /// ranks. Throws where gradients are known to be sharded; else the next forward does. Local.
  void set_comm_hook(std::shared_ptr<c10d::CommHookInterface> hook);
  void set_sync(bool is_on);
  bool sync() const { return is_sync_; }
  /// Reduces what is in .grad now. Collective; blocks.
  void reduce();
  /// Forgets reduced gradients, beside .grad. Local.
  void clear_gradients();
  /// Makes all ranks' buffers those of `root`. Collective; blocks.
  void broadcast_buffers(const std::vector<at::Tensor>& buffers, int root) const;

  // Ranks that run out of inputs; see Join.

  void begin_join();
  /// For a rank that has run out: takes part in what the others do, until all have.
  void follow_others();
  /// Ends it. Unless something has failed, all ranks then have one model. Collective.
  void end_join(const std::vector<at::Tensor>& buffers, bool has_failed);

 private:
  struct Buffers;

  bool is_current() const;
  std::vector<std::shared_ptr<ShardedStep>> find_steps() const;
  void check_all_owned() const;
  std::vector<std::shared_ptr<FlatGroup>> replicated_groups();
  std::vector<std::shared_ptr<FlatGroup>> groups_of(
      const std::vector<std::shared_ptr<ShardedStep>>& steps) const;
  void make_reducer(const std::vector<std::shared_ptr<ShardedStep>>& steps);
  bool follow_next();

  comm::Group group_;
  EngineOptions options_;
  std::vector<Parameter> parameters_;
  bool are_parameters_new_ = false;
  /// Weak, as a model does not keep its optimizer alive.
  std::vector<std::weak_ptr<ShardedStep>> steps_;
  /// What ShardedStep::registry_version() was when they were found.
  std::optional<int64_t> registry_version_;
  /// Of the steps; or, where there are none, replicated ones.
  std::vector<std::shared_ptr<FlatGroup>> flat_groups_;
  bool is_replicated_ = false;
  ModelBlocks blocks_;
  std::unique_ptr<GradReducer> reducer_;
  std::shared_ptr<Buffers> buffers_;
  std::shared_ptr<Join> join_;
  std::shared_ptr<c10d::CommHookInterface> comm_hook_;
  bool is_sync_ = true;
};

}  // namespace fairshard::shard
