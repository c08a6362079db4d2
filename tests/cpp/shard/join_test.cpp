// Ranks that have run out of inputs learn what the others do.
#include "support/ranks.h"
#include <fairshard/shard/join.h>

#include <gtest/gtest.h>

namespace fairshard::shard {
namespace join_test {

using Action = Join::Action;
using Details = Join::Details;

void expect_said(const Join::Announcement& said, Action action, const Details& details,
                 int leader) {
  EXPECT_EQ(said.action, action);
  EXPECT_EQ(said.details, details);
  EXPECT_EQ(said.leader, leader);
}

TEST(Join, AllHearWhatThoseWithInputsDoAndTheLowestOfThemLeads) {
  test::run_ranks(3, [](const comm::Group& group) {
    Join join(group);
    EXPECT_EQ(join.last().leader, -1);
    expect_said(join.announce(Action::kForward, {1, 2, 3}), Action::kForward, {1, 2, 3}, 0);
    EXPECT_FALSE(join.is_following());

    const bool is_out = group.rank() == 0;
    expect_said(is_out ? join.follow() : join.announce(Action::kStep, {4, 0.5, 0}), Action::kStep,
                {4, 0.5, 0}, 1);
    EXPECT_EQ(join.is_following(), is_out);

    const bool is_last = group.rank() == 1;
    expect_said(is_last ? join.announce(Action::kReduce) : join.follow(), Action::kReduce, {}, 1);
    expect_said(join.last(), Action::kReduce, {}, 1);
  });
}

TEST(Join, AnEndIsWhenAllFollow) {
  test::run_ranks(2, [](const comm::Group& group) {
    Join join(group);
    join.announce(Action::kClip, {7, 8, 9});
    EXPECT_EQ(join.follow().action, Action::kNothing);
    expect_said(join.last(), Action::kClip, {7, 8, 9}, 0);
  });
}

TEST(Join, AFollowerRepeatsInsteadOfAnnouncing) {
  test::run_ranks(2, [](const comm::Group& group) {
    Join join(group);
    if (group.rank() == 0) {
      join.announce(Action::kStep, {1, 0, 0});
    } else {
      join.follow();
      const auto before = group.traffic().collectives;
      expect_said(join.announce(Action::kForward, {5, 5, 5}), Action::kStep, {1, 0, 0}, 0);
      EXPECT_EQ(group.traffic().collectives, before) << "it is alone in this";
    }
  });
}

}  // namespace join_test
}  // namespace fairshard::shard
