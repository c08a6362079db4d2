#include "support/ranks.h"
#include <fairshard/comm/profiler_range.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <mutex>
#include <set>
#include <string>

namespace fairshard::comm {
namespace profiler_range_test {

std::mutex mutex;
std::set<std::string> names;

/// A profiler of all threads, while it lives.
class Listener {
 public:
  Listener() {
    names.clear();
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& record) -> std::unique_ptr<at::ObserverContext> {
          const std::lock_guard lock(mutex);
          names.insert(record.name());
          return nullptr;
        }));
  }
  ~Listener() { at::removeCallback(handle_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  at::CallbackHandle handle_;
};

TEST(ProfilerRange, HasItsNameOnlyWhereSomebodyListens) {
  int made = 0;
  const auto name = [&] {
    ++made;
    return std::string("something");
  };
  { const ProfilerRange range(name); }
  EXPECT_EQ(made, 0);
  const Listener listener;
  { const ProfilerRange range(name); }
  EXPECT_EQ(made, 1);
  EXPECT_EQ(names.count("fairshard::something"), 1);
}

TEST(ProfilerRange, CollectivesHaveTheirLabels) {
  const Listener listener;
  test::run_ranks(2, [](const Group& group) {
    const at::Tensor one = at::ones({3});
    all_reduce(group, one, ReduceOp::kSum, "of three").wait();
    barrier(group);
  });
  for (const char* name : {"all_reduce of three", "wait for all_reduce of three", "barrier"}) {
    EXPECT_EQ(names.count(std::string("fairshard::") + name), 1) << name;
  }
}

/// Stands where torch's NVTX stands, which wants a GPU.
class Nvtx : public torch::profiler::impl::ProfilerStubs {
 public:
  void rangePush(const char* name) const override {
    const std::lock_guard lock(mutex);
    names.insert(name);
  }
  bool enabled() const override { return true; }
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*,
              int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  void rangePop() const override {}
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}
};

TEST(ProfilerRange, NvtxHasTheNames) {
  using torch::profiler::impl::ProfilerConfig;
  using torch::profiler::impl::ProfilerState;
  static Nvtx nvtx;
  torch::profiler::impl::registerCUDAMethods(&nvtx);
  names.clear();
  test::run_ranks(2, [](const Group& group) {
    torch::autograd::profiler::enableProfiler(ProfilerConfig(ProfilerState::NVTX), {});
    const at::Tensor one = at::ones({3});
    all_reduce(group, one, ReduceOp::kSum, "of three").wait();
    torch::autograd::profiler::disableProfiler();
  });
  for (const char* name : {"all_reduce of three", "wait for all_reduce of three"}) {
    // torch adds the number of the operation.
    const auto found = names.lower_bound(std::string("fairshard::") + name);
    EXPECT_TRUE(found != names.end() && found->starts_with(std::string("fairshard::") + name))
        << name;
  }
}

}  // namespace profiler_range_test
}  // namespace fairshard::comm
