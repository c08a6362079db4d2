#include "backends.h"
#include "group_state.h"
#include <fairshard/comm/environment.h>
#include <fairshard/comm/group.h>
#include <fairshard/comm/process_owned.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace fairshard::comm {
namespace {

/// One state for each process group, found again by whoever makes another Group on it.
std::shared_ptr<Group::State> state_of(c10::intrusive_ptr<c10d::ProcessGroup> given) {
  static std::mutex mutex;
  static std::unordered_map<c10d::ProcessGroup*, std::weak_ptr<Group::State>> states;
  const std::lock_guard lock(mutex);
  std::erase_if(states, [](const auto& entry) { return entry.second.expired(); });
  auto* const key = given.get();
  // A state holds its process group, so a state that lives is that of this very group.
  if (const auto found = states.find(key); found != states.end()) {
    if (auto state = found->second.lock()) {
      return state;
    }
  }
  const std::shared_ptr<Group::State> state(new Group::State(std::move(given)),
                                            DeleteInOwnProcess());
  if (key) {
    states.insert_or_assign(key, state);
  }
  return state;
}

std::vector<Group::State::Route> routes_of(c10d::ProcessGroup& process_group) {
  std::vector<Group::State::Route> routes;
  for (const auto& device : process_group.getDeviceTypes()) {
    const auto backend = process_group.getBackend(device.type());
    routes.push_back({device.type(), dynamic_cast<DirectBackend*>(backend.get()),
                      backend->getBackendName() == "nccl"});
  }
  return routes;
}

/// Backends of other people may have none; c10d's own have half an hour.
std::chrono::milliseconds timeout_or_default(const std::vector<Group::State::Route>& routes,
                                             c10d::ProcessGroup& process_group) {
  try {
    return timeout_of(*process_group.getBackend(routes.front().device));
  } catch (const c10::Error&) {
    return std::chrono::minutes(30);
  }
}

}  // namespace

Group::State::State(c10::intrusive_ptr<c10d::ProcessGroup> group)
    : given(std::move(group)),
      process_group(given ? decorated(given) : given),
      routes(given ? routes_of(*process_group) : std::vector<Route>()),
      rank(given ? given->getRank() : -1),
      size(given ? given->getSize() : 0),
      watch(make_watch()) {}

Group::State::State(int outside_of, int local) : rank(-1), size(outside_of), local_rank(local) {}

Group::State::~State() = default;

std::unique_ptr<WaitWatch> Group::State::make_watch() {
  if (size < 2 || routes.empty()) {
    return nullptr;
  }
  std::unique_ptr<WaitBoard> board;
  std::string trouble = "the group's store is none of c10d's own";
  if (const StorePtr store = process_group->getStore(); store && can_be_asked(*store)) {
    // Groups that do not connect may share a store.
    const std::string name =
        splits_connect(*process_group) ? "waits" : unused_name(*store, rank, "waits");
    board = std::make_unique<WaitBoard>(c10::make_intrusive<c10d::PrefixStore>(name, store), rank,
                                        size);
  }
  auto made = std::make_unique<WaitWatch>(std::move(board), trouble, rank, size,
                                          timeout_or_default(routes, *process_group),
                                          [this] { return standings(); });
  for (const Route& route : routes) {
    if (route.direct) {
      route.direct->explain_timeouts(made->verdict());
    }
  }
  return made;
}

/// Of each backend of our own, and of the others together.
std::vector<Standing> Group::State::standings() {
  std::vector<Standing> result;
  std::set<const DirectBackend*> seen;  // one backend may serve several devices
  bool has_others = false;
  for (const Route& route : routes) {
    if (!route.direct) {
      has_others = true;
    } else if (seen.insert(route.direct).second) {
      result.push_back(route.direct->standing());
    }
  }
  if (has_others) {
    result.push_back(last_calls.standing());
  }
  return result;
}

void Group::State::require_member(const char* user) const {
  TORCH_CHECK_VALUE(rank >= 0, user, ": this process is not in the group of ", size, " ranks");
}

const Group::State::Route* Group::State::route(c10::DeviceType device) const {
  const auto found = std::find_if(routes.begin(), routes.end(),
                                  [&](const Route& route) { return route.device == device; });
  return found == routes.end() ? nullptr : &*found;
}

Group::Group(c10::intrusive_ptr<c10d::ProcessGroup> process_group)
    : state_(state_of(std::move(process_group))) {}

int Group::rank() const { return state_->rank; }
int Group::size() const { return state_->size; }

int Group::local_rank() const {
  const std::optional<int> known = state_->local_rank;
  return known ? *known : read_environment().local_rank;
}

std::chrono::milliseconds Group::timeout() const {
  state_->require_member("timeout");
  return timeout_of(*state_->process_group->getBackend(control_device().type()));
}

Traffic Group::traffic() const {
  uint64_t sent = state_->uncounted_bytes;
  std::set<const DirectBackend*> counting;  // one backend may serve several devices
  for (const auto& route : state_->routes) {
    if (route.direct && counting.insert(route.direct).second) {
      sent += route.direct->sent_bytes();
    }
  }
  return {sent, state_->collectives};
}

void flush(const Group& group) {
  for (const auto& route : group.state().routes) {
    if (route.direct) {
      route.direct->flush();
    }
  }
}

at::Device Group::control_device() const {
  state_->require_member("control_device");
  if (state_->route(c10::DeviceType::CPU)) {
    return c10::DeviceType::CPU;
  }
  TORCH_CHECK(!state_->routes.empty(), "the process group has no backend for any device");
  return c10::impl::VirtualGuardImpl(state_->routes.front().device).getDevice();
}

std::string Group::backend_name(c10::DeviceType device) const {
  state_->require_member("backend_name");
  return state_->process_group->getBackend(device)->getBackendName();
}

const c10::intrusive_ptr<c10d::ProcessGroup>& Group::process_group() const {
  state_->require_member("process_group");
  return state_->process_group;
}

std::string unused_name(c10d::Store& store, int rank, const std::string& purpose) {
  const std::string key = c10::str("fairshard names/", purpose, "/", rank);
  return c10::str(purpose, "-", store.add(key, 1));
}

c10::intrusive_ptr<c10d::Store> Group::new_store(const std::string& purpose) const {
  state_->require_member("new_store");
  const StorePtr store = state_->process_group->getStore();
  return c10::make_intrusive<c10d::PrefixStore>(unused_name(*store, rank(), purpose), store);
}

Group Group::subgroup(const std::vector<int>& ranks) const {
  state_->require_member("subgroup");
  TORCH_CHECK_VALUE(!ranks.empty(), "a subgroup needs at least one rank");
  for (size_t i = 0; i < ranks.size(); ++i) {
    TORCH_CHECK_VALUE(ranks[i] >= 0 && ranks[i] < size(), "rank ", ranks[i],
                      " of the subgroup is not in a group of ", size());
    TORCH_CHECK_VALUE(i == 0 || ranks[i - 1] < ranks[i],
                      "the ranks of a subgroup must be in ascending order, but ", ranks[i],
                      " follows ", ranks[i - 1]);
  }
  c10d::ProcessGroup& whole = *state_->process_group;
  const auto part =
      split(whole, splits_connect(whole) ? new_store("subgroup") : whole.getStore(), ranks);
  Group group;
  if (part) {
    group = Group(part);
    group.state_->local_rank = local_rank();
  } else {
    group.state_ = std::make_shared<State>(static_cast<int>(ranks.size()), local_rank());
  }
  return group;
}

Group Group::duplicate() const {
  std::vector<int> ranks(static_cast<size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return subgroup(ranks);
}

}  // namespace fairshard::comm
