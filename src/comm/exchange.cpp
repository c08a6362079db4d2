#include "exchange.h"

#include "peers.h"
#include "round.h"
#include "segmented_reduce.h"

#include <mutex>
#include <utility>
#include <vector>

namespace fairshard::comm {
namespace {

/// Below this size an all-reduce sends everything to everybody: one round instead of two.
constexpr int64_t kOneRoundBytes = 64 << 10;

/// Messages that go where they belong.
class RoundOperation final : public Operation {
 public:
  explicit RoundOperation(Round round) : round_(std::move(round)) {}

  /// To be called before it is submitted.
  void send(const at::Tensor& tensor, int peer) {
    if (is_long(tensor)) {
      later_.emplace_back(tensor, peer);
    } else {
      round_.post_send(tensor, peer);
    }
  }

  void start() override {
    const std::lock_guard lock(mutex_);
    for (const auto& [tensor, peer] : later_) {
      round_.post_send(tensor, peer);
    }
    if (is_aborted_) {
      round_.abort();
    }
  }
  bool advance(Deadline deadline) override {
    round_.complete(deadline);
    return true;
  }
  void abort() override {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
    round_.abort();
  }

 private:
  std::vector<std::pair<at::Tensor, int>> later_;
  /// Of the round: abort() is called from another thread.
  std::mutex mutex_;
  bool is_aborted_ = false;
  Round round_;
};

/// Builds one collective: posts its short messages and says what follows.
class Starter {
 public:
  Starter(c10::intrusive_ptr<c10d::ProcessGroup> process_group, const Call& call,
          std::shared_ptr<Staging> staging, uint64_t& sent_bytes)
      : process_group_(std::move(process_group)),
        call_(call),
        staging_(std::move(staging)),
        sent_bytes_(sent_bytes) {}

  std::shared_ptr<Operation> shift(const at::Tensor& output, const at::Tensor& input) {
    const int receiver = (call_.rank + call_.root) % call_.size;
    const int sender = (call_.rank - call_.root + call_.size) % call_.size;
    Round round(process_group_, call_);
    round.post_headers(receiver, sender);
    round.post_receive(output, sender);
    auto operation = std::make_shared<RoundOperation>(std::move(round));
    operation->send(input, receiver);
    sent_bytes_ += input.nbytes();
    return operation;
  }

  std::shared_ptr<Operation> all_gather(const std::vector<at::Tensor>& outputs,
                                        const at::Tensor& input) {
    Round round(process_group_, call_);
    round.post_headers();
    for_each_peer(call_, [&](int peer) { round.post_receive(outputs[peer], peer); });
    auto operation = std::make_shared<RoundOperation>(std::move(round));
    for_each_peer(call_, [&](int peer) {
      operation->send(input, peer);
      sent_bytes_ += input.nbytes();
    });
    const at::Tensor own = outputs[call_.rank];
    if (own.const_data_ptr() != input.const_data_ptr()) {
      own.copy_(input.view(-1));
    }
    return operation;
  }

  std::shared_ptr<Operation> broadcast(const at::Tensor& tensor) {
    Round round(process_group_, call_);
    round.post_headers();
    if (call_.rank != call_.root) {
      round.post_receive(tensor, call_.root);
    }
    auto operation = std::make_shared<RoundOperation>(std::move(round));
    if (call_.rank == call_.root) {
      for_each_peer(call_, [&](int peer) {
        operation->send(tensor, peer);
        sent_bytes_ += tensor.nbytes();
      });
    }
    return operation;
  }

  std::shared_ptr<Operation> reduce_scatter(const at::Tensor& output,
                                            const std::vector<at::Tensor>& inputs) {
    for_each_peer(call_, [&](int peer) { sent_bytes_ += inputs[peer].nbytes(); });
    return std::make_shared<SegmentedReduce>(process_group_, call_, output, inputs,
                                             SegmentedReduce::Then::kKeep, staging_);
  }

  std::shared_ptr<Operation> all_reduce(const at::Tensor& tensor) {
    if (static_cast<int64_t>(tensor.nbytes()) <= kOneRoundBytes) {
      return reduce_scatter(tensor.view(-1), std::vector<at::Tensor>(call_.size, tensor.view(-1)));
    }
    const auto parts = call_.split(tensor);
    for_each_peer(
        call_, [&](int peer) { sent_bytes_ += parts[peer].nbytes() + parts[call_.rank].nbytes(); });
    return std::make_shared<SegmentedReduce>(process_group_, call_, parts[call_.rank], parts,
                                             SegmentedReduce::Then::kGather, staging_);
  }

  std::shared_ptr<Operation> barrier() {
    Round round(process_group_, call_);
    round.post_headers();
    return std::make_shared<RoundOperation>(std::move(round));
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  const Call& call_;
  std::shared_ptr<Staging> staging_;
  uint64_t& sent_bytes_;
};

}  // namespace

std::shared_ptr<Operation> start_exchange(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                                          const Call& call, const at::Tensor& output,
                                          const at::Tensor& input, std::shared_ptr<Staging> staging,
                                          uint64_t& sent_bytes) {
  Starter starter(std::move(process_group), call, std::move(staging), sent_bytes);
  switch (call.kind) {
    case Kind::kAllReduce:
      return starter.all_reduce(output);
    case Kind::kBroadcast:
      return starter.broadcast(output);
    case Kind::kAllGather:
      return starter.all_gather(call.split(output), input);
    case Kind::kReduceScatter:
      return starter.reduce_scatter(output.view(-1), call.split(input));
    case Kind::kShift:
      return starter.shift(output, input);
    case Kind::kBarrier:
      break;
  }
  return starter.barrier();
}

}  // namespace fairshard::comm
