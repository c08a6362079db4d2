#pragma once
// Blocks of a model, and where their parameters are.

#include <fairshard/comm/group.h>
#include <fairshard/shard/flat_group.h>

#include <memory>
#include <unordered_map>
#include <vector>

namespace fairshard::shard {

/// Parts of a model that run one after another, by number: which buckets of which flat groups they
/// need, so that these are in place when a block runs, and may be resharded when it has.
class ModelBlocks {
 public:
  /// Takes a model's flat groups, and knows no blocks.
  void set_groups(std::vector<std::shared_ptr<FlatGroup>> groups);
  /// Has messages name a parameter as the model does.
  void rename(const Parameter& parameter);

  /// Whether any group reshards parameters that blocks have used.
  bool reshards() const;
  /// Whether set() was called since the last change of the model.
  bool are_known() const { return are_known_; }
  void forget() { are_known_ = false; }
  /// The parameters of each block, and the order in which blocks are run. The same on all ranks.
  /// Collective.
  void set(const std::vector<std::vector<at::Tensor>>& blocks, const std::vector<size_t>& order);

  /// Returns when parameters that are in no block are in place.
  void wait_for_rest();
  /// Returns when a block's parameters are in place.
  void before(size_t block);
  /// A block has run, with these outputs: when their gradients come, its parameters are in place.
  void after(size_t block, const std::vector<at::Tensor>& outputs);
  /// Returns when these parameters are in place.
  void wait_for(const std::vector<at::Tensor>& parameters);

 private:
  /// A parameter's flat group and its number there; a bucket's flat group and its number there.
  struct Place {
    size_t group;
    size_t number;
  };

  void index();

  std::vector<std::shared_ptr<FlatGroup>> groups_;
  std::unordered_map<const c10::TensorImpl*, Place> places_;
  bool are_known_ = false;
  /// The parameters of each block, and of none that runs; the buckets of these in the layouts whose
  /// versions add up to this.
  std::vector<std::vector<Place>> blocks_;
  std::vector<Place> no_block_;
  std::vector<std::vector<Place>> buckets_of_block_;
  std::vector<Place> buckets_of_no_block_;
  int indexed_version_ = -1;
};

/// The blocks that are run by any rank, as they first ran on rank 0, of `count` blocks that all
/// ranks number alike. `called` are those of this rank. Collective; blocks.
std::vector<size_t> agree_on_call_order(const comm::Group& group, size_t count,
                                        const std::vector<size_t>& called);

}  // namespace fairshard::shard
