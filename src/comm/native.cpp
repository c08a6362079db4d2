#include "native.h"

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

namespace fairshard::comm {
namespace {

class NativePending final : public Pending {
 public:
  NativePending(c10::intrusive_ptr<c10d::Work> work, const Call& call,
                std::chrono::milliseconds timeout)
      : work_(std::move(work)), call_(call), timeout_(timeout) {}

  void wait() override {
    try {
      work_->wait(timeout_);
    } catch (const std::exception& error) {
      C10_THROW_ERROR(DistBackendError, c10::str(call_.describe(), " failed: ", error.what()));
    }
  }

  bool is_done() const override { return work_->isCompleted(); }
  /// wait() is for the stream and returns at once.
  bool is_done_within(std::chrono::milliseconds /*time*/) override { return true; }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  Call call_;
  std::chrono::milliseconds timeout_;
};

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
  }
  TORCH_INTERNAL_ASSERT(false);
}

// torch 2.15 renamed these; templates, so that the branch for the other version is not
// compiled.
template <typename Group>
auto all_gather_flat(Group& group, at::Tensor& output, at::Tensor& input) {
  if constexpr (requires { group.all_gather_single(output, input); }) {
    return group.all_gather_single(output, input);
  } else {
    return group._allgather_base(output, input);
  }
}

template <typename Group>
auto all_to_all_flat(Group& group, at::Tensor& output, at::Tensor& input,
                     std::vector<int64_t>& received, std::vector<int64_t>& sent) {
  if constexpr (requires { group.all_to_all_single(output, input, received, sent); }) {
    return group.all_to_all_single(output, input, received, sent);
  } else {
    return group.alltoall_base(output, input, received, sent);
  }
}

template <typename Group>
auto reduce_scatter_flat(Group& group, at::Tensor& output, at::Tensor& input,
                         const c10d::ReduceScatterOptions& options) {
  if constexpr (requires { group.reduce_scatter_single(output, input, options); }) {
    return group.reduce_scatter_single(output, input, options);
  } else {
    return group._reduce_scatter_base(output, input, options);
  }
}

/// Grouped by the backend, so that a ring of sends waits for no receive.
c10::intrusive_ptr<c10d::Work> shift_flat(c10d::ProcessGroup& group, const Call& call,
                                          const at::Tensor& output, const at::Tensor& input) {
  std::vector<int64_t> received(call.size, 0);
  std::vector<int64_t> sent(call.size, 0);
  received[(call.rank - call.root + call.size) % call.size] = output.numel();
  sent[(call.rank + call.root) % call.size] = input.numel();
  at::Tensor flat_output = output.view(-1);
  at::Tensor flat_input = input.view(-1);
  return all_to_all_flat(group, flat_output, flat_input, received, sent);
}

c10::intrusive_ptr<c10d::Work> start(c10d::ProcessGroup& group, const Call& call, at::Tensor output,
                                     at::Tensor input, std::chrono::milliseconds timeout) {
  std::vector<at::Tensor> tensors{output};
  std::vector<at::Tensor> inputs{input};
  switch (call.kind) {
    case Kind::kAllReduce: {
      c10d::AllreduceOptions options;
      options.reduceOp = to_c10d(call.op);
      options.timeout = timeout;
      return group.allreduce(tensors, options);
    }
    case Kind::kBroadcast: {
      c10d::BroadcastOptions options;
      options.rootRank = call.root;
      options.timeout = timeout;
      return group.broadcast(tensors, options);
    }
    case Kind::kAllGather: {
      if (call.bounds.empty()) {
        return all_gather_flat(group, output, input);
      }
      std::vector<std::vector<at::Tensor>> outputs{call.split(output)};
      return group.allgather(outputs, inputs);
    }
    case Kind::kReduceScatter: {
      c10d::ReduceScatterOptions options;
      options.reduceOp = to_c10d(call.op);
      options.timeout = timeout;
      if (call.bounds.empty()) {
        return reduce_scatter_flat(group, output, input, options);
      }
      std::vector<std::vector<at::Tensor>> parts{call.split(input)};
      return group.reduce_scatter(tensors, parts, options);
    }
    case Kind::kShift:
      return shift_flat(group, call, output, input);
    case Kind::kBarrier:
      break;
  }
  return group.barrier();
}

}  // namespace

std::shared_ptr<Pending> start_native(c10d::ProcessGroup& process_group, const Call& call,
                                      const at::Tensor& output, const at::Tensor& input,
                                      std::chrono::milliseconds timeout) {
  try {
    return std::make_shared<NativePending>(start(process_group, call, output, input, timeout), call,
                                           timeout);
  } catch (const std::exception& error) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str(call.describe(), " could not start: ", error.what()));
  }
}

}  // namespace fairshard::comm
