// A training run that can be ended at any moment and started again, for tests from outside:
//
//   checkpointed_run FOLDER RANKS LAST_STEP SAVE_EVERY [BALLAST_MB]
//
// goes on from the newest checkpoint in FOLDER, or begins. Prints "rank R process P", "begins at
// S", "step S loss L" and, when a checkpoint is complete, "saved S". Every other save is
// asynchronous; SAVE_EVERY 0 saves nothing. The ballast makes saving take a while.
#include "support/training.h"
#include <fairshard/checkpoint.h>
#include <fairshard/optim/fused.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace {

using namespace fairshard;

constexpr int64_t kBatch = 24;

at::Tensor share_of_batch(const comm::Group& group, int64_t step) {
  const at::Tensor all =
      at::arange(kBatch * 10, at::kFloat).view({kBatch, 10}).mul(0.37).add(step * 0.9).sin();
  return all.chunk(group.size())[group.rank()];
}

void say(const std::string& line) {
  const std::string text = line + "\n";
  // One write: lines of several ranks do not mix.
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) {
    std::exit(3);
  }
}

void train(const comm::Group& group, const std::string& folder, int64_t last, int64_t save_every,
           int64_t ballast_mb) {
  const bool is_first = group.rank() == 0;
  say(c10::str("rank ", group.rank(), " process ", getpid()));
  auto model = test::make_model();
  OSS<AdamW> optimizer(group, *model, torch::optim::AdamWOptions(1e-2).weight_decay(0.1),
                       test::kSmallBuckets);
  ShardedDataParallel<torch::nn::Sequential> parallel(group, model, optimizer);
  at::Tensor ballast = at::zeros({ballast_mb << 18});
  Checkpoint checkpoint(group, folder, CheckpointOptions().keep(3).timeout_s(20));
  checkpoint.add("model", *model).add("optimizer", optimizer);
  if (ballast_mb > 0) {
    checkpoint.add("ballast", ballast);
  }
  const auto report = checkpoint.load();
  const int64_t first = report ? report->step : 0;
  if (ballast_mb > 0 && !ballast.eq(first).all().item<bool>()) {
    TORCH_CHECK(false, "the ballast is not that of step ", first);
  }
  if (is_first) {
    say(c10::str("begins at ", first));
  }
  int64_t under_way = -1;
  const auto finish = [&] {
    checkpoint.wait();
    if (is_first && under_way >= 0) {
      say(c10::str("saved ", under_way));
    }
    under_way = -1;
  };
  for (int64_t step = first; step < last; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = test::loss_of(parallel.forward(share_of_batch(group, step)));
    loss.backward();
    optimizer.step();
    ballast.fill_(static_cast<double>(step + 1));
    at::Tensor mean = loss.detach().clone();
    comm::all_reduce(group, mean, comm::ReduceOp::kAvg).wait();
    if (is_first) {
      char text[64];
      std::snprintf(text, sizeof(text), "step %lld loss %.9g", static_cast<long long>(step),
                    mean.item<double>());
      say(text);
    }
    if (save_every > 0 && (step + 1) % save_every == 0) {
      finish();
      if ((step + 1) / save_every % 2 == 0) {
        checkpoint.save(step + 1);
      } else {
        checkpoint.save_async(step + 1);
      }
      under_way = step + 1;
      if ((step + 1) / save_every % 2 == 0) {
        finish();
      }
    }
  }
  finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "checkpointed_run FOLDER RANKS LAST_STEP SAVE_EVERY [BALLAST_MB]\n";
    return 2;
  }
  const std::string folder = argv[1];
  const int64_t last = std::atoll(argv[3]);
  const int64_t save_every = std::atoll(argv[4]);
  const int64_t ballast_mb = argc > 5 ? std::atoll(argv[5]) : 0;
  try {
    comm::launch(
        std::atoi(argv[2]),
        [&](const comm::Group& group) { train(group, folder, last, save_every, ballast_mb); },
        comm::LaunchOptions().timeout_s(30).threads(1).grace_s(1));
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
