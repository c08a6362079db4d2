// Checkpoints of a model that is paged: exact, and without a second copy of it in memory.
#include "support/temporary_directory.h"
#include "support/training.h"
#include <fairshard/checkpoint.h>
#include <fairshard/nn/offload_model.h>
#include <fairshard/optim/fused.h>

#include <gtest/gtest.h>

#include <fstream>

namespace fairshard {
namespace offload_test {

constexpr int64_t kSlices = 8;
constexpr int64_t kWidth = 1024;
constexpr int64_t kSliceBytes = 4 * kWidth * (kWidth + 1);
constexpr int64_t kSlackBytes = 2 << 20;  // the allocator's, and the file's buffers

/// A line of what the kernel says of this process, in bytes.
int64_t memory(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name, 0) == 0) {
      return 1024 * std::stoll(line.substr(name.size()));
    }
  }
  return 0;
}

/// How many bytes more than afterwards the process had while `call` ran.
template <typename Call>
int64_t peak_above_end(Call call) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak counts from now on
  call();
  return memory("VmHWM:") - memory("VmRSS:");
}

struct PagedRun {
  explicit PagedRun(const std::string& folder, const OffloadOptions& options = {})
      : offload(model, OffloadOptions(options).num_slices(kSlices)),
        optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3)),
        checkpoint(folder) {
    offload.step_in_backward(optimizer);
    checkpoint.add("model", *model, offload).add("optimizer", optimizer);
  }

  static torch::nn::Sequential make_model() {
    torch::manual_seed(0);
    torch::nn::Sequential model;
    for (int64_t i = 0; i < kSlices; ++i) {
      model->push_back(torch::nn::Linear(kWidth, kWidth));
    }
    return model;
  }

  void train(int64_t first, int64_t last) {
    for (int64_t step = first; step < last; ++step) {
      const auto x = at::arange(4 * kWidth, at::kFloat).view({4, kWidth}).mul(0.3).add(step).sin();
      (offload.forward(x) - 1).square().mean().backward();
      optimizer.step();
    }
    offload.wait_for_step();
  }

  torch::nn::Sequential model = make_model();
  OffloadModel offload;
  AdamW optimizer;
  Checkpoint checkpoint;
};

TEST(OffloadCheckpoint, SavingNeedsAtMostASliceMoreThanTheRun) {
  const test::TemporaryDirectory folder;
  PagedRun run(folder.path());
  run.train(0, 2);
  const int64_t before = memory("VmRSS:");
  EXPECT_LT(peak_above_end([&] { run.checkpoint.save(2); }), kSliceBytes + kSlackBytes);
  EXPECT_LT(peak_above_end([&] { run.checkpoint.save_async(3); }), kSliceBytes + kSlackBytes);
  EXPECT_LT(memory("VmRSS:") - before, kSliceBytes + kSlackBytes);  // no copy is kept
}

TEST(OffloadCheckpoint, ARunGoesOnBitForBitAndItsStatesAreWhereItsWeightsAre) {
  for (const bool spills : {false, true}) {
    const test::TemporaryDirectory folder;
    OffloadOptions options;
    if (spills) {
      options.host_budget_bytes(5 * kSliceBytes).spill_dir(folder.path());
    }
    const std::string runs = folder.path() + "/runs";
    PagedRun run(runs, options);
    run.train(0, 3);
    run.checkpoint.save(3);
    run.train(3, 6);
    PagedRun again(runs, options);
    ASSERT_EQ(again.checkpoint.load()->step, 3);
    again.train(3, 6);
    test::require_same(test::values_of(*again.model), test::values_of(*run.model), true);
    EXPECT_EQ(again.offload.report().file_bytes, run.offload.report().file_bytes);
    EXPECT_EQ(run.offload.report().file_bytes > 0, spills);
  }
}

}  // namespace offload_test
}  // namespace fairshard
