// Checkpoints as folders: complete or not there, whatever fails, read by any rank in any order.
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include <fairshard/comm.h>
#include <fairshard/store/directory.h>
#include <fairshard/store/load_plan.h>
#include <fairshard/store/reader.h>
#include <fairshard/store/saver.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

namespace fairshard::store {
namespace saver_test {

namespace fs = std::filesystem;
using comm::Group;
using comm::launch_threads;
using test::expect_error;
using test::TemporaryDirectory;

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Even ranges of a tensor, as sharded parameters have them.
void add_even(State& state, const std::string& key, const at::Tensor& whole) {
  const int64_t begin = whole.numel() * state.rank() / state.ranks();
  const int64_t end = whole.numel() * (state.rank() + 1) / state.ranks();
  state.add_range(key, layout_of(whole), begin, end, memory_view(whole).slice(0, begin, end));
}

at::Tensor example(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes);
}

void save(const std::string& root, int ranks, int64_t step, const SaverOptions& options = {}) {
  launch_threads(ranks, [&](Group group) {
    Saver saver(group, root, options);
    State state = saver.new_state();
    add_even(state, "a", example({7, 11}));
    state.add_alike("large", example({300000}));
    state.add_alike("small", example({3, 5, 7, 2}).contiguous(at::MemoryFormat::ChannelsLast));
    state.add_alike("none", at::empty({0, 3}));
    state.add_alike("scalar", at::scalar_tensor(step, at::kLong));
    state.add_first("first", at::full({2}, group.rank()));
    state.add_whole(own_key("own", group.rank(), "x"), at::full({2}, group.rank()));
    state.add_value("step", std::to_string(step));
    saver.save(step, std::move(state));
  });
}

TEST(Saver, ARangeIsPutTogetherFromWhateverTheFilesHave) {
  for (const int ranks : {1, 2, 3, 8}) {
    const TemporaryDirectory directory;
    save(directory.path(), ranks, 120);
    Reader reader(directory.path() + "/step-00000120");
    EXPECT_EQ(reader.manifest().world_size, ranks);
    const at::Tensor a = example({7, 11});
    for (int64_t begin = 0; begin <= 77; begin += 5) {
      for (int64_t end = begin; end <= 77; end += 4) {
        EXPECT_TRUE(
            reader.read("a", layout_of(a), begin, end).equal(a.flatten().slice(0, begin, end)));
      }
    }
    EXPECT_TRUE(reader.read("large").equal(example({300000})));
    EXPECT_TRUE(reader.read("small").equal(example({3, 5, 7, 2})));
    EXPECT_EQ(reader.read("none").sizes(), at::IntArrayRef({0, 3}));
    EXPECT_EQ(reader.read("scalar").item<int64_t>(), 120);
    EXPECT_TRUE(reader.read("first").equal(at::full({2}, 0)));
    EXPECT_TRUE(reader.read(own_key("own", ranks - 1, "x")).equal(at::full({2}, ranks - 1)));
    EXPECT_EQ(reader.value("step"), "120");
  }
}

TEST(Saver, LeavesNothingInTheGroupsStore) {
  const TemporaryDirectory directory;
  launch_threads(3, [&](Group group) {
    Saver saver(group, directory.path(), SaverOptions().keep(1));
    const auto wait_for_all = [&] { comm::all_reduce(group, at::zeros({1})).wait(); };
    const auto keys_after = [&](int64_t step) {
      State state = saver.new_state();
      add_even(state, "a", example({7, 11}));
      saver.save(step, std::move(state));
      saver.together([] {});
      EXPECT_TRUE(saver.latest().has_value());
      wait_for_all();
      const int64_t keys = group.process_group()->getStore()->getNumKeys();
      wait_for_all();
      return keys;
    };
    const int64_t before = keys_after(1);
    for (int64_t step = 2; step < 5; ++step) {
      EXPECT_EQ(keys_after(step), before);
    }
  });
}

TEST(Saver, LargeTensorsAreSharedOutAndWrittenOnce) {
  const TemporaryDirectory directory;
  save(directory.path(), 3, 1);
  const std::string one = directory.path() + "/step-00000001/";
  uintmax_t total = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const auto bytes = fs::file_size(one + shard_name(rank, 3));
    EXPECT_GT(bytes, 400000u);
    EXPECT_LT(bytes, 405000u);
    total += bytes;
  }
  EXPECT_LT(total, 4u * 300000 + 10000);
}

TEST(Reader, GivesElementsInTheOrderOfTheReadersMemory) {
  const TemporaryDirectory directory;
  const at::Tensor plain = example({2, 3, 4, 5});
  const at::Tensor last = plain.contiguous(at::MemoryFormat::ChannelsLast);
  for (const auto& [stored, wanted] :
       {std::pair(plain, last), std::pair(last, plain), std::pair(last, last),
        std::pair(
            last,
            plain.permute({3, 1, 0, 2}).clone(at::MemoryFormat::Preserve).permute({2, 1, 3, 0}))}) {
    const std::string root =
        directory.path() + "/" + std::to_string(names_in(directory.path()).size());
    launch_threads(2, [&, stored = stored](Group group) {
      Saver saver(group, root);
      State state = saver.new_state();
      add_even(state, "t", stored);
      saver.save(0, std::move(state));
    });
    Reader reader(root + "/step-00000000");
    EXPECT_TRUE(reader.read("t").equal(plain));
    Layout layout = layout_of(wanted);
    layout.dtype = at::kDouble;
    const at::Tensor got = reader.read("t", layout, 13, 99);
    EXPECT_EQ(got.scalar_type(), at::kDouble);
    EXPECT_TRUE(got.equal(memory_view(wanted).slice(0, 13, 99).to(at::kDouble)));
  }
}

