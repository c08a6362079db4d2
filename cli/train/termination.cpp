#include "termination.h"

#include <c10/util/Exception.h>

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace fairshard::cli::training {

Termination::Termination() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigprocmask(SIG_BLOCK, &signals, &before_);
  event_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  TORCH_CHECK(event_ >= 0, "SIGTERM cannot be waited for: ", std::strerror(errno));
}

Termination::~Termination() {
  close(event_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

bool Termination::is_asked_for() {
  signalfd_siginfo info;
  is_asked_for_ = read(event_, &info, sizeof(info)) > 0 || is_asked_for_;
  return is_asked_for_;
}

}  // namespace fairshard::cli::training
