#include "gpt/trainer.h"

#include "gpt/progress_line.h"
#include "gpt/report.h"
#include "gpt/sharding.h"
#include <fairshard/comm/collectives.h>
#include <fairshard/comm/environment.h>

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <torch/cuda.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numbers>
#include <thread>
#include <vector>

namespace gpt {
namespace {

namespace comm = fairshard::comm;

constexpr int64_t kValidationWindows = 256;

torch::Device choose_device(const std::string& name, const comm::Environment& environment) {
  if (name == "cpu" || (name == "auto" && !torch::cuda::is_available())) {
    return torch::kCPU;
  }
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  TORCH_CHECK(gpus > 0, "the device is to be '", name, "', but torch finds no GPU");
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(environment.local_rank % gpus)};
}

void set_threads(int threads, const comm::Environment& environment) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(threads > 0 ? threads : std::max(1, cores / environment.local_world_size));
}

fairshard::DataParallelMode choose_mode(const std::string& name) {
  using fairshard::DataParallelMode;
  TORCH_CHECK_VALUE(name == "none" || name == "optimizer" || name == "gradients",
                    "TrainOptions: shard is '", name,
                    "', but must be none, optimizer or gradients");
  return name == "none"        ? DataParallelMode::kReplicated
         : name == "optimizer" ? DataParallelMode::kOptimizer
                               : DataParallelMode::kGradients;
}

Gpt make_model(const TrainOptions& options, torch::Device device) {
  torch::manual_seed(options.seed());
  Gpt model(options.model());
  model->to(device);
  return model;
}

torch::optim::AdamWOptions optimizer_options(const TrainOptions& options) {
  return torch::optim::AdamWOptions(options.lr()).betas({0.9, 0.95}).weight_decay(0.1);
}

/// Rises linearly in the first tenth of the steps, then falls along a cosine to a tenth.
double learning_rate(int64_t step, const TrainOptions& options) {
  const auto warm_up = std::clamp<int64_t>(options.steps() / 10, 1, 100);
  if (step <= warm_up) {
    return options.lr() * static_cast<double>(step) / static_cast<double>(warm_up);
  }
  const double done =
      static_cast<double>(step - warm_up) / static_cast<double>(options.steps() - warm_up);
  return options.lr() * (0.55 + 0.45 * std::cos(std::numbers::pi * done));
}

class Trainer {
 public:
  Trainer(const comm::Group& group, const Corpus& corpus, const TrainOptions& options,
          torch::Device device)
      : group_(group),
        options_(options),
        device_(device),
        corpus_(corpus),
        model_(group, make_model(options, device), choose_mode(options.shard()),
               optimizer_options(options)) {}

  /// All steps; returns what rank 0 prints.
  Report run();

 private:
  torch::Tensor step(int64_t step);
  double validation_loss();
  double average(const torch::Tensor& loss) const;
  Batch on_device(const Batch& batch) const {
    return {batch.tokens.to(device_), batch.targets.to(device_)};
  }

  comm::Group group_;
  TrainOptions options_;
  torch::Device device_;
  const Corpus& corpus_;
  ShardedGpt model_;
};

Report Trainer::run() {
  Report report;
  report.mode = options_.shard();
  report.ranks = group_.size();
  report.first_loss = validation_loss();
  const auto sent_before = group_.traffic().sent_bytes;
  const ProgressLine progress(options_.steps(),
                              options_.batch() * options_.model().context() * group_.size());
  for (int64_t step = 1; step <= options_.steps(); ++step) {
    const auto loss = this->step(step);
    if (progress.is_due(step)) {
      const double mean = average(loss);
      TORCH_CHECK(std::isfinite(mean), "the loss is ", mean, " at step ", step,
                  "; a lower learning rate than ", options_.lr(), " may help");
      if (group_.rank() == 0) {
        progress.show(step, mean);
      }
    }
  }
  report.tokens_per_s = progress.tokens_per_s(options_.steps());
  report.sent_bytes_per_step = static_cast<double>(group_.traffic().sent_bytes - sent_before) /
                               static_cast<double>(options_.steps());
  report.last_loss = validation_loss();
  report.per_rank = model_.memory_use();
  // AdamW has two numbers for each weight; plain data parallelism reduces gradients where they are.
  const auto weights = report.per_rank.weights;
  report.unsharded = {.weights = weights, .gradients = weights, .optimizer_state = 2 * weights};
  for (const auto& parameter : model_.module()->parameters()) {
    report.parameters += parameter.numel();
  }
  return report;
}

torch::Tensor Trainer::step(int64_t step) {
  model_.zero_grad();
  const auto batch =
      on_device(corpus_.sample(options_.batch(), {options_.seed(), group_.rank(), step}));
  const auto loss = loss_of(model_.forward(batch.tokens), batch.targets);
  loss.backward();
  model_.step(learning_rate(step, options_));
  return loss.detach();
}

/// Ranks take turns through the windows, so that the loss is the same text's for any number of
/// them.
double Trainer::validation_loss() {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  double count = 0;
  std::vector<int64_t> numbers;
  for (int64_t number = group_.rank(); number < kValidationWindows; number += group_.size()) {
    numbers.push_back(number);
    const bool is_last = number + group_.size() >= kValidationWindows;
    if (is_last || static_cast<int64_t>(numbers.size()) == options_.batch()) {
      const auto windows = static_cast<double>(numbers.size());
      const auto batch = on_device(corpus_.held_out(numbers, kValidationWindows));
      const auto logits = model_.module()->forward(batch.tokens);
      sum += windows * loss_of(logits, batch.targets).item<double>();
      count += windows;
      numbers.clear();
    }
  }
  const auto totals = torch::tensor({sum, count}, torch::kDouble).to(device_);
  comm::all_reduce(group_, totals, comm::ReduceOp::kSum, "validation loss").wait();
  return (totals[0] / totals[1]).item<double>();
}

double Trainer::average(const torch::Tensor& loss) const {
  const auto mean = loss.to(torch::kDouble);
  comm::all_reduce(group_, mean, comm::ReduceOp::kAvg, "training loss").wait();
  return mean.item<double>();
}

}  // namespace

void train(const comm::Group& group, const Corpus& corpus, const TrainOptions& options) {
  const auto environment = comm::read_environment();
  set_threads(options.threads(), environment);
  const auto device = choose_device(options.device(), environment);
  const c10::DeviceGuard guard(device);
  Trainer trainer(group, corpus, options, device);
  const auto report = trainer.run();
  if (group.rank() == 0) {
    print_report(report, std::cout);
  }
}

}  // namespace gpt
