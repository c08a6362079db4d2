#pragma once
// Which parameters had a gradient in a backward. See Note [Unused parameters] in grad_reducer.h.

#include "arrival_order.h"
#include <fairshard/comm/collectives.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fairshard::shard {

/// On this rank; after an agreement, on any rank.
///
/// Note [Nobody waits to agree]: a rank that has used all parameters in question knows what any
/// rank has used, so it takes part in the agreement and does not wait for it. Where control data
/// lives on a device, only a rank that lacks a gradient makes its host wait for that.
///
/// Note [Static graphs]: whoever promises that every backward uses the parameters of the first has
/// ranks agree in that one alone. Each rank holds itself to it: what it uses is compared with what
/// it has used, which needs nobody else.
class UsedParameters {
 public:
  /// What a backward has used. See Note [Static graphs].
  struct Promise {
    using PerGroup = std::vector<std::vector<bool>>;
    PerGroup by_this_rank;
    PerGroup by_any;
  };

  /// What brings about an agreement.
  struct Agreement {
    std::vector<ParameterId> parameters;
    bool is_known = true;
    at::Tensor flags;
    comm::Work work;
  };
  using Wait = std::function<void(comm::Work&)>;

  /// None of them, at first.
  UsedParameters() = default;
  /// None of them; with a promise it is known already what will be.
  explicit UsedParameters(const std::vector<std::shared_ptr<FlatGroup>>& groups,
                          std::shared_ptr<const Promise> promise = nullptr);

  void add(ParameterId id) {
    by_this_rank_[id.group][id.number] = true;
    is_used_[id.group][id.number] = true;
  }
  bool has(ParameterId id) const { return is_used_[id.group][id.number]; }
  /// For each parameter of a group.
  const std::vector<bool>& of(size_t group) const { return is_used_[group]; }

  /// With a promise: throws if this rank has not kept it for these. Local.
  void check_promise(const std::vector<std::shared_ptr<FlatGroup>>& groups,
                     const std::vector<ParameterId>& parameters) const;
  /// On these parameters. Collective without a promise; does not block.
  Agreement start_agreement(const comm::Group& group, std::vector<ParameterId> parameters,
                            const std::string& label) const;
  /// What was agreed on; waits for it if need be.
  void take(Agreement agreement, const Wait& wait);
  /// After the agreements of a backward: that the next ones will be like it.
  std::shared_ptr<const Promise> as_promise() const;

 private:
  Promise::PerGroup by_this_rank_;
  Promise::PerGroup is_used_;
  std::shared_ptr<const Promise> promise_;
};

}  // namespace fairshard::shard
