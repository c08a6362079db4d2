// Which samples ranks read, and that a run goes on with those that it has not read.
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include <fairshard/checkpoint.h>
#include <fairshard/comm.h>
#include <fairshard/data/resumable_sampler.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <vector>

namespace fairshard {
namespace resumable_sampler_test {

using Batch = std::vector<size_t>;

/// What all ranks together read in each of some steps, in the order of ranks.
std::vector<Batch> read(int ranks, int steps, const SamplerOptions& options,
                        const std::string& folder, int save_at = -1) {
  std::vector<std::vector<Batch>> parts(static_cast<size_t>(steps),
                                        std::vector<Batch>(static_cast<size_t>(ranks)));
  comm::launch_threads(ranks, [&](comm::Group group) {
    ResumableSampler sampler(group, 50, options);
    Checkpoint checkpoint(group, folder);
    checkpoint.add("sampler", sampler);
    checkpoint.load();
    for (int step = 0; step < steps; ++step) {
      parts[step][group.rank()] = sampler.next();
      if (step + 1 == save_at) {
        checkpoint.save(save_at);
      }
    }
  });
  std::vector<Batch> batches;
  for (const auto& step : parts) {
    auto& all = batches.emplace_back();
    for (const Batch& part : step) {
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  return batches;
}

TEST(ResumableSampler, EpochsHaveAllSamplesOnceAndOrdersOfTheirOwn) {
  ResumableSampler sampler(50, SamplerOptions().batch(5).seed(3));
  std::vector<Batch> epochs(2);
  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ(sampler.epoch(), step / 10 - (step == 10 ? 1 : 0)) << step;  // moves when it goes on
    const Batch batch = sampler.next();
    epochs[step / 10].insert(epochs[step / 10].end(), batch.begin(), batch.end());
  }
  EXPECT_EQ(std::set<size_t>(epochs[0].begin(), epochs[0].end()).size(), 50U);
  EXPECT_EQ(std::set<size_t>(epochs[1].begin(), epochs[1].end()).size(), 50U);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_FALSE(std::ranges::is_sorted(epochs[0]));
  EXPECT_NE(ResumableSampler(50, SamplerOptions().batch(5).seed(4)).next(),
            Batch(epochs[0].begin(), epochs[0].begin() + 5));
  ResumableSampler plain(7, SamplerOptions().batch(3).shuffle(false));
  EXPECT_EQ(plain.next(), (Batch{0, 1, 2}));
  EXPECT_EQ(plain.next(), (Batch{3, 4, 5}));
  EXPECT_EQ(plain.next(), (Batch{0, 1, 2}));  // 6 makes no batch
}

TEST(ResumableSampler, ARunGoesOnWithAnyNumberOfRanks) {
  const test::TemporaryDirectory empty;
  const auto options = SamplerOptions().batch(12).seed(7);
  const auto whole = read(1, 10, options, empty.path());
  for (const int before : {1, 2, 3}) {
    const test::TemporaryDirectory folder;
    EXPECT_EQ(read(before, 6, options, folder.path(), 6),
              std::vector<Batch>(whole.begin(), whole.begin() + 6));
    for (const int after : {1, 2, 4}) {
      // The seed is the checkpoint's.
      EXPECT_EQ(read(after, 4, SamplerOptions().batch(12), folder.path()),
                std::vector<Batch>(whole.begin() + 6, whole.end()));
    }
    // With half the batch: the same samples in twice as many steps.
    const auto halves = read(2, 2, SamplerOptions().batch(6), folder.path());
    EXPECT_TRUE(std::equal(halves[0].begin(), halves[0].end(), whole[6].begin()));
    EXPECT_TRUE(std::equal(halves[1].begin(), halves[1].end(), whole[6].begin() + 6));
  }
}

TEST(ResumableSampler, WhatDoesNotFitIsNamed) {
  test::expect_error([] { ResumableSampler(4, SamplerOptions().batch(5)); },
                     {"4 samples", "batch has 5"});
  test::expect_error([] { ResumableSampler(4, SamplerOptions().batch(0)); }, {"batch is 0"});
  comm::launch_threads(2, [](comm::Group group) {
    test::expect_error([&] { ResumableSampler(group, 9, SamplerOptions().batch(3)); },
                       {"batch is 3", "multiple of the 2 rank(s)"});
  });
  const test::TemporaryDirectory folder;
  ResumableSampler one(9);
  Checkpoint(folder.path()).add("sampler", one).save(1);
  ResumableSampler other(8);
  test::expect_error([&] { Checkpoint(folder.path()).add("sampler", other).load(); },
                     {"'sampler'", "of 9 samples", "there are 8"});
  test::expect_error([&] { one.go_to(0, 10); }, {"position 10", "9 samples"});
}

}  // namespace resumable_sampler_test
}  // namespace fairshard
