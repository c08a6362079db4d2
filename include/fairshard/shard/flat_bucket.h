#pragma once
// The values of one bucket of parameters, in memory.

#include <fairshard/comm/group.h>
#include <fairshard/comm/work.h>
#include <fairshard/shard/layout.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fairshard::shard {

/// In which precision parameters are stepped and gathered.
struct Precision {
  /// Parameters in float16 and bfloat16 are stepped in float32: each rank keeps master weights of
  /// what it owns.
  bool master_weights = false;
  /// The dtype in which parameters are gathered. If it is narrower than their own, all ranks have
  /// the rounded values, and each keeps master weights of what it owns.
  std::optional<at::ScalarType> gather_dtype;
};

class ArrivingValues;

/// Parameters of one bucket as views of one flat tensor, in place: they keep their sizes and
/// strides, and each has a storage of its own over the bucket's memory, so that saving one does not
/// save its neighbours. The bucket is gathered without any packing.
///
/// Note [States of a bucket]: unsharded, all values are in place. Sharded, this rank has only its
/// own range; the rest of the memory is freed, and whoever reads a parameter gets an error that
/// names it. Unsharding, an all-gather is under way, from either: after a step the range has new
/// values and the rest old ones, and whoever reads a parameter waits. What autograd has saved of a
/// parameter is on the same storage, which has its memory back, with the same values, when backward
/// needs it.
///
/// Note [Version counters]: gathers and optimizers write to the flat tensor, which autograd does
/// not see. mark_stepped() moves the parameters' version counters, so that a backward through a
/// graph of old values is refused, as torch does it.
class FlatBucket {
 public:
  /// See Note [States of a bucket].
  enum class State { kUnsharded, kUnsharding, kSharded };

  /// Moves the parameters there.
  FlatBucket(std::shared_ptr<const ShardLayout> layout, size_t index, int rank,
             std::shared_ptr<const std::vector<Parameter>> parameters, const Precision& precision);

  const Bucket& layout() const { return layout_->buckets()[index_]; }
  const Parameter& parameter(size_t slot) const {
    return (*parameters_)[layout().slots[slot].parameter];
  }
  /// All values. Without memory while sharded.
  const at::Tensor& flat() const { return flat_; }
  /// The range that this rank owns of `flat`, which is laid out like the bucket.
  at::Tensor shard_of(const at::Tensor& flat) const;
  at::Tensor shard() const { return shard_of(flat_); }
  /// This rank's range in the precision in which it is stepped, if that is not the parameters'.
  const at::Tensor& master() const { return master_; }
  bool has_master() const { return master_.defined(); }
  /// The dtype and device in which this rank steps its range.
  at::TensorOptions stepped_options() const { return (has_master() ? master_ : flat_).options(); }
  /// Whether any of its parameters is trained, or has a gradient all the same.
  bool is_trainable() const;

  State state() const { return state_; }
  /// How much of the parameters this rank has in memory.
  size_t resident_bytes() const { return (state_ == State::kSharded ? own_ : flat_).nbytes(); }
  /// Keeps only this rank's range. Local.
  void reshard();
  /// Starts to gather what ranks own. Collective over `group`; does not block.
  void start_unshard(const comm::Group& group);
  /// Returns when all values are in place, if they are under way.
  void wait();
  /// What brings them.
  comm::Work work() const;

  /// Whether the parameters are still where this has put them. Throws if one was replaced by
  /// something that does not fit.
  bool is_bound() const;
  /// Takes up parameters whose data was replaced since, for instance by a module's to(dtype).
  void bind();

  /// Says that this rank's range was stepped.
  void mark_stepped();
  /// Has master weights follow parameters that were changed in place since the last step (not
  /// through .data, which autograd does not see).
  void update_master();

 private:
  at::ScalarType gather_dtype() const;
  bool needs_master() const;
  /// Whether the parameters have memory of the bucket, and not placeholders.
  bool are_placed() const;
  void check_fits(const Parameter& parameter, const Slot& slot) const;
  void check_not_replaced() const;
  at::Tensor make_place(size_t slot) const;
  void point_places_at(const void* start);
  const at::Tensor& placeholder(size_t slot);
  void await_values();
  bool is_awaited(size_t slot) const;

  std::shared_ptr<const ShardLayout> layout_;
  size_t index_;
  int rank_;
  std::shared_ptr<const std::vector<Parameter>> parameters_;
  Precision precision_;
  std::vector<Piece> own_pieces_;
  State state_ = State::kUnsharded;
  at::Tensor flat_;
  at::Tensor master_;
  /// Of each parameter, a tensor like it over its part of the memory, what it is while sharded, and
  /// while new values are on their way.
  std::vector<at::Tensor> places_;
  std::vector<at::Tensor> placeholders_;
  std::vector<at::Tensor> awaited_;
  /// How often each parameter had been written to when master weights last followed it.
  std::vector<int64_t> versions_;
  /// While sharded, what this rank keeps.
  at::Tensor own_;
  std::shared_ptr<ArrivingValues> arriving_;
};

/// The part of `flat`, laid out like the parameter's bucket, that has its sizes and strides.
at::Tensor view_of(const Parameter& parameter, const Slot& slot, const at::Tensor& flat);

}  // namespace fairshard::shard
