// One number of all ranks' numbers, and the end of a program.
#include "support/expect_error.h"
#include <fairshard/comm.h>
#include <fairshard/comm/mean.h>
#include <fairshard/comm/run_main.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fairshard::comm {
namespace mean_test {

TEST(Mean, WeightsCountAndAllRanksGetTheSame) {
  launch_threads(3, [](Group group) {
    const double plain = mean(group, group.rank());
    TORCH_CHECK(plain == 1, "the plain mean is ", plain);
    const double weighted = mean(group, {10.0 * group.rank(), group.rank() == 2 ? 3.0 : 1.0});
    TORCH_CHECK(weighted == 14, "the weighted mean is ", weighted);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double without = group.rank() == 0 ? mean(group, {nan, 0}) : mean(group, {5, 2});
    TORCH_CHECK(without == 5, "without rank 0 it is ", without);
    TORCH_CHECK(std::isnan(mean(group, group.rank() == 0 ? nan : 1)), "a NaN must be seen");
    test::expect_error([&] { mean(group, {1, 0}); }, {"weights of all 3 ranks are 0"});
    test::expect_error([&] { mean(group, {1, -2}); }, {"the weight of rank", "-2"});
  });
}

TEST(RunMain, AReasonIsPrintedWithoutABacktraceAndTheStatusSaysSo) {
  EXPECT_EQ(run_main([] {}), 0);
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_main([] { TORCH_CHECK(false, "the reason"); }), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "comm_tests: the reason\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_main([] { throw 42; }), 1);
  EXPECT_EQ(run_main([] { throw LaunchError(1, 2, "ended by signal 9", 9); }), 137);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "comm_tests: it threw something that is no std::exception\n"
            "comm_tests: rank 1 of 2: ended by signal 9\n");
}

}  // namespace mean_test
}  // namespace fairshard::comm
