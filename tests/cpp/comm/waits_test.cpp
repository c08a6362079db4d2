// Ranks, as threads, that wait for each other are explained, and how long waits are noticed.
#include "support/expect_error.h"
#include "support/hanging_backend.h"
#include <fairshard/comm.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>
#include <utility>

namespace fairshard::comm {
namespace waits_test {

using test::explain_until;
using test::has;
using test::kSoon_s;
using test::require;

TEST(Waits, ALateRankIsNamedAndTheWaitGoesOn) {
  launch_threads(3, [](Group group) {
    explain_waits_after(group, kSoon_s);
    note_step(group, 7);
    const at::Tensor values = at::ones({8});
    all_reduce(group, values, ReduceOp::kSum, "bucket 0").wait();
    if (group.rank() == 2) {
      explain_until(group,
                    {"rank 2 has not started all_reduce #1 of Float[8]",
                     "'bucket 1': it is in no collective, and its last was all_reduce #0",
                     " ago, after step 7"},
                    {{0, "all_reduce #1 of Float[8] (sum) 'bucket 1'"},
                     {1, "waits for rank 2 to come"},
                     {2, "no collective; last all_reduce #0 of Float[8] (sum) 'bucket 0'"}});
    }
    all_reduce(group, values, ReduceOp::kSum, "bucket 1").wait();
    TORCH_CHECK(values[0].item<float>() == 9, "wrong sum");
  });
}

TEST(Waits, AreExplainedInTheLogAndInTheErrorOfTheTimeout) {
  testing::internal::CaptureStderr();
  std::mutex mutex;
  std::vector<std::string> errors(3);
  launch_threads(
      3,
      [&](Group group) {
        explain_waits_after(group, kSoon_s);
        const auto store = group.process_group()->getStore();
        if (group.rank() == 2) {  // alive, but elsewhere
          store->wait({"0 gave up", "1 gave up"}, std::chrono::seconds(60));
          return;
        }
        const std::string error = test::error_of(
            [&] { all_reduce(group, at::ones({4}), ReduceOp::kSum, "lonely").wait(); });
        store->set(c10::str(group.rank(), " gave up"), "1");
        const std::lock_guard lock(mutex);
        errors[group.rank()] = error;
      },
      LaunchOptions().timeout_s(4));
  const std::string log = testing::internal::GetCapturedStderr();
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(has(errors[rank], "timed out")) << errors[rank];
    EXPECT_TRUE(has(errors[rank],
                    "What the ranks said meanwhile: rank 2 has not started all_reduce #0 of "
                    "Float[4] (sum) 'lonely': it is in no collective, and has been in none before"))
        << errors[rank];
    EXPECT_TRUE(has(log, c10::str("rank ", rank, " of 3 has waited for "))) << log;
  }
  const std::string title = "what the 3 ranks of a group wait for";
  EXPECT_TRUE(has(log, title)) << log;
  EXPECT_EQ(log.find(title), log.rfind(title)) << "one table is enough: " << log;
}

TEST(Waits, ASkippedCollectiveIsNamed) {
  launch_threads(2, [](Group group) {
    explain_waits_after(group, kSoon_s);
    const auto store = group.process_group()->getStore();
    const at::Tensor values = at::ones({8});
    for (int bucket = 0; bucket < 2; ++bucket) {
      if (bucket == 0 || group.rank() == 0) {  // all look alike: until the last one nobody notices
        all_reduce(group, values).wait();
      }
    }
    const Work last = all_reduce(group, values);
    if (group.rank() == 0) {
      store->wait({"seen"}, std::chrono::seconds(60));
      return;
    }
    explain_until(group,
                  {"rank 1 has not started all_reduce #2 of Float[8]",
                   "it is in no collective, and its last was all_reduce #1 of Float[8] (sum), "},
                  {{0, "all_reduce #2 of Float[8] (sum), waits for rank 1 to come"}});
    store->set("seen", "1");
  });
}

TEST(Waits, RanksThatDoNotWaitSaySo) {
  launch_threads(2, [](Group group) {
    const Group idle = group.duplicate();
    explain_waits_after(idle, kSoon_s);
    if (group.rank() == 0) {
      explain_until(idle, {"verdict: no rank waits in a collective"},
                    {{1, "no collective so far"}});
    }
    barrier(group);
  });
  launch_threads(1, [](Group group) { require(explain_waits(group), "waits for nobody"); });
}

TEST(Waits, BadInputIsNamed) {
  launch_threads(3, [](Group group) {
    for (const double seconds : {0.0, -1.0, 1e10}) {
      test::expect_error([&] { explain_waits_after(group, seconds); }, {"seconds is "});
    }
    const Group pair = group.subgroup({0, 1});
    if (group.rank() == 2) {
      test::expect_error([&] { explain_waits(pair); }, {"explain_waits", "not in the group"});
      test::expect_error([&] { explain_waits_after(pair, 1); }, {"not in the group"});
      note_step(pair, 1);
    }
    barrier(group);
  });
}

// A link of which one direction is blocked.

/// Gloo's messages, of which those of one rank to another are lost.
class OneWay final : public c10d::Backend {
 public:
  OneWay(c10::intrusive_ptr<c10d::Backend> inner, int from, int to)
      : c10d::Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        loses_(getRank() == from ? to : -1) {}
  const std::string getBackendName() const override { return "gloo"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  test::WorkPtr send(test::Tensors& tensors, int receiver, int tag) override {
    if (receiver == loses_) {
      return c10::make_intrusive<test::HeldWork>(false);
    }
    return inner_->send(tensors, receiver, tag);
  }
  test::WorkPtr recv(test::Tensors& tensors, int sender, int tag) override {
    return inner_->recv(tensors, sender, tag);
  }

 private:
  const c10::intrusive_ptr<c10d::Backend> inner_;
  const int loses_;
};

TEST(WaitsOfLinks, ABlockedDirectionIsNamed) {
  launch_threads(3, [](Group group) {
    const Group connected = group.duplicate();
    {
      const auto link = c10::make_intrusive<OneWay>(connected.process_group()->getBackend(at::kCPU),
                                                    /*from=*/0, /*to=*/1);
      const Group blocked = test::group_over(group, link);
      const Work work = all_reduce(blocked, at::ones({1 << 18}), ReduceOp::kSum, "wide");
      explain_until(
          blocked,
          {"rank 1 hears nothing of rank 0 in all_reduce #0 of Float[262144] (sum) 'wide', "
           "which all ranks have started"},
          {{1, "waits for rank 0 to come"}});
      barrier(group);
    }
    barrier(group);
  });
}

}  // namespace waits_test
}  // namespace fairshard::comm
