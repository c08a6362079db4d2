#pragma once
// Collectives in which every rank sends tensors to others and receives tensors from others.
//
// Why not Gloo's own: its all-gather is a ring (N - 1 rounds of latency, and measured at a third of
// the speed), and a difference in size between ranks ends the process or goes unnoticed. Here every
// rank sends to all others at once, so both directions of a link are busy, and a header travels
// ahead of the data.

#include "operation.h"
#include "round.h"

#include <mutex>
#include <utility>
#include <vector>

namespace fairshard::comm {

/// What a rank sends to and receives from each rank; an undefined tensor is nothing. Tensors are
/// flat. What a rank sends to itself is copied.
struct Parcels {
  explicit Parcels(int ranks) : sent(ranks), received(ranks) {}

  std::vector<at::Tensor> sent;
  std::vector<at::Tensor> received;
};

class Exchange final : public Operation {
 public:
  /// Posts what is short.
  Exchange(c10::intrusive_ptr<c10d::Backend> transport, const Call& call, const Parcels& parcels);

  void start() override;
  bool advance(const Patience& patience) override;
  void abort() override;

 private:
  std::vector<std::pair<at::Tensor, int>> later_;
  /// Of the round: abort() is called from another thread.
  std::mutex mutex_;
  bool is_aborted_ = false;
  Round round_;
};

}  // namespace fairshard::comm
