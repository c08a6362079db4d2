// Waits are explained over backends that are not our own, too.
#include "support/expect_error.h"
#include "support/hanging_backend.h"
#include <fairshard/comm.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace fairshard::comm {
namespace waits_of_backends_test {

using test::await_all;
using test::explain_until;
using test::group_over;
using test::HangingBackend;

void run_over_hanging_backend(const std::string& name,
                              const std::function<void(const Group&, HangingBackend&)>& fn) {
  launch_threads(3, [&](Group group) {
    const auto backend = c10::make_intrusive<HangingBackend>(group.rank(), group.size(), name);
    const Group other = group_over(group, backend);
    fn(other, *backend);
    barrier(group);  // all answer until then
  });
}

TEST(WaitsOfOtherBackends, ARankThatHasNotStartedIsNamed) {
  run_over_hanging_backend("nccl", [](const Group& group, HangingBackend& backend) {
    const at::Tensor values = at::ones({16});
    all_reduce(group, values, ReduceOp::kSum, "first");
    backend.end_all();
    Work work;
    if (group.rank() != 1) {
      work = all_reduce(group, values, ReduceOp::kSum, "second");
    } else {
      explain_until(
          group,
          {"rank 1 has not started all_reduce #1 of Float[16] 'second': it is in no collective, "
           "and its last was all_reduce #0 of Float[16] 'first'"},
          {{0, "all_reduce #1 of Float[16] 'second'"}, {1, "no collective; last all_reduce #0"}});
    }
    await_all(group);
  });
}

TEST(WaitsOfOtherBackends, RanksOfAnotherModelAreNamed) {
  run_over_hanging_backend("nccl", [](const Group& group, HangingBackend&) {
    const at::Tensor values = at::ones({16});
    const Work work =
        group.rank() == 1 ? broadcast(group, values, 0, "b") : all_reduce(group, values);
    explain_until(group, {"the ranks disagree: ",
                          "ranks 0, 2 called all_reduce #0 of Float[16]; rank 1 called broadcast "
                          "#0 of Float[16] 'b': they run other code"});
    await_all(group);
  });
}

TEST(WaitsOfOtherBackends, TheHostsWaitCountsAndItsErrorIsExplained) {
  run_over_hanging_backend("hanging", [](const Group& group, HangingBackend& backend) {
    if (group.rank() == 0) {
      return;  // and waits for the others elsewhere
    }
    Work work = all_reduce(group, at::ones({16}));
    std::thread other([&] {
      explain_until(group, {"rank 0 has not started all_reduce #0 of Float[16]"});
      backend.fail_all();
    });
    test::expect_error([&] { work.wait(); },
                       {"too late", "What the ranks said meanwhile: rank 0 has not started"});
    other.join();
  });
}

}  // namespace waits_of_backends_test
}  // namespace fairshard::comm
