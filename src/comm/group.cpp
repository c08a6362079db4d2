#include "backends.h"
#include "exchange.h"
#include "native.h"
#include "state.h"
#include <fairshard/comm/group.h>
#include <fairshard/comm/waits.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace fairshard::comm {
namespace {

std::chrono::milliseconds to_milliseconds(double seconds) {
  TORCH_CHECK_VALUE(seconds > 0, "timeout_s is ", seconds, ", but must be above 0");
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000) + 1);
}

/// A collective whose result is made elsewhere (in host memory, in another dtype) and copied.
class StagedPending final : public Pending {
 public:
  StagedPending(std::shared_ptr<Pending> pending, at::Tensor output, at::Tensor staged)
      : pending_(std::move(pending)), output_(std::move(output)), staged_(std::move(staged)) {}

  void wait() override {
    pending_->wait();
    if (staged_.defined()) {
      output_.copy_(std::exchange(staged_, {}));
    }
  }
  bool is_done() const override { return pending_->is_done(); }
  bool is_done_within(std::chrono::milliseconds time) override {
    return pending_->is_done_within(time);
  }

 private:
  std::shared_ptr<Pending> pending_;
  at::Tensor output_;
  at::Tensor staged_;
};

/// One state for each process group, found again by whoever makes another Group on it.
std::shared_ptr<Group::State> state_of(c10::intrusive_ptr<c10d::ProcessGroup> process_group) {
  static std::mutex mutex;
  static std::unordered_map<c10d::ProcessGroup*, std::weak_ptr<Group::State>> states;
  const std::lock_guard lock(mutex);
  std::erase_if(states, [](const auto& entry) { return entry.second.expired(); });
  auto* const key = process_group.get();
  // A state holds its process group, so a state that lives is that of this very group.
  if (const auto found = states.find(key); found != states.end()) {
    if (auto state = found->second.lock()) {
      return state;
    }
  }
  auto state = std::make_shared<Group::State>(std::move(process_group));
  if (key) {
    states.insert_or_assign(key, state);
  }
  return state;
}

/// What the best algorithm must send, in bytes, for backends that do not tell.
uint64_t ideal_bytes(const Call& call) {
  const auto bytes = static_cast<uint64_t>(call.numel) * c10::elementSize(call.dtype);
  const auto size = static_cast<uint64_t>(call.size);
  switch (call.kind) {
    case Kind::kAllReduce:
      return 2 * bytes * (size - 1) / size;
    case Kind::kReduceScatter:
    case Kind::kAllGather:
      return bytes * (size - 1) / size;
    case Kind::kBroadcast:
      return call.rank == call.root ? bytes : 0;
    case Kind::kShift:
      return bytes;
    case Kind::kBarrier:
      break;
  }
  return 0;
}

}  // namespace

Group::State::State(c10::intrusive_ptr<c10d::ProcessGroup> group)
    : process_group(std::move(group)),
      rank(process_group ? process_group->getRank() : -1),
      size(process_group ? process_group->getSize() : 0) {}

Work Group::State::start(Call call, const at::Tensor& output, const at::Tensor& input,
                         std::chrono::milliseconds timeout) {
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
    traffic.sent_bytes += ideal_bytes(call);
    if (output.scalar_type() == input.scalar_type()) {
      return {shared_from_this(), start_native(*process_group, call, output, input, timeout)};
    }
    const at::Tensor narrow = at::empty_like(output, input.options());
    auto pending = start_native(*process_group, call, narrow, input, timeout);
    return {shared_from_this(), std::make_shared<StagedPending>(pending, output, narrow)};
  }
  const bool is_staged = !output.is_cpu();
  const bool is_in_place = output.is_same(input);
  const at::Tensor host_input = is_staged ? input.cpu() : input;
  const at::Tensor host_output =
      !is_staged
          ? output
          : (is_in_place ? host_input : at::empty_like(output, output.options().device(at::kCPU)));
  auto operation =
      start_exchange(process_group, call, host_output, host_input, staging, traffic.sent_bytes);
  auto pending = progress.submit(call, std::move(operation), timeout);
  if (is_staged) {
    pending = std::make_shared<StagedPending>(std::move(pending), output, host_output);
  }
  return {shared_from_this(), std::move(pending)};
}

Group::Group(c10::intrusive_ptr<c10d::ProcessGroup> process_group, const GroupOptions& options)
    : timeout_(to_milliseconds(options.timeout_s())), state_(state_of(std::move(process_group))) {}

int Group::rank() const { return state_->rank; }
int Group::size() const { return state_->size; }

Traffic Group::traffic() const {
  std::lock_guard lock(state_->mutex);
  return state_->traffic;
}

double waited_s(const Group& group) {
  return std::chrono::duration<double>(group.state().progress.waited()).count();
}

std::string Group::backend_name(c10::DeviceType device) const {
  return state_->process_group->getBackend(device)->getBackendName();
}

const c10::intrusive_ptr<c10d::ProcessGroup>& Group::process_group() const {
  return state_->process_group;
}

/// A name that this group's store has not seen, the same on all ranks that ask equally often. The
/// store counts, for each rank: it outlives this object.
std::string Group::unused_name(const std::string& purpose) const {
  const std::string key = c10::str("fairshard names/", purpose, "/", rank());
  return c10::str(purpose, "-", state_->process_group->getStore()->add(key, 1));
}

c10::intrusive_ptr<c10d::Store> Group::new_store(const std::string& purpose) const {
  const std::string prefix = unused_name(purpose);
  return c10::make_intrusive<c10d::PrefixStore>(prefix, state_->process_group->getStore());
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
  const auto options = GroupOptions().timeout_s(std::chrono::duration<double>(timeout_).count());
  const std::string name = unused_name("subgroup");
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  if (own == ranks.end()) {
    return Group(nullptr, options);
  }
  auto store = c10::make_intrusive<c10d::PrefixStore>(name, state_->process_group->getStore());
  return Group(make_process_group(store, static_cast<int>(own - ranks.begin()),
                                  static_cast<int>(ranks.size()),
                                  backends_like(*state_->process_group), timeout()),
               options);
}

Group Group::another() const {
  std::vector<int> ranks(static_cast<size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return subgroup(ranks);
}

}  // namespace fairshard::comm
