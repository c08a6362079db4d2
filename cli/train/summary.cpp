#include "summary.h"

#include "../readable.h"

#include <cmath>
#include <iomanip>
#include <sstream>

namespace fairshard::cli::training {
namespace {

constexpr int kNameWidth = 18;
constexpr int kColumnWidth = 13;
constexpr int kDigits = 2;

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

  void memory_row(const std::string& name, int64_t here, int64_t unsharded) {
    const auto part = static_cast<double>(here) / static_cast<double>(unsharded);
    row(name, readable_bytes(static_cast<double>(here), kDigits),
        readable_bytes(static_cast<double>(unsharded), kDigits),
        unsharded == 0 ? "-" : std::to_string(std::lround(100 * (1 - part))) + " %");
  }

  void memory_row(const std::string& name, int64_t here) {
    if (here > 0) {
      row(name, readable_bytes(static_cast<double>(here), kDigits));
    }
  }

 private:
  std::ostream& out_;
};

}  // namespace

void print_summary(const RunSummary& summary, std::ostream& out) {
  const MemoryUse& use = summary.per_rank;
  const int64_t weights = summary.parameter_bytes;
  Table table(out);
  table.row("mode", summary.mode);
  table.row("parameters", summary.parameters);
  table.row("ranks", summary.ranks);
  // AdamW has two numbers for each weight; plain data parallelism reduces gradients where they are.
  table.row("memory", "per rank", "unsharded", "saved");
  table.memory_row("  weights", use.weights, weights);
  table.memory_row("  gradients", use.gradients, weights);
  table.memory_row("  optimizer state", use.optimizer, 2 * weights);
  table.memory_row("  buckets, at most", use.buckets, 0);
  table.memory_row("  total", use.named(), 4 * weights);
  table.memory_row("  activations", use.activations);
  table.memory_row("  peak, measured", use.peak);
  table.memory_row("  host, weights", use.host_weights);
  table.memory_row("  host, optimizer", use.host_optimizer);
  table.memory_row("  in files", use.files);
  table.row("sent", readable_bytes(summary.sent_bytes_per_step, kDigits), " per rank and step");
  table.row("throughput", with_digits(summary.tokens_per_s, 0), " tokens/s on all ranks");
  const std::string unit = " nats/" + summary.token;
  table.row("validation loss", with_digits(summary.first_loss, 4), unit + " before training");
  table.row("", with_digits(summary.last_loss, 4), unit + " after it");
  table.row("perplexity", with_digits(std::exp(summary.last_loss), 3), " per " + summary.token);
  out << "final validation loss " << with_digits(summary.last_loss, 4) << unit << std::endl;
}

}  // namespace fairshard::cli::training
