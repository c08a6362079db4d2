#include "gradient_sinks.h"

#include <fairshard/comm/staging_bytes.h>

#include <algorithm>
#include <utility>

namespace fairshard::cli::planning {
namespace {

constexpr size_t kBucketsInFlight = 2;
constexpr int64_t kElementBytes = 4;
/// See comm/: smaller all-reduces send everything to everybody.
constexpr int64_t kOneRoundBytes = 64 << 10;
/// Memory to receive into is kept there from this size on, in two pieces at most.
constexpr int64_t kStagingWorthKeeping = 256 << 10;
constexpr size_t kMostStaging = 2;

}  // namespace

ReducingSink::ReducingSink(MemoryLedger& ledger, const shard::ShardLayout& plan, bool is_sharded)
    : ledger_(ledger), is_sharded_(is_sharded) {
  follow(plan);
}

void ReducingSink::follow(const shard::ShardLayout& plan) {
  plan_ = &plan;
  missing_.clear();
  for (const auto& bucket : plan.buckets()) {
    missing_.push_back(bucket.slots.size());
  }
  pooled_.assign(missing_.size(), 0);
  next_ = 0;
}

int64_t ReducingSink::bytes_of(size_t bucket) const {
  return plan_->buckets()[bucket].length() * kElementBytes;
}

/// The pool gives the first memory that is large enough, and drops all that is too small.
int64_t ReducingSink::take_from_pool(int64_t bytes) {
  const auto found =
      std::find_if(free_.begin(), free_.end(), [&](int64_t each) { return each >= bytes; });
  if (found != free_.end()) {
    const int64_t memory = *found;
    free_.erase(found);
    return memory;
  }
  for (const int64_t each : std::exchange(free_, {})) {
    ledger_.give(each);
  }
  ledger_.take(bytes);
  return bytes;
}

void ReducingSink::take_gradient(size_t parameter, int64_t bytes) {
  const size_t bucket = plan_->bucket_of(parameter);
  const bool is_new = missing_[bucket] == plan_->buckets()[bucket].slots.size();
  if (is_new) {
    // Only pooled memory makes backward wait for those under way. Otherwise they are as good as
    // done by the time that the next gradient is computed.
    while (started_.size() >= kBucketsInFlight) {
      finish_oldest();
    }
    pooled_[bucket] = is_sharded_ ? take_from_pool(bytes_of(bucket)) : 0;
  }
  --missing_[bucket];
  for (; next_ < missing_.size() && missing_[next_] == 0; ++next_) {
    start(next_);
  }
  ledger_.give(bytes);  // autograd holds it until the reducer's hook is over
}

void ReducingSink::start(size_t bucket) {
  const bool is_one_round = !is_sharded_ && bytes_of(bucket) <= kOneRoundBytes;
  const int64_t part = is_one_round ? bytes_of(bucket) : bytes_of(bucket) / plan_->ranks();
  const bool is_all_reduce = !is_sharded_ && !is_one_round;
  const int64_t received = comm::staging_bytes(plan_->ranks(), part, is_all_reduce);
  started_.push_back({pooled_[bucket], take_staging(received)});
}

int64_t ReducingSink::take_staging(int64_t bytes) {
  const auto found =
      std::find_if(staging_.begin(), staging_.end(), [&](int64_t each) { return each >= bytes; });
  if (bytes >= kStagingWorthKeeping && found != staging_.end()) {
    const int64_t memory = *found;
    staging_.erase(found);
    return memory;
  }
  ledger_.take(bytes);
  return bytes;
}

void ReducingSink::give_back_staging(int64_t bytes) {
  if (bytes >= kStagingWorthKeeping && staging_.size() < kMostStaging) {
    staging_.push_back(bytes);
  } else {
    ledger_.give(bytes);
  }
}

void ReducingSink::finish_oldest() {
  give_back_staging(started_.front().received);
  if (is_sharded_) {
    free_.push_back(started_.front().pooled);
  }
  started_.pop_front();
}

void ReducingSink::take_all() {
  for (const size_t parameter : plan_->order()) {
    take_gradient(parameter, 0);
  }
  finish();
}

void ReducingSink::finish() {
  while (!started_.empty()) {
    finish_oldest();
  }
  follow(*plan_);  // the next step begins anew
}

PagingSink::PagingSink(MemoryLedger& ledger, std::vector<int64_t> slice_of_parameter,
                       std::vector<int64_t> slice_of_block, ReducingSink* reducer)
    : ledger_(ledger),
      slice_of_parameter_(std::move(slice_of_parameter)),
      slice_of_block_(std::move(slice_of_block)),
      reducer_(reducer) {}

void PagingSink::take_gradient(size_t parameter, int64_t bytes) {
  (slice_of_parameter_[parameter] < 0 ? shared_ : held_) += bytes;
}

void PagingSink::leave_block(size_t block) {
  if (block == 0 || slice_of_block_[block - 1] != slice_of_block_[block]) {
    ledger_.give(std::exchange(held_, 0));
  }
}

void PagingSink::finish() {
  ledger_.give(std::exchange(shared_, 0));
  if (reducer_) {
    reducer_->take_all();
  }
}

}  // namespace fairshard::cli::planning
