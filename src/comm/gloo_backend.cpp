#include "c10d_backends.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <signal.h>

namespace fairshard::comm {

namespace {

/// Gloo writes to sockets whose other end may be gone. That must be an error of a collective, and
/// not the silent end of the process; Python programs have it so already. A program's own handler
/// stays.
void ignore_broken_pipes() {
  struct sigaction current {};
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

BackendPtr make_gloo(const StorePtr& store, int rank, int size, const std::string& bind,
                     std::chrono::milliseconds timeout) {
  using c10d::ProcessGroupGloo;
  ignore_broken_pipes();
  auto options = ProcessGroupGloo::Options::create(timeout);
  if (bind.empty()) {
    options->devices.push_back(ProcessGroupGloo::createDefaultDevice());
  } else if (bind.front() == '@') {
    options->devices.push_back(ProcessGroupGloo::createDeviceForInterface(bind.substr(1)));
  } else {
    options->devices.push_back(ProcessGroupGloo::createDeviceForHostname(bind));
  }
  // Our collectives use messages, which need none of its threads; c10d's own share this one.
  options->threads = 1;
  return c10::make_intrusive<ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace fairshard::comm
