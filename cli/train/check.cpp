#include "check.h"

#include <fairshard/outer/options.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <vector>

namespace fairshard::cli::training {
namespace {

/// Two options that exclude each other, and why.
struct Conflict {
  bool is_there;
  const char* option;
  std::string reason;
};

std::vector<Conflict> conflicts(const TrainOptions& options, const IsGiven& is_given, int ranks) {
  const char* const apart = options.diloco ? "--diloco" : "--slowmo";
  const bool has_nodes = options.has_nodes();
  const bool shards_gradients = options.shard == "gradients" && (!has_nodes || is_given("--shard"));
  const bool pages = options.offload > 0;
  const bool gathers_at_once = options.shard == "none" || pages || has_nodes;
  const bool streams = options.fragments > 1 || options.fragment_delay > 0;
  const double momentum =
      options.slowmo_momentum.value_or(outer::suggested_momentum(options.nodes));
  return {
      {options.slowmo && options.diloco, "--diloco",
       "and --slowmo are two ways to bring nodes together; choose one"},
      {has_nodes && options.shard == "optimizer" && is_given("--shard"), "--shard",
       c10::str("optimizer does not go with ", apart,
                ": within a node it is none, or gradients, which shards the optimizer, too")},
      {has_nodes && pages, "--offload",
       c10::str("does not go with ", apart,
                ": what nodes exchange would be paged out while it travels")},
      {has_nodes && options.adascale, "--adascale",
       c10::str("does not go with ", apart,
                ": it compares the gradients of all ranks at every step, and nodes do not meet at "
                "every step")},
      {pages && options.adascale, "--adascale",
       "does not go with --offload: paged gradients are on their way when they would be measured"},
      {options.adascale && options.checkpoint_activation, "--adascale",
       "does not go with --checkpoint-activation: it measures in backward, and checkpointing runs "
       "a backward inside of it"},
      {options.adascale && ranks * options.accumulate == 1, "--adascale",
       "needs at least two parts of a batch to compare: more --ranks, or --accumulate 2"},
      {options.step_in_backward && (!shards_gradients || pages), "--step-in-backward",
       "steps what ranks reduce in backward, which is --shard gradients without --offload"},
      {options.step_in_backward && options.clip > 0, "--step-in-backward",
       "does not go with --clip: the norm of all gradients is known only after backward"},
      {options.step_in_backward && options.amp == "fp16", "--step-in-backward",
       "does not go with --amp fp16: whether there is a step is known only after backward"},
      {options.step_in_backward && options.adascale, "--step-in-backward",
       "does not go with --adascale: the gain is known only after backward"},
      {options.step_in_backward && options.accumulate > 1, "--step-in-backward",
       "does not go with --accumulate: gradients that add up would have to be kept"},
      {options.overlap_gather && gathers_at_once, "--overlap-gather",
       "gathers what ranks have stepped by blocks of the model, which is --shard optimizer or "
       "gradients without --offload, --slowmo and --diloco"},
      {options.release_parameters && gathers_at_once, "--release-parameters",
       "shards the weights of blocks, which is --shard optimizer or gradients without --offload, "
       "--slowmo and --diloco"},
      {options.slowmo && streams && momentum == 0,
       options.fragments > 1 ? "--fragments" : "--fragment-delay",
       c10::str("needs an outer optimizer, but with --slowmo and ", options.nodes,
                " nodes there are only averages: give --slowmo-momentum, or take --diloco")},
      {options.diloco && is_given("--localsgd-frequency"), "--localsgd-frequency",
       "is for --slowmo: with --diloco nodes meet at --slowmo-frequency only"},
  };
}

/// Options that mean nothing without another one.
std::optional<Refusal> find_orphan(const TrainOptions& options, const IsGiven& is_given) {
  struct Orphans {
    bool has_owner;
    const char* owner;
    std::vector<const char*> names;
  };
  const std::vector<Orphans> all = {
      {options.offload > 0, "--offload", {"--device-budget", "--host-budget", "--spill-dir"}},
      {options.has_nodes(),
       "--slowmo or --diloco",
       {"--nodes", "--localsgd-frequency", "--slowmo-frequency", "--slowmo-momentum", "--slowmo-lr",
        "--fragments", "--fragment-delay", "--wire"}},
      {!options.save.empty(),
       "--save",
       {"--save-every", "--keep", "--resume", "--resume-from", "--export"}},
      {!options.trace.empty(), "--trace", {"--trace-steps"}},
      {!options.model.empty(), "--model", {"--export"}},
  };
  for (const auto& [has_owner, owner, names] : all) {
    for (const char* const name : names) {
      if (!has_owner && is_given(name)) {
        return Refusal{name, c10::str("means nothing without ", owner)};
      }
    }
  }
  return std::nullopt;
}

std::optional<Refusal> find_bad_number(const TrainOptions& options, int ranks) {
  const auto& gpt = options.gpt;
  if (gpt.width() % gpt.heads() != 0) {
    return Refusal{"--width", c10::str(gpt.width(), " is not a multiple of --heads ", gpt.heads())};
  }
  if (options.batch % (ranks * options.accumulate) != 0) {
    return Refusal{"--batch", c10::str(options.batch, " windows cannot be shared evenly by ", ranks,
                                       " rank(s) with --accumulate ", options.accumulate)};
  }
  if (options.has_nodes() && ranks % options.nodes != 0) {
    return Refusal{"--nodes",
                   c10::str(options.nodes, " nodes cannot have equal shares of ", ranks, " ranks")};
  }
  if (std::max<int64_t>(options.fragments, options.fragment_delay + 1) > options.slowmo_frequency) {
    const bool is_fragments = options.fragments > options.slowmo_frequency;
    return Refusal{is_fragments ? "--fragments" : "--fragment-delay",
                   c10::str("is too large for --slowmo-frequency ", options.slowmo_frequency,
                            ": fragments take turns in so many steps, and are taken in before "
                            "their next turn")};
  }
  if (options.host_budget && options.spill_dir.empty()) {
    return Refusal{"--host-budget", "needs --spill-dir, where the rest goes"};
  }
  if (!options.host_budget && !options.spill_dir.empty()) {
    return Refusal{"--spill-dir", "is used for what is beyond --host-budget, which is not given"};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> find_contradiction(const TrainOptions& options, const IsGiven& is_given,
                                          int ranks) {
  for (const auto& [is_there, option, reason] : conflicts(options, is_given, ranks)) {
    if (is_there) {
      return Refusal{option, reason};
    }
  }
  if (auto orphan = find_orphan(options, is_given)) {
    return orphan;
  }
  return find_bad_number(options, ranks);
}

}  // namespace fairshard::cli::training
