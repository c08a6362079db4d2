#include "direct_backend.h"

#include "label.h"
#include "own_keys.h"
#include "peers.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace fairshard::comm {

namespace {

using Tensors = DirectBackend::Tensors;

uint64_t bytes_to_peers(const Call& call, const Tensors& sent) {
  uint64_t bytes = 0;
  for_each_peer(call, [&](int peer) { bytes += sent[peer].defined() ? sent[peer].nbytes() : 0; });
  return bytes;
}

}  // namespace

using WorkPtr = DirectBackend::WorkPtr;

DirectBackend::DirectBackend(c10::intrusive_ptr<c10d::Backend> transport, std::string bind)
    : c10d::Backend(transport->getRank(), transport->getSize()),
      transport_(std::move(transport)),
      bind_(std::move(bind)) {}

/// Gloo has threads, too.
DirectBackend::~DirectBackend() {
  if (!is_own_process()) {
    c10::raw::intrusive_ptr::incref(transport_.get());
  }
}

BackendPtr DirectBackend::over_gloo(const StorePtr& store, int rank, int size,
                                    const std::string& bind, std::chrono::milliseconds timeout) {
  const auto meeting = c10::make_intrusive<OwnKeys>(store);
  auto transport = make_gloo(meeting, rank, size, bind, timeout);
  // A rank that is connected might leave while its peers are still connecting to it.
  transport->barrier()->wait();
  meeting->remove();
  return c10::make_intrusive<DirectBackend>(std::move(transport), bind);
}

c10::intrusive_ptr<c10d::Backend::Options> DirectBackend::getBackendOptions() {
  return transport_->getBackendOptions();
}

Call DirectBackend::make_call(Kind kind, const at::Tensor& like, int64_t numel,
                              int64_t root) const {
  Call call;
  call.kind = kind;
  call.dtype = like.scalar_type();
  call.numel = numel;
  call.root = static_cast<int>(root);
  call.label = LabelScope::current();
  call.rank = rank_;
  call.size = size_;
  return call;
}

WorkPtr DirectBackend::start(Call call, Timeout timeout, const Tensors& results,
                             const Lender& lender, const Build& build) {
  TORCH_CHECK(is_own_process(), call.describe(),
              ": this process was forked from the one that made the process group, and has none of "
              "its threads: make another group here");
  const std::lock_guard lock(mutex_);
  call.sequence = sequence_++;
  if (const std::string failure = progress_->failure(); !failure.empty()) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str(call.describe(), ": this group has failed before: ", failure));
  }
  if (timeout.count() <= 0) {
    timeout = getBackendOptions()->timeout;
  }
  const Instant now = std::chrono::steady_clock::now();
  auto work = c10::make_intrusive<DirectWork>(call, build(call), now, now + timeout, results,
                                              lender.copies());
  progress_->submit(work);
  return work;
}

WorkPtr DirectBackend::exchange(const Call& call, Timeout timeout, const Tensors& results,
                                const Lender& lender, const Parcels& parcels) {
  sent_bytes_ += bytes_to_peers(call, parcels.sent);
  return start(call, timeout, results, lender, [&](const Call& numbered) {
    return std::make_shared<Exchange>(transport_, numbered, parcels);
  });
}

WorkPtr DirectBackend::reduce_parts(const Call& call, Timeout timeout, const at::Tensor& result,
                                    const Lender& lender, const at::Tensor& output,
                                    const Tensors& parts, SegmentedReduce::Then then) {
  const bool gathers = then == SegmentedReduce::Then::kGather;
  sent_bytes_ += bytes_to_peers(call, parts) +
                 (gathers ? static_cast<uint64_t>(size_ - 1) * output.nbytes() : 0);
  return start(call, timeout, {result}, lender, [&](const Call& numbered) {
    return std::make_shared<SegmentedReduce>(transport_, numbered, output, parts, then, staging_);
  });
}

WorkPtr DirectBackend::send(Tensors& tensors, int receiver, int tag) {
  return transport_->send(tensors, receiver, tag);
}

WorkPtr DirectBackend::recv(Tensors& tensors, int sender, int tag) {
  return transport_->recv(tensors, sender, tag);
}

WorkPtr DirectBackend::recvAnysource(Tensors& tensors, int tag) {
  return transport_->recvAnysource(tensors, tag);
}

uint64_t DirectBackend::getSequenceNumberForGroup() {
  const std::lock_guard lock(mutex_);
  return sequence_;
}

c10::intrusive_ptr<c10d::Backend> DirectBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const std::vector<int>& ranks,
                                                       const c10::intrusive_ptr<Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) {
    return nullptr;
  }
  return over_gloo(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                   bind_, (options ? options : getBackendOptions())->timeout);
}

void DirectBackend::shutdown() {
  if (is_own_process()) {
    progress_->stop();
  }
}

}  // namespace fairshard::comm
