// Note [Rounds of waits], step by step: no request is lost, whoever asks and whenever.
#include "../../../src/comm/wait_board.h"
#include "../../../src/comm/wait_watch.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

namespace fairshard::comm {
namespace wait_rounds_test {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Counts what is asked of it.
class CountingStore final : public c10d::HashStore {
 public:
  void set(const std::string& key, const std::vector<uint8_t>& data) override {
    calls += 1;
    HashStore::set(key, data);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    calls += 1;
    return HashStore::get(key);
  }
  int64_t add(const std::string& key, int64_t value) override {
    calls += 1;
    return HashStore::add(key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    calls += 1;
    return HashStore::check(keys);
  }
  std::atomic<int64_t> calls = 0;
};

/// Returns when it is so.
void await(const std::function<bool()>& is_so) {
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  while (!is_so()) {
    TORCH_CHECK(std::chrono::steady_clock::now() < deadline, "waited in vain");
    std::this_thread::sleep_for(milliseconds(1));
  }
}

/// What a rank answers: it has started one collective, and waits in it.
WaitNote waiting_note() {
  WaitNote note;
  note.where = Whereabouts::own();
  StandingNote standing;
  standing.current = StandingNote::Call{0, "all_reduce #0", 12};
  standing.started = 1;
  note.standings.push_back(standing);
  return note;
}

class WaitRounds : public testing::Test {
 protected:
  static constexpr WaitBoard::Pace kPatient{milliseconds(5), seconds(60)};

  std::unique_ptr<WaitBoard> board(int rank, WaitBoard::Pace pace = kPatient) {
    auto made = std::make_unique<WaitBoard>(store_, rank, kRanks);
    made->set_note([] { return waiting_note(); });
    made->set_pace(pace);
    return made;
  }

  int64_t round() { return store_->check({"round"}) ? std::stoll(text_of("round")) : 0; }
  std::string text_of(const std::string& key) {
    const auto bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }
  /// By hand: this rank has no board.
  void answer(int rank, int64_t round) {
    const std::string text = c10::str(round, " ", waiting_note().encoded());
    store_->set(c10::str("note/", rank), std::vector<uint8_t>(text.begin(), text.end()));
  }
  void await_round(int64_t expected) {
    await([&] { return round() == expected; });
  }
  static WaitBoard::Outcome outcome_of(WaitBoard& board) {
    std::optional<WaitBoard::Outcome> outcome;
    await([&] { return (outcome = board.take()).has_value(); });
    return *outcome;
  }

