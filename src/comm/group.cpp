#include "backends.h"
#include "exchange.h"
#include "native.h"
#include "state.h"
#include <fairshard/comm/group.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <utility>

namespace fairshard::comm {
namespace {

std::chrono::milliseconds to_milliseconds(double seconds) {
  TORCH_CHECK_VALUE(seconds > 0, "timeout_s is ", seconds, ", but must be above 0");
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000) + 1);
}

/// A CUDA tensor's collective that is carried out on copies in host memory.
class StagedPending final : public Pending {
 public:
  StagedPending(std::shared_ptr<Pending> host, at::Tensor output, at::Tensor host_output)
      : host_(std::move(host)), output_(std::move(output)), host_output_(std::move(host_output)) {}

  void wait() override {
    host_->wait();
    if (host_output_.defined()) {
      output_.copy_(std::exchange(host_output_, {}));
    }
  }
  bool is_done() const override { return host_->is_done(); }

 private:
  std::shared_ptr<Pending> host_;
  at::Tensor output_;
  at::Tensor host_output_;
};

/// What the best algorithm must send, in bytes, for backends that do not tell.
uint64_t ideal_bytes(const Call& call) {
  const auto bytes = static_cast<uint64_t>(call.numel) * c10::elementSize(call.dtype);
  const auto size = static_cast<uint64_t>(call.size);
  switch (call.kind) {
    case Kind::kAllReduce:
      return 2 * bytes * (size - 1) / size;
    case Kind::kReduceScatter:
      return bytes * (size - 1) / size;
    case Kind::kAllGather:
      return bytes * (size - 1);
    case Kind::kBroadcast:
      return call.rank == call.root ? bytes : 0;
    case Kind::kBarrier:
      break;
  }
  return 0;
}

}  // namespace

Group::State::State(c10::intrusive_ptr<c10d::ProcessGroup> group, const GroupOptions& options)
    : process_group(std::move(group)),
      options(options),
      rank(process_group ? process_group->getRank() : -1),
      size(process_group ? process_group->getSize() : 0),
      timeout(to_milliseconds(options.timeout_s())),
      progress(timeout) {}

Work Group::State::start(Call call, const at::Tensor& output, const at::Tensor& input) {
  std::lock_guard lock(mutex);
  call.rank = rank;
  call.size = size;
  call.sequence = sequence++;
  const std::string failure = progress.failure();
  if (!failure.empty()) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str(call.describe(), ": this group has failed before: ", failure));
  }
  traffic.collectives += 1;

  const auto backend = process_group->getBackend(output.device().type());
  if (backend->getBackendName() != "gloo") {
    TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), call.describe(), ": ",
                     backend->getBackendName(), " cannot reduce ", input.scalar_type(), " to ",
                     output.scalar_type());
    traffic.sent_bytes += ideal_bytes(call);
    return {shared_from_this(), start_native(*process_group, call, output, input, timeout)};
  }
  const bool is_staged = !output.is_cpu();
  const bool is_in_place = output.is_same(input);
  const at::Tensor host_input = is_staged ? input.cpu() : input;
  const at::Tensor host_output =
      !is_staged
          ? output
          : (is_in_place ? host_input : at::empty_like(output, output.options().device(at::kCPU)));
  auto operation = start_exchange(process_group, call, host_output, host_input, traffic.sent_bytes);
  auto pending = progress.submit(call, std::move(operation));
  if (is_staged) {
    pending = std::make_shared<StagedPending>(std::move(pending), output, host_output);
  }
  return {shared_from_this(), std::move(pending)};
}

Group::Group(c10::intrusive_ptr<c10d::ProcessGroup> process_group, const GroupOptions& options)
    : state_(std::make_shared<State>(std::move(process_group), options)) {}

int Group::rank() const { return state_->rank; }
int Group::size() const { return state_->size; }
std::chrono::milliseconds Group::timeout() const { return state_->timeout; }

Traffic Group::traffic() const {
  std::lock_guard lock(state_->mutex);
  return state_->traffic;
}

std::string Group::backend_name(c10::DeviceType device) const {
  return state_->process_group->getBackend(device)->getBackendName();
}

const c10::intrusive_ptr<c10d::ProcessGroup>& Group::process_group() const {
  return state_->process_group;
}

Group Group::subgroup(const std::vector<int>& ranks) const {
  TORCH_CHECK_VALUE(!ranks.empty(), "a subgroup needs at least one rank");
  for (size_t i = 0; i < ranks.size(); ++i) {
    TORCH_CHECK_VALUE(ranks[i] >= 0 && ranks[i] < size(), "rank ", ranks[i],
                      " of the subgroup is not in a group of ", size());
    TORCH_CHECK_VALUE(i == 0 || ranks[i - 1] < ranks[i],
                      "the ranks of a subgroup must be in ascending order, but ", ranks[i],
                      " follows ", ranks[i - 1]);
  }
  const std::string name = c10::str("subgroup-", state_->subgroups++);
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  if (own == ranks.end()) {
    return Group(nullptr, state_->options);
  }
  auto store = c10::make_intrusive<c10d::PrefixStore>(name, state_->process_group->getStore());
  return Group(make_process_group(store, static_cast<int>(own - ranks.begin()),
                                  static_cast<int>(ranks.size()),
                                  backends_like(*state_->process_group), timeout()),
               state_->options);
}

}  // namespace fairshard::comm
