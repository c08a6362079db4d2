#include "replica_sums.h"

#include <utility>

namespace fairshard::shard {

std::shared_ptr<ReplicaSums::Sum> ReplicaSums::add(Sum sum) {
  auto shared = std::make_shared<Sum>(std::move(sum));
  if (mesh_.has_replicas()) {
    waiting_.push_back(shared);
  }
  return shared;
}

void ReplicaSums::start_next() {
  Sum& sum = *waiting_.front();
  sum.among_shards.wait();  // it has ended, but results may have to be copied to their place
  if (sum.shard.numel() > 0) {
    const bool is_cast = sum.shard.scalar_type() != sum.wire_dtype;
    sum.wire = is_cast ? sum.shard.to(sum.wire_dtype) : at::Tensor();
    sum.among_replicas = comm::all_reduce(mesh_.replicas(), is_cast ? sum.wire : sum.shard, sum.op,
                                          sum.label + " between replicas");
  }
  sum.is_started = true;
  waiting_.pop_front();
}

void ReplicaSums::advance() {
  while (!waiting_.empty() && waiting_.front()->among_shards.is_done()) {
    start_next();
  }
}

void ReplicaSums::wait_for(Sum& sum, const Wait& wait) {
  if (!mesh_.has_replicas()) {
    wait(sum.among_shards);
    return;
  }
  while (!sum.is_started) {
    wait(waiting_.front()->among_shards);
    start_next();
  }
  wait(sum.among_replicas);
  if (sum.wire.defined()) {
    sum.shard.copy_(std::exchange(sum.wire, at::Tensor()));
  }
}

void ReplicaSums::start_rest() {
  while (!waiting_.empty()) {
    start_next();
  }
}

}  // namespace fairshard::shard
