// All ranks load, or none does; and what was begun is not lost at the end.
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include <fairshard/checkpoint.h>
#include <fairshard/comm/launch.h>
#include <fairshard/store/directory.h>
#include <fairshard/store/manifest.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace fairshard {
namespace {

namespace fs = std::filesystem;
using comm::Group;
using comm::launch_threads;
using store::latest_checkpoint;
using test::expect_error;
using test::TemporaryDirectory;

const auto kShortWaits = CheckpointOptions().timeout_s(20);

/// A tensor that each rank has its own of.
class OwnTensor : public CheckpointPart {
 public:
  OwnTensor(at::Tensor tensor, int rank) : tensor_(std::move(tensor)), rank_(rank) {}

  void save(const std::string& name, const CheckpointContext& /*context*/,
            store::State& state) override {
    state.add_whole(store::own_key(name, rank_, "x"), tensor_);
  }
  void load(const std::string& name, const CheckpointContext& /*context*/,
            store::LoadPlan& plan) override {
    for (const auto& key : plan.reader().names_under(name + "/")) {
      plan.expects(c10::str(name, "/", key));
    }
    plan.add_tensor(store::own_key(name, rank_, "x"), tensor_);
  }

 private:
  at::Tensor tensor_;
  int rank_;
};

void save_own(const std::string& root) {
  launch_threads(2, [&](Group group) {
    Checkpoint checkpoint(group, root, kShortWaits);
    checkpoint.add("own",
                   std::make_shared<OwnTensor>(at::full({1000}, group.rank()), group.rank()));
    checkpoint.save(7);
  });
}

void damage(const std::string& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-100, std::ios::end);
  stream.put('\x55');
}

TEST(Load, WhatOneRankFindsDamagedIsLoadedByNone) {
  const TemporaryDirectory directory;
  save_own(directory.path());
  damage(directory.path() + "/step-00000007/" + store::shard_name(1, 2));
  launch_threads(2, [&](Group group) {
    const at::Tensor own = at::full({1000}, -1);
    Checkpoint checkpoint(group, directory.path(), kShortWaits);
    checkpoint.add("own", std::make_shared<OwnTensor>(own, group.rank()));
    expect_error([&] { checkpoint.load(); }, {store::shard_name(1, 2), "is damaged"});
    EXPECT_TRUE(own.eq(-1).all().item<bool>()) << "rank " << group.rank();
  });
}

TEST(Load, ARankThatCannotReadTheFolderTellsTheOthers) {
  const TemporaryDirectory directory;
  save_own(directory.path());
  std::ofstream(directory.path() + "/file") << "x";
  launch_threads(2, [&](Group group) {
    const std::string root = directory.path() + (group.rank() == 0 ? "/file" : "");
    Checkpoint checkpoint(group, root, kShortWaits);
    checkpoint.add("own", std::make_shared<OwnTensor>(at::ones({1000}), group.rank()));
    expect_error([&] { checkpoint.load(); }, {"cannot list", directory.path() + "/file"});
    // A path that only one rank has, as on a disk that is not shared.
    const std::string folder =
        directory.path() + (group.rank() == 0 ? "/step-00000007" : "/not-mounted");
    expect_error([&] { checkpoint.load_from(folder); },
                 {"cannot read", directory.path() + "/not-mounted/manifest.json"});
    // What fits nowhere changes nothing, and what comes after it works.
    EXPECT_EQ(checkpoint.load_from(directory.path() + "/step-00000007").step, 7);
  });
}

TEST(SaveAsync, TheEndWaitsForASaveThatIsUnderWay) {
  const TemporaryDirectory directory;
  for (const int ranks : {1, 2, 3}) {
    const std::string root = directory.path() + "/" + std::to_string(ranks);
    launch_threads(ranks, [&](Group group) {
      const at::Tensor tensor = at::ones({1 << 20});
      Checkpoint checkpoint(group, root);
      checkpoint.add("t", tensor);
      checkpoint.save_async(1);
    });
    EXPECT_EQ(latest_checkpoint(root), root + "/step-00000001") << ranks << " ranks";
  }
}

}  // namespace
}  // namespace fairshard
