#include "progress_line.h"

#include "../readable.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace fairshard::cli::training {
namespace {

constexpr int64_t kStepsPerLine = 10;

}  // namespace

ProgressLine::ProgressLine(int64_t first, int64_t steps, int64_t tokens_per_step, const char* token)
    : first_(first),
      steps_(steps),
      tokens_per_step_(tokens_per_step),
      token_(token),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

bool ProgressLine::is_due(int64_t step) const {
  return step % kStepsPerLine == 0 || step == first_ || step == steps_;
}

void ProgressLine::show(int64_t step, double loss, int64_t memory) const {
  const auto done = static_cast<double>(step - first_ + 1);
  const auto left_s = std::llround(elapsed_s() / done * static_cast<double>(steps_ - step));
  // A terminal's line is cleared to its end and only left after the last step.
  const char* const begin = is_terminal_ ? "\r\x1b[K" : "";
  is_open_ = is_terminal_ && step < steps_;
  std::fprintf(stderr,
               "%sstep %*lld/%lld  loss %.4f nats/%s  %.0f tokens/s  %lld:%02lld left  "
               "%s per rank%s",
               begin, static_cast<int>(std::to_string(steps_).size()), static_cast<long long>(step),
               static_cast<long long>(steps_), loss, token_, tokens_per_s(step),
               static_cast<long long>(left_s / 60), static_cast<long long>(left_s % 60),
               readable_bytes(static_cast<double>(memory), 2).c_str(), is_open_ ? "" : "\n");
  std::fflush(stderr);
}

void ProgressLine::leave() const {
  if (is_open_) {
    std::fputc('\n', stderr);
    is_open_ = false;
  }
}

double ProgressLine::tokens_per_s(int64_t step) const {
  return static_cast<double>((step - first_ + 1) * tokens_per_step_) / elapsed_s();
}

double ProgressLine::elapsed_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace fairshard::cli::training
