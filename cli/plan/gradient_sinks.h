#pragma once
// Where gradients go while backward runs, and what memory that takes.

#include "ledger.h"
#include <fairshard/shard/layout.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace fairshard::cli::planning {

/// Is given every parameter's gradient, which is in the ledger, and takes it out of there when its
/// memory is free again.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  virtual void take_gradient(size_t parameter, int64_t bytes) = 0;
  /// Backward has come to the beginning of a block.
  virtual void leave_block(size_t /*block*/) {}
  virtual void finish() {}
};

/// Notes the order in which gradients come.
class NotingSink final : public GradientSink {
 public:
  void take_gradient(size_t parameter, int64_t /*bytes*/) override { order.push_back(parameter); }

  std::vector<size_t> order;
};

/// As shard::GradReducer does it: gradients are copied into buckets, and those are reduced in their
/// order.
class ReducingSink final : public GradientSink {
 public:
  /// `is_sharded`: bucket memory is pooled; otherwise every bucket has its own, which is not
  /// counted here. The plan must outlive this.
  ReducingSink(MemoryLedger& ledger, const shard::ShardLayout& plan, bool is_sharded);

  void take_gradient(size_t parameter, int64_t bytes) override;
  void finish() override;
  /// All gradients at once, from memory that is not counted here.
  void take_all();
  /// From the next step on; the pool stays as it is.
  void follow(const shard::ShardLayout& plan);

 private:
  struct Started {
    int64_t pooled;
    int64_t received;
  };

  int64_t take_from_pool(int64_t bytes);
  /// As comm/ does it: what arrives from peers has memory that is kept.
  int64_t take_staging(int64_t bytes);
  void give_back_staging(int64_t bytes);
  void start(size_t bucket);
  void finish_oldest();
  int64_t bytes_of(size_t bucket) const;

  MemoryLedger& ledger_;
  const shard::ShardLayout* plan_ = nullptr;
  bool is_sharded_;
  /// Of each bucket: gradients that are still to come, and its memory from the pool.
  std::vector<size_t> missing_;
  std::vector<int64_t> pooled_;
  size_t next_ = 0;  ///< bucket to be started
  std::vector<int64_t> free_;
  std::vector<int64_t> staging_;
  std::deque<Started> started_;
};

/// As page::Pager does it: gradients stay until their slice is left for host memory.
class PagingSink final : public GradientSink {
 public:
  /// For each parameter its slice, and for each block its slice; -1 for what all slices share.
  /// `reducer` takes the gradients when all are in host memory, if that is counted, too.
  PagingSink(MemoryLedger& ledger, std::vector<int64_t> slice_of_parameter,
             std::vector<int64_t> slice_of_block, ReducingSink* reducer = nullptr);

  void take_gradient(size_t parameter, int64_t bytes) override;
  void leave_block(size_t block) override;
  void finish() override;

 private:
  MemoryLedger& ledger_;
  std::vector<int64_t> slice_of_parameter_;
  std::vector<int64_t> slice_of_block_;
  ReducingSink* reducer_;
  int64_t held_ = 0;
  int64_t shared_ = 0;
};

}  // namespace fairshard::cli::planning
