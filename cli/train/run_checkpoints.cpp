#include "run_checkpoints.h"

#include <fairshard/store/directory.h>

#include <c10/util/Exception.h>

#include <filesystem>

namespace fairshard::cli::training {
namespace {

SavedModel saved_model_of(const TrainOptions& options) {
  SavedModel model;
  model.gpt = options.gpt;
  if (options.hub) {
    model.config = options.hub->config.json;
    model.folder = std::filesystem::absolute(options.hub->folder);
  }
  return model;
}

/// What a config.json says of computing, whoever has written it.
models::ModelConfig meaning_of(const std::string& config) {
  models::ModelConfig meaning = models::ModelConfig::parse(config);
  meaning.json.clear();
  meaning.dtype.reset();
  return meaning;
}

}  // namespace

RunCheckpoints::RunCheckpoints(const comm::Group& group, const TrainOptions& options,
                               Strategy& strategy, ShardedGradScaler* scaler)
    : folder_(options.save),
      save_every_(options.save_every),
      resume_from_(options.resume_from),
      is_first_rank_(group.rank() == 0),
      strategy_(strategy),
      model_(saved_model_of(options)),
      batch_(options.batch) {
  if (folder_.empty()) {
    return;
  }
  checkpoint_.emplace(group, folder_,
                      CheckpointOptions().keep(options.keep).timeout_s(options.timeout_s));
  strategy.add_to(*checkpoint_);
  add_model(*checkpoint_, model_);
  if (options.hub) {
    checkpoint_->add_rng();  // for dropout
  }
  checkpoint_->add("run/batch", &batch_);
  if (scaler) {
    checkpoint_->add("scaler", *scaler);
  }
}

void RunCheckpoints::claim() {
  if (checkpoint_) {
    checkpoint_->claim();
  }
}

std::optional<LoadReport> RunCheckpoints::load() {
  if (!checkpoint_ || !resume_from_) {
    return checkpoint_ ? checkpoint_->load() : std::nullopt;
  }
  const auto steps = store::list_checkpoints(folder_);
  if (is_first_rank_ && !steps.empty() && steps.back() > *resume_from_) {
    TORCH_WARN("the run goes back to step ", *resume_from_, ", and ", folder_,
               " has later checkpoints up to step ", steps.back(),
               ": --resume would go on from that one until this run has saved a later step");
  }
  return checkpoint_->load_from(folder_ + "/" + store::checkpoint_name(*resume_from_));
}

std::optional<int64_t> RunCheckpoints::resume() {
  const int64_t batch = batch_;
  const std::string config = model_.config;
  const auto report = load();
  if (!report) {
    return std::nullopt;
  }
  TORCH_CHECK_VALUE(config.empty() || meaning_of(config) == meaning_of(model_.config),
                    "the run in ", folder_, " trains a model with another config.json than the ",
                    "given --model");
  if (batch != batch_) {
    TORCH_WARN("the run in ", folder_, " had --batch ", batch_, ", and goes on with ", batch,
               ": its losses will not be those of the run that was not stopped");
    batch_ = batch;
  }
  last_ = report->step;
  return report->step;
}

void RunCheckpoints::start(int64_t step) {
  finish();
  strategy_.settle();
  checkpoint_->save_async(step);
  under_way_ = last_ = step;
}

void RunCheckpoints::save(int64_t step) {
  if (!checkpoint_) {
    return;
  }
  finish();
  if (last_ != step) {
    strategy_.settle();
    checkpoint_->save(step);
    note(step);
    last_ = step;
  }
}

void RunCheckpoints::finish() {
  checkpoint_->wait();
  if (under_way_) {
    note(*std::exchange(under_way_, std::nullopt));
  }
}

void RunCheckpoints::note(int64_t step) {
  complete_.push_back({step, folder_ + "/" + store::checkpoint_name(step)});
}

}  // namespace fairshard::cli::training