TEST(Reader, NamesWhatIsDamaged) {
  const TemporaryDirectory directory;
  save(directory.path(), 2, 5);
  const std::string file = directory.path() + "/step-00000005/shard-00001-of-00002.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-100, std::ios::end);
  stream.put('\x55');
  stream.close();
  Reader reader(directory.path() + "/step-00000005");
  int damaged = 0;
  for (const auto& [key, entry] : reader.manifest().tensors) {
    const std::string message = test::error_of([&, key = key] { reader.read(key); });
    if (!message.empty()) {
      ++damaged;
      EXPECT_NE(message.find(file), std::string::npos) << message;
      EXPECT_NE(message.find("'" + key + "' is damaged"), std::string::npos) << message;
    }
  }
  EXPECT_EQ(damaged, 1);
  fs::resize_file(file, 100);
  expect_error([&] { Reader(directory.path() + "/step-00000005").read("a"); }, {file});
  fs::remove(file);
  expect_error([&] { Reader(directory.path() + "/step-00000005").read("a"); }, {file, "No such"});
  expect_error([&] { reader.read("b"); }, {"no tensor 'b'"});
  expect_error([&] { reader.read("a", layout_of(at::ones({77})), 0, 77); }, {"[7, 11]", "[77]"});
}

TEST(Directory, TheNewestCompleteOneIsFound) {
  const TemporaryDirectory directory;
  const std::string& root = directory.path();
  EXPECT_EQ(latest_checkpoint(root), std::nullopt);
  EXPECT_EQ(latest_checkpoint(root + "/none"), std::nullopt);
  for (const int64_t step : {9, 10, 200}) {
    save(root, 1, step);
  }
  fs::create_directories(root + "/step-00000300");  // without a manifest
  fs::create_directories(root + "/step-400");       // not named by us
  fs::create_directories(root + "/.step-00000500.tmp");
  fs::copy(root + "/step-00000010", root + "/step-00000600", fs::copy_options::recursive);
  fs::resize_file(root + "/step-00000600/" + shard_name(0, 1), 1000);
  EXPECT_EQ(list_checkpoints(root), (std::vector<int64_t>{9, 10, 200}));
  EXPECT_EQ(latest_checkpoint(root), root + "/step-00000200");
}

TEST(Saver, KeepsTheNewestAndCleansUp) {
  const TemporaryDirectory directory;
  const std::string root = directory.path() + "/deep/er";
  fs::create_directories(root + "/.step-00000500.tmp/x");
  for (const int64_t step : {1, 2, 3, 4}) {
    save(root, 2, step, SaverOptions().keep(2));
  }
  save(root, 2, 4, SaverOptions().keep(2));  // again
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"step-00000003", "step-00000004"}));
}

TEST(Saver, AnAsynchronousSaveHasTheStateOfItsTime) {
  const TemporaryDirectory directory;
  launch_threads(2, [&](Group group) {
    Saver saver(group, directory.path());
    const at::Tensor tensor = at::zeros({100});
    for (int64_t step = 0; step < 5; ++step) {
      State state = saver.new_state();
      add_even(state, "t", tensor);
      saver.save_async(step, std::move(state));
      tensor.add_(1);
      comm::all_reduce(group, at::ones({10})).wait();  // training goes on meanwhile
    }
    saver.wait();
    EXPECT_TRUE(saver.is_done());
    saver.wait();
    EXPECT_EQ(saver.latest(), directory.path() + "/step-00000004");
  });
  for (int64_t step = 0; step < 5; ++step) {
    Reader reader(directory.path() + "/" + checkpoint_name(step));
    EXPECT_TRUE(reader.read("t").equal(at::full({100}, static_cast<float>(step))));
  }
}

TEST(Saver, AFailureEndsTheSaveOnAllRanksAndKeepsTheLastOne) {
  const TemporaryDirectory directory;
  save(directory.path(), 2, 1);
  launch_threads(2, [&](Group group) {
    Saver saver(group, directory.path());
    State state = saver.new_state();
    if (group.rank() == 1) {
      state.add_whole("t", at::ones({2}));
      state.replace([](const State::Entry&) { return at::ones({3}); });  // not what it said
    }
    saver.save_async(2, std::move(state));
    expect_error([&] { saver.wait(); },
                 group.rank() == 1 ? std::vector<std::string>{"step 2", "'t'"}
                                   : std::vector<std::string>{"step 2", "on rank 1", "'t'"});
    State good = saver.new_state();
    good.add_first("t", at::ones({2}));
    saver.save(3, std::move(good));
  });
  EXPECT_EQ(names_in(directory.path()),
            (std::vector<std::string>{"step-00000001", "step-00000003"}));
}

