#include "trainer.h"

#include "agreement.h"
#include "counted_memory.h"
#include "one_step.h"
#include "progress_line.h"
#include "run_checkpoints.h"
#include "run_log.h"
#include "summary.h"
#include "timeline.h"
#include "validation.h"
#include <fairshard/comm/collectives.h>
#include <fairshard/comm/environment.h>
#include <fairshard/comm/launch.h>
#include <fairshard/comm/waits.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <thread>
#include <utility>

namespace fairshard::cli::training {
namespace {

torch::Device choose_device(const std::string& name, const comm::Environment& environment) {
  if (name == "cpu" || (name == "auto" && !torch::cuda::is_available())) {
    return torch::kCPU;
  }
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  TORCH_CHECK(gpus > 0, "the device is to be '", name, "', but torch finds no GPU");
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(environment.local_rank % gpus)};
}

void set_threads(int threads, const comm::Environment& environment) {
  // torchrun sets OMP_NUM_THREADS to 1 by itself, and the user has not meant it.
  const bool is_ours = environment.origin == "launch";
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(is_ours || threads > 0
                          ? comm::threads_per_rank(threads, environment.local_world_size)
                          : std::max(1, cores / environment.local_world_size));
}

/// What a rank tells the others now and then.
struct RankReport {
  MemoryUse memory;
  /// Since the last time.
  int64_t waited_ns = 0;
};

/// What every rank has, on all ranks.
std::vector<RankReport> gather(const comm::Group& group, const RankReport& own) {
  constexpr int64_t kNumbers = sizeof(RankReport) / sizeof(int64_t);
  const at::Tensor mine = at::empty({kNumbers}, at::kLong);
  std::memcpy(mine.mutable_data_ptr(), &own, sizeof(own));
  const at::Tensor all = at::empty({kNumbers * group.size()}, at::kLong);
  comm::all_gather(group, all, mine, "memory and waits of ranks").wait();
  std::vector<RankReport> result(group.size());
  std::memcpy(result.data(), all.const_data_ptr(), all.nbytes());
  return result;
}

class Trainer {
 public:
  Trainer(const comm::Group& group, const gpt::Corpus& corpus, const TrainOptions& options,
          Termination& termination, at::Device device)
      : group_(group),
        options_(options),
        corpus_(corpus),
        termination_(termination),
        device_(device),
        memory_(device),
        strategy_(make_strategy(group, options, device)),
        timeline_(group, !options.trace.empty()),
        clock_(strategy_->groups(), device, !options.log.empty() || !options.trace.empty(),
               timeline_),
        stepper_(options, *strategy_, device, clock_),
        checkpoints_(group, options, *strategy_, stepper_.scaler()) {}

  void run();

 private:
  /// A step whose loss is still on its way.
  struct Unsettled {
    StepRecord record;
    Agreement agreement;
  };

  void begin();
  bool do_steps();
  void do_step(int64_t step);
  void settle();
  void look_at_ranks(int64_t step);
  void trace_paging();
  void validate(int64_t step);
  void log_saves();
  void end(bool is_terminated);
  void print_end(bool is_terminated);
  bool is_first_rank() const { return group_.rank() == 0; }
  int64_t tokens_per_step() const { return options_.batch * options_.model.context(); }

