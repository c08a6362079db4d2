#pragma once
// Point-to-point messages that are waited for together.

#include "call.h"
#include "progress.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>
#include <vector>

namespace fairshard::comm {

/// Whether a message takes long to write; see Note [Long sends].
inline bool is_long(const at::Tensor& tensor) { return tensor.nbytes() > 64 << 10; }

/// Messages of one collective that are under way together.
///
/// Note [Headers and tags]: a header's tag depends on the sequence number alone, so that ranks
/// which disagree still read each other's headers. The data's tag depends on the whole signature
/// and the message's size, so that data which does not match is not received into memory of another
/// size.
class Round {
 public:
  /// `transport` carries messages between two ranks.
  Round(c10::intrusive_ptr<c10d::Backend> transport, const Call& call);

  /// Exchanges headers with all peers. Where ranks cannot know from the call how many elements go
  /// from one to another: with those peers that are sent any or send any, each of which is told how
  /// many it is sent, and must send as many as are expected from it.
  void post_headers(const std::vector<int64_t>& sent = {},
                    const std::vector<int64_t>& expected = {});
  /// Posts a message; `index` tells those of one collective between two ranks apart. Empty tensors
  /// need none. Never throws: memory must stay where messages already posted expect it, so
  /// complete() reports.
  void post_send(const at::Tensor& tensor, int peer, int64_t index = 0);
  void post_receive(const at::Tensor& tensor, int peer, int64_t index = 0);

  /// Waits for the peers' headers. Throws if one tells of another call.
  void check_headers(const Patience& patience);
  /// Waits for everything that was posted, headers first.
  void complete(const Patience& patience);
  void abort();

 private:
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;  // null if it could not even be posted
    int peer;
    bool is_receive;
    std::string post_error;
    /// Gloo counts what has arrived, so a second wait would be for a second message.
    bool is_waited_for = false;
  };

  void post(const at::Tensor& tensor, int peer, int tag, bool is_receive,
            std::vector<Message>& messages);
  static void wait_for(Message& message, Awaits what, const Patience& patience);
  [[noreturn]] static void fail(int peer, bool is_receive, const std::string& reason);
  void compare_headers() const;

  c10::intrusive_ptr<c10d::Backend> transport_;
  Call call_;
  /// For each peer the header and how many elements are sent.
  at::Tensor own_headers_;
  at::Tensor peer_headers_;
  std::vector<int64_t> expected_;
  std::vector<Message> headers_;
  std::vector<Message> messages_;
};

}  // namespace fairshard::comm
