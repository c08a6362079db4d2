#include "exchange.h"

#include "parts.h"
#include "peers.h"

#include <utility>

namespace fairshard::comm {

Exchange::Exchange(c10::intrusive_ptr<c10d::Backend> transport, const Call& call,
                   const Parcels& parcels)
    : round_(std::move(transport), call) {
  if (call.kind == Kind::kAllToAll) {
    round_.post_headers(sizes_of(parcels.sent), sizes_of(parcels.received));
  } else {
    round_.post_headers();
  }
  for_each_peer(call, [&](int peer) {
    if (parcels.received[peer].defined()) {
      round_.post_receive(parcels.received[peer], peer);
    }
  });
  for_each_peer(call, [&](int peer) {
    const at::Tensor& sent = parcels.sent[peer];
    if (sent.defined() && is_long(sent)) {
      later_.emplace_back(sent, peer);
    } else if (sent.defined()) {
      round_.post_send(sent, peer);
    }
  });
  const at::Tensor& own = parcels.received[call.rank];
  const at::Tensor& kept = parcels.sent[call.rank];
  if (own.defined() && kept.defined() && own.const_data_ptr() != kept.const_data_ptr()) {
    own.copy_(kept);
  }
}

void Exchange::start() {
  const std::lock_guard lock(mutex_);
  for (const auto& [tensor, peer] : later_) {
    round_.post_send(tensor, peer);
  }
  if (is_aborted_) {
    round_.abort();
  }
}

bool Exchange::advance(const Patience& patience) {
  round_.complete(patience);
  return true;
}

void Exchange::abort() {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  round_.abort();
}

}  // namespace fairshard::comm
