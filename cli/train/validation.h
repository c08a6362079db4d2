#pragma once
// The loss of text that is not trained on.

#include "one_step.h"
#include "training_text.h"
#include <fairshard/comm/group.h>

namespace fairshard::cli::training {

/// The same windows for any number of ranks. At most `batch` of them at a time over all ranks.
/// Collective; blocks.
double validation_loss(const comm::Group& group, const TrainingText& text, Stepper& stepper,
                       int64_t batch);

}  // namespace fairshard::cli::training
