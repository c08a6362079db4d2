#pragma once
// The loss of text that is not trained on.

#include "gpt/corpus.h"
#include "one_step.h"
#include <fairshard/comm/group.h>

namespace fairshard::cli::training {

/// The same windows for any number of ranks. At most `batch` of them at a time over all ranks.
/// Collective; blocks.
double validation_loss(const comm::Group& group, const gpt::Corpus& corpus, Stepper& stepper,
                       int64_t batch);

}  // namespace fairshard::cli::training