TEST(Saver, RanksThatDisagreeAreTold) {
  const TemporaryDirectory directory;
  launch_threads(2, [&](Group group) {
    Saver saver(group, directory.path());
    State state = saver.new_state();
    state.add_range("t", layout_of(at::ones({4 + group.rank()})), 2 * group.rank(),
                    2 * group.rank() + 2, at::ones({2}));
    expect_error([&] { saver.save(1, std::move(state)); }, {"'t'", "[5]", "[4]"});
    State gap = saver.new_state();
    gap.add_range("t", layout_of(at::ones({5})), 2 * group.rank(), 2 * group.rank() + 2,
                  at::ones({2}));
    expect_error([&] { saver.save(1, std::move(gap)); }, {"'t'", "only 4 of 5"});
  });
  EXPECT_EQ(latest_checkpoint(directory.path()), std::nullopt);
}

TEST(Saver, ARankThatDoesNotComeIsNoticedWithinTheTimeout) {
  const TemporaryDirectory directory;
  launch_threads(3, [&](Group group) {
    Saver saver(group, directory.path(), SaverOptions().timeout_s(0.2));
    if (group.rank() == 1) {
      return;
    }
    expect_error([&] { saver.save(1, saver.new_state()); },
                 {group.rank() == 0 ? "rank(s) 1" : "rank"});
  });
  EXPECT_EQ(latest_checkpoint(directory.path()), std::nullopt);
}

TEST(Saver, EndingGivesUpASaveThatWaitsForOthers) {
  const TemporaryDirectory directory;
  launch_threads(2, [&](Group group) {
    if (group.rank() == 0) {
      Saver saver(group, directory.path(), SaverOptions().linger_s(0.05));
      saver.save_async(1, saver.new_state());  // rank 1 never comes; the timeout is half an hour
    }
  });
  EXPECT_EQ(latest_checkpoint(directory.path()), std::nullopt);
}

TEST(Saver, FoldersThatCannotBeWrittenAreNamed) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path() + "/file") << "x";
  Saver in_file(std::nullopt, directory.path() + "/file");
  expect_error([&] { in_file.save(1, in_file.new_state()); }, {directory.path() + "/file"});
  expect_error([&] { Saver(std::nullopt, ""); }, {"no name"});
  Saver saver(std::nullopt, directory.path() + "/a");
  expect_error([&] { saver.save(-1, saver.new_state()); }, {"-1"});
  saver.save(1, saver.new_state());
  fs::remove_all(directory.path() + "/a");  // vanishes; the next save makes it again
  saver.save(2, saver.new_state());
  EXPECT_EQ(list_checkpoints(directory.path() + "/a"), std::vector<int64_t>{2});
}

/// While it lives, files cannot grow beyond some bytes, as on a disk that becomes full.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(Saver, ADiskWithoutRoomKeepsTheLastOne) {
  const TemporaryDirectory directory;
  save(directory.path(), 2, 1);
  {
    const FileLimit limit(100000);
    expect_error([&] { save(directory.path(), 2, 2); }, {"step 2", "cannot write", "too large"});
  }
  EXPECT_EQ(list_checkpoints(directory.path()), std::vector<int64_t>{1});
  save(directory.path(), 2, 2);
  EXPECT_EQ(names_in(directory.path()),
            (std::vector<std::string>{"step-00000001", "step-00000002"}));
}

TEST(LoadPlan, LooksAtEverythingBeforeItChangesAnything) {
  const TemporaryDirectory directory;
  save(directory.path(), 2, 7);
  Reader reader(directory.path() + "/step-00000007");
  at::Tensor a = at::zeros({7, 11});
  const at::Tensor wrong = at::zeros({8, 11});
  const auto plan_for = [&](LoadPlan& plan) {
    plan.add_part("a");
    plan.add_part("own");
    plan.add_tensor("a", a);
    plan.add_tensor("gone", at::zeros({2}));
  };
  LoadPlan strict(reader);
  plan_for(strict);
  expect_error([&] { strict.run(); },
               {"missing: gone", "unexpected: own/rank-00000/x, own/rank-00001/x"});
  EXPECT_EQ(a.sum().item<float>(), 0);
  LoadPlan misfit(reader);
  misfit.add_tensor("a", a);
  misfit.add_tensor("a", wrong);
  expect_error([&] { misfit.run(false); }, {"a has sizes [7, 11] instead of [8, 11]"});
  EXPECT_EQ(a.sum().item<float>(), 0);
  LoadPlan loose(reader);
  plan_for(loose);
  const LoadReport report = loose.run(false);
  EXPECT_EQ(report.step, 7);
  EXPECT_EQ(report.missing, std::vector<std::string>{"gone"});
  EXPECT_EQ(report.unexpected.size(), 2u);
  EXPECT_TRUE(a.equal(example({7, 11})));
}

}  // namespace saver_test
}  // namespace fairshard::store