  static constexpr int kRanks = 2;
  c10::intrusive_ptr<CountingStore> store_ = c10::make_intrusive<CountingStore>();
};

TEST_F(WaitRounds, ARequestThatComesWhileARoundIsUnderWayHasTheNextOneBegin) {
  const auto asker = board(0);
  asker->ask(1, /*is_for_log=*/false);
  await_round(1);
  asker->ask(2, /*is_for_log=*/true);
  answer(1, 1);
  auto outcome = outcome_of(*asker);
  EXPECT_EQ(outcome.covers, 1);
  EXPECT_FALSE(outcome.is_for_log);
  await_round(2);
  EXPECT_FALSE(asker->take()) << "the answer is of the round before";
  answer(1, 2);
  outcome = outcome_of(*asker);
  EXPECT_EQ(outcome.covers, 2);
  EXPECT_TRUE(outcome.is_for_log);
}

TEST_F(WaitRounds, RequestsThatComeTogetherShareARound) {
  const auto asker = board(0);
  asker->ask(1, false);
  await_round(1);
  asker->ask(2, false);
  asker->ask(3, true);
  asker->ask(4, false);
  answer(1, 2);
  EXPECT_EQ(outcome_of(*asker).covers, 1);
  const auto outcome = outcome_of(*asker);
  EXPECT_EQ(outcome.covers, 4);
  EXPECT_TRUE(outcome.is_for_log);
  EXPECT_EQ(round(), 2);
}

TEST_F(WaitRounds, ANoteOfALaterRoundIsAnAnswer) {
  const auto asker = board(0);
  answer(1, 7);
  asker->ask(1, false);
  EXPECT_EQ(outcome_of(*asker).covers, 1);
  EXPECT_EQ(round(), 1);
}

TEST_F(WaitRounds, RanksThatAskAtTheSameTimeAnswerEachOther) {
  const auto first = board(0);
  const auto second = board(1);
  first->look(true);
  second->look(true);
  for (uint64_t request = 1; request <= 30; ++request) {
    first->ask(request, true);
    second->ask(request, true);
    for (WaitBoard* const asker : {first.get(), second.get()}) {
      auto outcome = outcome_of(*asker);
      while (outcome.covers == 0) {  // told by the other one
        outcome = outcome_of(*asker);
      }
      EXPECT_EQ(outcome.covers, request);
      EXPECT_TRUE(outcome.is_for_log);
      EXPECT_EQ(outcome.report.table.find("does not answer"), std::string::npos);
    }
  }
  EXPECT_EQ(round(), 60);
  EXPECT_EQ(store_->getNumKeys(), 3 + kRanks) << "of each kind one, whatever was asked";
}

TEST_F(WaitRounds, AnAskerThatIsStoppedOrDiesHoldsUpNobody) {
  const auto other = board(0);
  other->look(true);
  store_->add("round", 1);  // and nothing follows
  await([&] { return store_->check({"note/0"}) && text_of("note/0").rfind("1 ", 0) == 0; });
  answer(1, 2);
  other->ask(1, true);
  const auto outcome = outcome_of(*other);
  EXPECT_EQ(outcome.covers, 1);
  EXPECT_TRUE(outcome.is_for_log);
}

TEST_F(WaitRounds, OfRanksThatNoticeAWaitAtTheSameTimeOneLogs) {
  for (int time = 0; time < 30; ++time) {
    store_ = c10::make_intrusive<CountingStore>();
    std::unique_ptr<WaitBoard> boards[] = {board(0), board(1)};
    for (const auto& one : boards) {
      one->look(true);
      one->explain_wait();
    }
    const auto first = outcome_of(*boards[0]);
    const auto second = outcome_of(*boards[1]);
    EXPECT_NE(first.is_for_log, second.is_for_log);
    EXPECT_EQ(first.report.table, second.report.table);
  }
}

TEST_F(WaitRounds, IfTheOneThatWasQuickerDiesTheNextOneLogs) {
  const auto other = board(0, {milliseconds(5), milliseconds(50)});
  store_->set("log", {'1'});
  store_->add("round", 1);
  answer(1, 9);
  other->look(true);
  other->explain_wait();
  const auto outcome = outcome_of(*other);
  EXPECT_TRUE(outcome.is_for_log);
  EXPECT_EQ(round(), 2);
}

TEST_F(WaitRounds, WhatWasToldOfAnOlderWaitDoesNotExplainThisOne) {
  const auto first = board(0);
  const auto second = board(1);
  second->look(true);
  first->ask(1, true);
  EXPECT_EQ(outcome_of(*first).covers, 1);
  EXPECT_EQ(outcome_of(*second).covers, 0) << "told by the other one";
  EXPECT_EQ(second->note_move(), 1);
  second->explain_wait();
  first->look(true);
  const auto outcome = outcome_of(*second);
  EXPECT_TRUE(outcome.is_for_log);
  EXPECT_EQ(outcome.moves, 1);
  EXPECT_EQ(round(), 2);
}

TEST_F(WaitRounds, AWaitThatHasEndedIsNotExplained) {
  const auto other = board(0);
  store_->set("log", {'1'});  // somebody else is about to tell
  store_->add("round", 1);
  other->look(true);
  other->explain_wait();
  await([&] { return store_->check({"note/0"}); });
  other->note_move();
  answer(1, 9);
  other->ask(1, false);
  EXPECT_EQ(outcome_of(*other).covers, 1);
  EXPECT_FALSE(store_->check({"told"}));
}

TEST_F(WaitRounds, AnUnusedGroupIsLoggedOnlyIfSomebodyIsSilent) {
  for (const int ranks : {1, 2}) {
    const auto asker = std::make_unique<WaitBoard>(store_, 0, ranks);
    asker->set_pace({milliseconds(5), milliseconds(50)});
    asker->set_note([] {
      WaitNote note;
      note.standings.emplace_back();
      return note;
    });
    asker->ask(1, true);
    const auto outcome = outcome_of(*asker);
    EXPECT_EQ(outcome.covers, 1);
    EXPECT_EQ(outcome.is_for_log, ranks > 1);
  }
}

TEST_F(WaitRounds, WhileARankGoesOnTheStoreIsLeftAlone) {
  std::atomic<uint64_t> looks = 0;
  WaitWatch watch(std::make_unique<WaitBoard>(store_, 0, kRanks), "", 0, kRanks, seconds(60), [&] {
    Standing standing;
    standing.moves = ++looks;
    return std::vector<Standing>{standing};
  });
  watch.set_limit(milliseconds(200));
  await([&] { return store_->check({"note/0"}); });  // where it runs, once
  const uint64_t before = looks;
  const int64_t calls = store_->calls;
  await([&] { return looks > before + 20; });
  EXPECT_EQ(store_->calls, calls);
}

}  // namespace wait_rounds_test
}  // namespace fairshard::comm
