#pragma once
// What a training run has cost and reached, as a short table.

#include <cstdint>
#include <ostream>
#include <string>

namespace gpt {

/// In bytes.
struct MemoryUse {
  uint64_t weights = 0;
  uint64_t gradients = 0;
  uint64_t optimizer_state = 0;
  uint64_t buckets = 0;  ///< at most, beside the gradients, while backward reduces them

  uint64_t total() const { return weights + gradients + optimizer_state + buckets; }
};

struct Report {
  std::string mode;  ///< what is sharded, as --shard says it
  int64_t parameters = 0;
  int ranks = 1;
  MemoryUse per_rank;  ///< of rank 0; others differ by padding at most
  MemoryUse unsharded;
  double sent_bytes_per_step = 0;  ///< by one rank
  double tokens_per_s = 0;         ///< by all ranks
  double first_loss = 0;
  double last_loss = 0;
};

void print_report(const Report& report, std::ostream& out);

}  // namespace gpt
