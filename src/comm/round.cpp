#include "round.h"

#include "peers.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace fairshard::comm {
namespace {

// Tags of users' own messages are small numbers; ours have one of the two highest bits set.
constexpr int kHeaderTags = 0x20000000;
constexpr int kDataTags = 0x40000000;

int header_tag(const Call& call) {
  return kHeaderTags | static_cast<int>(call.sequence % kHeaderTags);
}

/// Messages that are under way together have different tags by what is counted in them; the hash
/// of the signature keeps out those of a call that does not match.
int data_tag(const Call& call, int64_t index, int64_t numel) {
  auto hash = static_cast<uint64_t>(numel);
  for (const int64_t field : to_header(call)) {
    hash = (hash ^ static_cast<uint64_t>(field)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  const auto sequence = static_cast<int>(call.sequence % 256) << 22;
  const auto message = static_cast<int>(index % 256) << 14;
  return kDataTags | sequence | message | static_cast<int>(hash % (1 << 14));
}

}  // namespace

Round::Round(c10::intrusive_ptr<c10d::Backend> transport, const Call& call)
    : transport_(std::move(transport)), call_(call) {}

void Round::post_headers(const std::vector<int64_t>& sent, const std::vector<int64_t>& expected) {
  const Header header = to_header(call_);
  const auto fields = static_cast<int64_t>(header.size()) + 1;
  own_headers_ = at::empty({call_.size, fields}, at::kLong);
  peer_headers_ = at::empty({call_.size, fields}, at::kLong);
  expected_ = expected;
  for_each_peer(call_, [&](int peer) {
    if (!sent.empty() && sent[peer] == 0 && expected[peer] == 0) {
      return;
    }
    auto* const own = own_headers_.mutable_data_ptr<int64_t>() + peer * fields;
    std::copy(header.begin(), header.end(), own);
    own[header.size()] = sent.empty() ? 0 : sent[peer];
    post(peer_headers_[peer], peer, header_tag(call_), true, headers_);
    post(own_headers_[peer], peer, header_tag(call_), false, messages_);
  });
}

void Round::post_send(const at::Tensor& tensor, int peer, int64_t index) {
  if (tensor.numel() > 0) {
    post(tensor, peer, data_tag(call_, index, tensor.numel()), false, messages_);
  }
}

void Round::post_receive(const at::Tensor& tensor, int peer, int64_t index) {
  if (tensor.numel() > 0) {
    post(tensor, peer, data_tag(call_, index, tensor.numel()), true, messages_);
  }
}

void Round::post(const at::Tensor& tensor, int peer, int tag, bool is_receive,
                 std::vector<Message>& messages) {
  // Unseen by profilers: Gloo's own event of a message that is under way when one stops would crash
  // torch's. Ranges of ours name what is started and awaited.
  const at::DisableRecordFunctionGuard unseen;
  std::vector<at::Tensor> tensors{tensor};
  Message message{nullptr, peer, is_receive, "", false};
  try {
    message.work =
        is_receive ? transport_->recv(tensors, peer, tag) : transport_->send(tensors, peer, tag);
  } catch (const std::exception& error) {
    message.post_error = error.what();
  }
  messages.push_back(std::move(message));
}

void Round::check_headers(const Patience& patience) {
  for (auto& header : headers_) {
    wait_for(header, Awaits::kHeader, patience);
  }
  compare_headers();
}

void Round::complete(const Patience& patience) {
  check_headers(patience);
  // Receives first: Gloo tells them at once that a peer is gone, and sends sometimes not.
  for (const bool is_receive : {true, false}) {
    for (auto& message : messages_) {
      if (message.is_receive == is_receive) {
        wait_for(message, is_receive ? Awaits::kMessage : Awaits::kSent, patience);
      }
    }
  }
}

void Round::wait_for(Message& message, Awaits what, const Patience& patience) {
  using std::chrono::milliseconds;
  if (message.is_waited_for) {
    return;
  }
  const auto left =
      std::chrono::ceil<milliseconds>(patience.deadline - std::chrono::steady_clock::now());
  patience.awaited.set(what, message.peer);
  if (!message.work) {
    fail(message.peer, message.is_receive, message.post_error);
  }
  try {
    // c10d takes 0 for "no limit".
    TORCH_CHECK(message.work->wait(std::max(left, milliseconds(1))), "aborted");
  } catch (const std::exception& error) {
    fail(message.peer, message.is_receive, error.what());
  }
  patience.awaited.clear();
  message.is_waited_for = true;
}

void Round::fail(int peer, bool is_receive, const std::string& reason) {
  const bool is_late = reason.find("imed out") != std::string::npos;
  TORCH_CHECK(false, is_receive ? "receiving from" : "sending to", " rank ", peer,
              is_late ? " timed out: that rank has not come to this collective; see whether it "
                        "hangs, runs other code or is much slower. ("
                      : " broke off: that rank has ended or cannot be reached; look for the "
                        "first error in its output. (",
              reason.substr(0, reason.find('\n')), ")");
}

void Round::compare_headers() const {
  const Header mine = to_header(call_);
  for (const Message& message : headers_) {
    const int peer = message.peer;
    const auto* const fields = peer_headers_[peer].const_data_ptr<int64_t>();
    Header theirs;
    std::copy(fields, fields + theirs.size(), theirs.begin());
    TORCH_CHECK(theirs == mine, "the ranks disagree: this rank called ", call_.signature(),
                ", rank ", peer, " called ", describe_peer(theirs, call_));
    const int64_t sent = fields[theirs.size()];
    TORCH_CHECK(expected_.empty() || sent == expected_[peer], "the ranks disagree: rank ", peer,
                " sends ", sent, " elements to this rank, which expects ", expected_[peer]);
  }
}

void Round::abort() {
  for (const auto* messages : {&headers_, &messages_}) {
    for (const auto& message : *messages) {
      if (message.work) {
        message.work->abort();
      }
    }
  }
}

}  // namespace fairshard::comm