  comm::Group group_;
  const TrainOptions& options_;
  const gpt::Corpus& corpus_;
  Termination& termination_;
  at::Device device_;
  CountedMemory memory_;
  std::unique_ptr<Strategy> strategy_;
  Timeline timeline_;
  StepClock clock_;
  Stepper stepper_;
  RunCheckpoints checkpoints_;
  RunLog log_;
  std::optional<ProgressLine> progress_;
  std::optional<BatchSource> source_;
  std::optional<Unsettled> unsettled_;
  RunSummary summary_;
  /// The last step that is done; the first one of this run comes after `begun_`.
  int64_t done_ = 0;
  int64_t begun_ = 0;
  int64_t most_memory_ = 0;
  int64_t sent_bytes_ = 0;
  double waited_before_s_ = 0;
  /// That has asked a rank to end, as all ranks know it, or 0.
  int end_signal_ = 0;
};

void Trainer::run() {
  begin();
  end(do_steps());
}

void Trainer::begin() {
  checkpoints_.claim();
  const auto resumed = options_.resume ? checkpoints_.resume() : std::nullopt;
  begun_ = done_ = resumed.value_or(0);
  for (const auto& group : strategy_->optimizer().param_groups()) {
    for (const auto& parameter : group.params()) {
      summary_.parameters += parameter.numel();
      summary_.parameter_bytes += static_cast<int64_t>(parameter.nbytes());
    }
  }
  if (is_first_rank() && !options_.log.empty()) {
    log_ = RunLog(options_.log, options_.resume);
    log_.run({.name = std::filesystem::path(options_.log).stem(),
              .options = options_.listed,
              .ranks = group_.size(),
              .parameters = summary_.parameters,
              .tokens_per_step = tokens_per_step(),
              .device = device_.str(),
              .first_step = begun_ + 1,
              .steps = options_.steps});
  }
  if (resumed && is_first_rank()) {
    log_.event(begun_, clock_.elapsed_s(), "resumed", options_.save);
    std::cerr << c10::str("goes on after step ", begun_, " of ", options_.save, "\n") << std::flush;
  }
  summary_.first_loss = validation_loss(group_, corpus_, stepper_, options_.batch);
  source_.emplace(corpus_,
                  BatchShare{.seed = options_.seed,
                             .batch = options_.batch,
                             .accumulate = options_.accumulate,
                             .rank = group_.rank(),
                             .ranks = group_.size()},
                  begun_ + 1);
  progress_.emplace(begun_ + 1, options_.steps, tokens_per_step());
}

/// Returns whether a rank was asked to end before the last step.
bool Trainer::do_steps() {
  termination_.begin_steps(is_first_rank());
  // With AdaScale a step may be worth several, so that the last comes sooner.
  while (done_ < options_.steps && stepper_.progress(done_) < options_.steps) {
    do_step(done_ + 1);
    if (end_signal_ != 0) {
      settle();
      return done_ < options_.steps;
    }
    if (progress_->is_due(done_)) {
      look_at_ranks(done_);
    }
    if (options_.validate_every > 0 && done_ % options_.validate_every == 0 &&
        done_ < options_.steps) {
      validate(done_);
    }
    if (checkpoints_.is_due(done_) && done_ < options_.steps) {
      checkpoints_.start(done_);
      log_saves();
    }
    if (timeline_.is_on() && done_ - begun_ >= options_.trace_steps) {
      timeline_.stop();
    }
  }
  settle();
  return false;
}

void Trainer::do_step(int64_t step) {
  memory_.reset_peak();
  StepRecord record;
  record.step = step;
  clock_.begin();
  const at::Tensor loss = stepper_.step(*source_, record);
  Agreement agreement(group_, loss, termination_.signal());
  settle();  // the step before this one, which has had time to agree
  done_ = step;
  for (const auto& group : strategy_->groups()) {
    comm::note_step(group, step);
  }
  record.split = clock_.end();
  record.sent_bytes = clock_.sent_bytes();
  record.time_s = clock_.elapsed_s();
  sent_bytes_ += record.sent_bytes;
  trace_paging();
  unsettled_.emplace(Unsettled{record, std::move(agreement)});
}

/// Logs and shows the last step, when all ranks' losses are there.
void Trainer::settle() {
  if (!unsettled_) {
    return;
  }
  auto [record, agreement] = *std::exchange(unsettled_, std::nullopt);
  const auto result = agreement.wait();
  record.loss = result.mean_loss;
  end_signal_ = end_signal_ != 0 ? end_signal_ : result.signal;
  TORCH_CHECK(std::isfinite(record.loss) || record.is_skipped, "the loss is ", record.loss,
              " at step ", record.step, "; a lower learning rate than --lr ", options_.lr,
              " may help");
  if (is_first_rank()) {
    log_.step(record, tokens_per_step());
    if (progress_->is_due(record.step)) {
      progress_->show(record.step, record.loss, most_memory_);
    }
  }
}

void Trainer::look_at_ranks(int64_t step) {
  const int64_t peak = memory_.peak_bytes();
  MemoryUse use = strategy_->memory_use();
  use.peak = peak;
  use.activations = std::max<int64_t>(peak - use.named(), 0);
  summary_.per_rank = use;
  const double waited_s = clock_.waited_s();
  const double waited_since_s = waited_s - std::exchange(waited_before_s_, waited_s);
  const auto all = gather(group_, {use, static_cast<int64_t>(waited_since_s * 1e9)});
  std::vector<double> waits;
  for (int rank = 0; rank < group_.size(); ++rank) {
    most_memory_ = std::max(most_memory_, all[rank].memory.peak);
    log_.memory(step, rank, all[rank].memory);
    waits.push_back(static_cast<double>(all[rank].waited_ns) / 1e9);
  }
  log_.waits(step, waits);
}

void Trainer::trace_paging() {
  if (timeline_.is_on()) {
    const auto [zero, spans] = strategy_->take_spans();
    for (const auto& span : spans) {
      timeline_.add(span.track, span.name, zero, span.start_s, span.end_s);
    }
  }
}

void Trainer::validate(int64_t step) {
  strategy_->settle();
  summary_.last_loss = validation_loss(group_, corpus_, stepper_, options_.batch);
  log_.validation(step, clock_.elapsed_s(), summary_.last_loss);
}

void Trainer::log_saves() {
  for (const auto& [step, folder] : checkpoints_.take_saved()) {
    log_.event(step, clock_.elapsed_s(), "saved", folder);
  }
}

void Trainer::end(bool is_terminated) {
  const int64_t steps = std::max<int64_t>(done_ - begun_, 1);
  summary_.tokens_per_s = progress_->tokens_per_s(done_);
  summary_.sent_bytes_per_step = static_cast<double>(sent_bytes_) / static_cast<double>(steps);
  if (is_terminated) {
    // As it is: what goes on from here must be what would have gone on.
    checkpoints_.save(done_);
    log_saves();
    log_.event(done_, clock_.elapsed_s(), "terminated", name_of_signal(end_signal_));
  } else {
    strategy_->finish();
    checkpoints_.save(done_);
    log_saves();
    validate(done_);
  }
  if (!options_.trace.empty()) {
    timeline_.write(group_, options_.trace);
  }
  log_.end(done_, clock_.elapsed_s(), is_terminated ? "terminated" : "done");
  // Before any rank lets go of connections that others may still need.
  comm::barrier(group_, "end of training");
  print_end(is_terminated);
}

void Trainer::print_end(bool is_terminated) {
  if (!is_first_rank()) {
    return;
  }
  progress_->leave();
  if (is_terminated) {
    std::cerr << c10::str("ended by ", name_of_signal(end_signal_), " after step ", done_,
                          options_.save.empty() ? "; nothing was saved"
                                                : ", which was saved in " + options_.save,
                          "\n")
              << std::flush;
    return;
  }
  summary_.mode = options_.shard;
  summary_.ranks = group_.size();
  print_summary(summary_, std::cout);
}

}  // namespace

void train(const comm::Group& group, const gpt::Corpus& corpus, const TrainOptions& options,
           Termination& termination) {
  const auto environment = comm::read_environment();
  set_threads(options.threads, environment);
  const auto device = choose_device(options.device, environment);
  const c10::DeviceGuard guard(device);
  Trainer(group, corpus, options, termination, device).run();
}

}  // namespace fairshard::cli::training
