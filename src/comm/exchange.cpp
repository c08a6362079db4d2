#include "exchange.h"

#include "reduce.h"

#include <ATen/ops/empty.h>

#include <functional>
#include <mutex>
#include <optional>

namespace fairshard::comm {
namespace {

/// Below this size an all-reduce sends everything to everybody: one round instead of two.
constexpr int64_t kOneRoundBytes = 64 << 10;

/// One or two rounds of messages, with something to do after each.
class RoundsOperation final : public Operation {
 public:
  using Then = std::function<std::optional<Round>()>;

  RoundsOperation(Round round, Then then) : round_(std::move(round)), then_(std::move(then)) {}

  bool advance(Deadline deadline) override {
    round_.complete(deadline);
    auto next = then_ ? std::exchange(then_, nullptr)() : std::nullopt;
    if (!next) {
      return true;
    }
    std::lock_guard lock(mutex_);
    round_ = std::move(*next);
    if (is_aborted_) {
      round_.abort();
    }
    return false;
  }

  void abort() override {
    std::lock_guard lock(mutex_);
    is_aborted_ = true;
    round_.abort();
  }

 private:
  std::mutex mutex_;
  bool is_aborted_ = false;
  Round round_;
  Then then_;
};

/// Builds one collective: posts its messages and says what follows.
class Starter {
 public:
  Starter(c10::intrusive_ptr<c10d::ProcessGroup> process_group, const Call& call,
          uint64_t& sent_bytes)
      : process_group_(std::move(process_group)),
        call_(call),
        sent_bytes_(sent_bytes),
        round_(process_group_, call) {
    if (call.kind == Kind::kShift) {
      round_.post_headers(receiver(), sender());
    } else {
      round_.post_headers();
    }
  }

  std::shared_ptr<Operation> shift(const at::Tensor& output, const at::Tensor& input) {
    round_.post_receive(output, sender());
    send(round_, input, receiver());
    return finish();
  }

  std::shared_ptr<Operation> all_gather(const std::vector<at::Tensor>& outputs,
                                        const at::Tensor& input) {
    for_each_peer([&](int peer) {
      round_.post_receive(outputs[peer], peer);
      send(round_, input, peer);
    });
    const at::Tensor own = outputs[call_.rank];
    if (own.const_data_ptr() != input.const_data_ptr()) {
      own.copy_(input.view(-1));
    }
    return finish();
  }

  std::shared_ptr<Operation> broadcast(const at::Tensor& tensor) {
    if (call_.rank != call_.root) {
      round_.post_receive(tensor, call_.root);
    } else {
      for_each_peer([&](int peer) { send(round_, tensor, peer); });
    }
    return finish();
  }

  std::shared_ptr<Operation> reduce_scatter(const at::Tensor& output,
                                            const std::vector<at::Tensor>& inputs) {
    const auto parts = exchange_parts(inputs);
    return finish([output, parts, rank = call_.rank, op = call_.op] {
      reduce_in_rank_order(output, parts, rank, op);
      return std::nullopt;
    });
  }

  std::shared_ptr<Operation> all_reduce(const at::Tensor& tensor) {
    if (static_cast<int64_t>(tensor.nbytes()) <= kOneRoundBytes) {
      // The tensor is being sent until the round is over, and only then becomes the output.
      return reduce_scatter(tensor.view(-1), std::vector<at::Tensor>(call_.size, tensor.view(-1)));
    }
    const auto pieces = call_.split(tensor);
    const auto parts = exchange_parts(pieces);
    // Only the rounds are left to the progress thread, so bytes of the second are counted here.
    for_each_peer([&](int) { sent_bytes_ += pieces[call_.rank].nbytes(); });
    return finish([process_group = process_group_, call = call_, pieces, parts] {
      reduce_in_rank_order(pieces[call.rank], parts, call.rank, call.op);
      Round gather(process_group, call);
      for (int peer = 0; peer < call.size; ++peer) {
        if (peer != call.rank) {
          gather.post_receive(pieces[peer], peer, 1);
          gather.post_send(pieces[call.rank], peer, 1);
        }
      }
      return std::optional(std::move(gather));
    });
  }

  std::shared_ptr<Operation> finish(RoundsOperation::Then then = nullptr) {
    return std::make_shared<RoundsOperation>(std::move(round_), std::move(then));
  }

 private:
  template <typename Function>
  void for_each_peer(Function function) const {
    for (int peer = 0; peer < call_.size; ++peer) {
      if (peer != call_.rank) {
        function(peer);
      }
    }
  }

  // Of a shift.
  int receiver() const { return (call_.rank + call_.root) % call_.size; }
  int sender() const { return (call_.rank - call_.root + call_.size) % call_.size; }

  void send(Round& round, const at::Tensor& tensor, int peer) {
    round.post_send(tensor, peer);
    sent_bytes_ += tensor.nbytes();
  }

  /// Sends every peer its part and returns what they send for ours, in rank order.
  std::vector<at::Tensor> exchange_parts(const std::vector<at::Tensor>& inputs) {
    const at::Tensor& own = inputs[call_.rank];
    const at::Tensor received = at::empty({call_.size - 1, own.numel()}, own.options());
    std::vector<at::Tensor> parts(call_.size);
    parts[call_.rank] = own;
    for_each_peer([&](int peer) {
      parts[peer] = received[peer < call_.rank ? peer : peer - 1];
      round_.post_receive(parts[peer], peer);
      send(round_, inputs[peer], peer);
    });
    return parts;
  }

  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  const Call& call_;
  uint64_t& sent_bytes_;
  Round round_;
};

}  // namespace

std::shared_ptr<Operation> start_exchange(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                                          const Call& call, const at::Tensor& output,
                                          const at::Tensor& input, uint64_t& sent_bytes) {
  Starter starter(std::move(process_group), call, sent_bytes);
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
  return starter.finish();
}

}  // namespace fairshard::comm
