#pragma once
// What a training run has cost and reached, as a short table.

#include "memory_use.h"

#include <cstdint>
#include <ostream>
#include <string>

namespace fairshard::cli::training {

struct RunSummary {
  std::string mode;   ///< what is sharded, as --shard says it
  std::string token;  ///< what losses are per: "byte" or "token"
  int64_t parameters = 0;
  int ranks = 1;
  MemoryUse per_rank;              ///< of rank 0; others differ by padding at most
  int64_t parameter_bytes = 0;     ///< of the model without anything else
  double sent_bytes_per_step = 0;  ///< by one rank
  double tokens_per_s = 0;         ///< by all ranks
  double first_loss = 0;
  double last_loss = 0;
};

void print_summary(const RunSummary& summary, std::ostream& out);

}  // namespace fairshard::cli::training
