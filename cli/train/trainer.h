#pragma once
// One rank's training run: from a text to a trained model, with all that is logged, shown and
// saved.

#include "options.h"
#include "termination.h"
#include "training_text.h"
#include <fairshard/comm/group.h>

namespace fairshard::cli::training {

/// Trains on this rank; rank 0 writes progress to standard error and a summary to standard output.
/// Collective: every rank of the group calls it with the same text and options. Blocks.
void train(const comm::Group& group, const TrainingText& text, const TrainOptions& options,
           Termination& termination);

}  // namespace fairshard::cli::training
