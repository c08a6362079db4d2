#include "gpt/report.h"

#include <array>
#include <cmath>
#include <iomanip>
#include <sstream>

namespace gpt {
namespace {

constexpr int kNameWidth = 18;
constexpr int kColumnWidth = 13;

std::string with_digits(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string in_bytes(double bytes) {
  constexpr std::array<const char*, 4> kUnits = {"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return with_digits(bytes, unit == 0 ? 0 : 2) + " " + kUnits[unit];
}

/// The name on the left, the columns flush right.
class Table {
 public:
  explicit Table(std::ostream& out) : out_(out) {}

  template <typename... Columns>
  void row(const std::string& name, const Columns&... columns) {
    std::ostringstream line;
    line << std::left << std::setw(kNameWidth) << name << std::right;
    ((line << std::setw(kColumnWidth) << columns), ...);
    out_ << line.str() << '\n';
  }

  void memory_row(const std::string& name, uint64_t here, uint64_t unsharded) {
    const auto part = static_cast<double>(here) / static_cast<double>(unsharded);
    row(name, in_bytes(static_cast<double>(here)), in_bytes(static_cast<double>(unsharded)),
        unsharded == 0 ? "-" : std::to_string(std::lround(100 * (1 - part))) + " %");
  }

 private:
  std::ostream& out_;
};

}  // namespace

void print_report(const Report& report, std::ostream& out) {
  Table table(out);
  table.row("mode", report.mode);
  table.row("parameters", report.parameters);
  table.row("ranks", report.ranks);
  table.row("memory", "per rank", "unsharded", "saved");
  table.memory_row("  weights", report.per_rank.weights, report.unsharded.weights);
  table.memory_row("  gradients", report.per_rank.gradients, report.unsharded.gradients);
  table.memory_row("  optimizer state", report.per_rank.optimizer_state,
                   report.unsharded.optimizer_state);
  table.memory_row("  buckets, at most", report.per_rank.buckets, report.unsharded.buckets);
  table.memory_row("  total", report.per_rank.total(), report.unsharded.total());
  table.row("sent", in_bytes(report.sent_bytes_per_step), " per rank and step");
  table.row("throughput", with_digits(report.tokens_per_s, 0), " tokens/s on all ranks");
  table.row("validation loss", with_digits(report.first_loss, 4), " nats/byte before training");
  table.row("", with_digits(report.last_loss, 4), " nats/byte after it");
  out << "final validation loss " << with_digits(report.last_loss, 4) << " nats/byte" << std::endl;
}

}  // namespace gpt
