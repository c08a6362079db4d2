#pragma once
// One rank's training run: from a text to a trained model, with all that is logged, shown and
// saved.

#include "gpt/corpus.h"
#include "options.h"
#include "termination.h"
#include <fairshard/comm/group.h>

namespace fairshard::cli::training {

/// Trains on this rank; rank 0 writes progress to standard error and a summary to standard output.
/// The corpus has windows of the model's context. Collective: every rank of the group calls it with
/// the same text and options. Blocks.
void train(const comm::Group& group, const gpt::Corpus& corpus, const TrainOptions& options,
           Termination& termination);

}  // namespace fairshard::cli::training
