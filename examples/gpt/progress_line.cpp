#include "gpt/progress_line.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace gpt {
namespace {

constexpr int64_t kStepsPerLine = 10;

}  // namespace

ProgressLine::ProgressLine(int64_t steps, int64_t tokens_per_step)
    : steps_(steps),
      tokens_per_step_(tokens_per_step),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

bool ProgressLine::is_due(int64_t step) const {
  return step % kStepsPerLine == 0 || step == 1 || step == steps_;
}

void ProgressLine::show(int64_t step, double loss) const {
  const auto left_s =
      std::llround(elapsed_s() / static_cast<double>(step) * static_cast<double>(steps_ - step));
  // A terminal's line is cleared to its end and only left after the last step.
  const char* begin = is_terminal_ ? "\r\x1b[K" : "";
  const char* end = is_terminal_ && step < steps_ ? "" : "\n";
  std::fprintf(stderr, "%sstep %*lld/%lld  loss %.4f nats/byte  %.0f tokens/s  %lld:%02lld left%s",
               begin, static_cast<int>(std::to_string(steps_).size()), static_cast<long long>(step),
               static_cast<long long>(steps_), loss, tokens_per_s(step), left_s / 60, left_s % 60,
               end);
  std::fflush(stderr);
}

double ProgressLine::tokens_per_s(int64_t step) const {
  return static_cast<double>(step * tokens_per_step_) / elapsed_s();
}

double ProgressLine::elapsed_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace gpt
