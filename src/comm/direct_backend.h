#pragma once
// A c10d backend for CPU tensors: direct exchange between all ranks.

#include "c10d_backends.h"
#include "call.h"
#include "exchange.h"
#include "lender.h"
#include "progress.h"
#include "segmented_reduce.h"
#include "staging.h"
#include <fairshard/comm/process_owned.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fairshard::comm {

/// Collectives over the point-to-point messages of another backend (Gloo): every rank sends to all
/// others at once, each byte once, and sums in rank order, in float32 for half precision, so that
/// results have the same bits on every run. A header travels ahead of the data: ranks that disagree
/// get an error that names rank, sizes and label. When a collective has failed, the backend is
/// broken, and every later call throws the first error.
///
/// Collectives are started in the same order on all ranks, and may be started from any thread.
/// Tensors on other devices go through host memory.
class DirectBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// On a Gloo of its own. Connects: blocks until all ranks have come.
  static BackendPtr over_gloo(const StorePtr& store, int rank, int size, const std::string& bind,
                              std::chrono::milliseconds timeout);
  /// `bind` is where `transport` listens; see make_gloo().
  DirectBackend(c10::intrusive_ptr<c10d::Backend> transport, std::string bind);
  ~DirectBackend() override;

  const std::string getBackendName() const override { return "fairshard"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override { transport_->setTimeout(timeout); }
  /// Returns when all collectives that this rank has started have ended, well or not.
  void flush() { progress_->flush(); }
  Standing standing() const { return progress_->standing(); }
  /// What errors of collectives that have waited too long shall say as well.
  void explain_timeouts(std::shared_ptr<const Verdict> verdict) {
    progress_->explain_timeouts(std::move(verdict));
  }
  /// What this rank has sent in collectives.
  uint64_t sent_bytes() const { return sent_bytes_; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  /// Names a rank that does not come.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  WorkPtr send(Tensors& tensors, int receiver, int tag) override;
  WorkPtr recv(Tensors& tensors, int sender, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  /// All ranks count from 0.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;

  bool supportsSplitting() const override { return true; }
  /// Of the ranks that the child has; null on others. Connects: blocks until they have come.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
  void shutdown() override;
  void abort() override { shutdown(); }

 private:
  using Timeout = std::chrono::milliseconds;
  using Build = std::function<std::shared_ptr<Operation>(const Call&)>;

  /// Not so in a process that was forked; see DeleteInOwnProcess.
  bool is_own_process() const { return progress_.get_deleter().is_own_process(); }

  /// What all calls of this rank have in common.
  Call make_call(Kind kind, const at::Tensor& like, int64_t numel, int64_t root = -1) const;
  WorkPtr start(Call call, Timeout timeout, const Tensors& results, const Lender& lender,
                const Build& build);
  WorkPtr exchange(const Call& call, Timeout timeout, const Tensors& results, const Lender& lender,
                   const Parcels& parcels);
  WorkPtr reduce_parts(const Call& call, Timeout timeout, const at::Tensor& result,
                       const Lender& lender, const at::Tensor& output, const Tensors& parts,
                       SegmentedReduce::Then then = SegmentedReduce::Then::kKeep);
  WorkPtr gather_parts(const Tensors& outputs, const Tensors& results, const at::Tensor& input,
                       const Lender& lender, Timeout timeout);
  WorkPtr scatter_sums(const at::Tensor& output, const Tensors& parts,
                       const c10d::ReduceScatterOptions& options);
  WorkPtr exchange_all(const Tensors& outputs, const Tensors& inputs, const Tensors& results,
                       const Lender& lender, Timeout timeout);

  const c10::intrusive_ptr<c10d::Backend> transport_;
  const std::string bind_;
  std::atomic<uint64_t> sent_bytes_ = 0;
  /// Collectives are posted in the order of their numbers.
  std::mutex mutex_;
  uint64_t sequence_ = 0;
  /// Shared with collectives under way.
  const std::shared_ptr<Staging> staging_ = std::make_shared<Staging>();
  /// Last, so that it ends first: its messages need the transport.
  const ProcessOwned<Progress> progress_ = make_process_owned<Progress>();
};

}  // namespace fairshard::comm
