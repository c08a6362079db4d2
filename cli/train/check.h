#pragma once
// Which options go together.

#include "options.h"
#include <fairshard/comm/environment.h>

#include <functional>
#include <optional>
#include <string>

namespace fairshard::cli::training {

/// Whether the user has given an option, by its name ("--shard").
using IsGiven = std::function<bool(const std::string& name)>;

/// What is wrong, and with which option; nothing if all is well.
struct Refusal {
  std::string option;
  std::string reason;
};

/// Finds combinations that make no sense. `ranks` are those that there will be.
std::optional<Refusal> find_contradiction(const TrainOptions& options, const IsGiven& is_given,
                                          int ranks);

}  // namespace fairshard::cli::training
