#include "reductions.h"

#include "all_reduction.h"
#include "shard_reduction.h"
#include "step_reduction.h"

namespace fairshard::shard {

std::unique_ptr<Reduction> make_reduction(BackwardContext& context, const ReducedGroup& group,
                                          bool do_step) {
  if (context.options.mode() == GradientMode::kReplicated) {
    return std::make_unique<AllReduction>(context);
  }
  if (do_step) {
    return std::make_unique<StepReduction>(context, group.step);
  }
  return std::make_unique<ShardReduction>(context);
}

}  // namespace fairshard::shard
