#pragma once
// Collectives over Gloo's point-to-point messages.
//
// Why not Gloo's own: its reduce-scatter is an all-reduce (twice the bytes), its all-gather is a
// ring (N - 1 rounds of latency, and measured at a third of the speed), and a difference in size
// between ranks ends the process or goes unnoticed. Here every rank posts all sends and receives at
// once, so both directions of a link are busy, and a header travels ahead of the data.

#include "call.h"
#include "progress.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <vector>

namespace fairshard::comm {

/// Messages of one collective that are under way together.
///
/// Note [Headers and tags]: a header's tag depends on the sequence number alone, so that ranks
/// which disagree still read each other's headers. The data's tag depends on the whole signature,
/// so that data of a call which does not match is never received into memory of another size.
class Round {
 public:
  Round(c10::intrusive_ptr<c10d::ProcessGroup> process_group, const Call& call);

  /// Exchanges headers with all peers, or sends to one and receives from another; complete()
  /// compares them.
  void post_headers();
  void post_headers(int receiver, int sender);
  /// Posts a message; `phase` tells rounds of one collective apart. Empty tensors need none. Never
  /// throws: memory must stay where messages already posted expect it, so complete() reports.
  void post_send(const at::Tensor& tensor, int peer, int phase = 0);
  void post_receive(const at::Tensor& tensor, int peer, int phase = 0);

  /// Waits for everything that was posted. Throws if a peer's header tells of another call.
  void complete(Deadline deadline);
  void abort();

 private:
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;  // null if it could not even be posted
    int peer;
    bool is_receive;
    std::string post_error;
  };

  void post(const at::Tensor& tensor, int peer, int tag, bool is_receive,
            std::vector<Message>& messages);
  void wait_for(const Message& message, Deadline deadline) const;
  [[noreturn]] static void fail(int peer, bool is_receive, const std::string& reason);
  void make_headers();
  void compare_headers() const;

  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  Call call_;
  at::Tensor own_header_;
  at::Tensor peer_headers_;
  std::vector<Message> headers_;
  std::vector<Message> messages_;
};

/// Starts the collective that `call` describes on CPU tensors; see collectives.h for their sizes.
/// `sent_bytes` is raised by what this rank sends.
std::shared_ptr<Operation> start_exchange(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                                          const Call& call, const at::Tensor& output,
                                          const at::Tensor& input, uint64_t& sent_bytes);

}  // namespace fairshard::comm
