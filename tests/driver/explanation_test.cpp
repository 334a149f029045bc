// Who waited for whom: graphs of waits, and the rank at their root.
#include "driver/launch/explanation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace millrace {
namespace {

using Kind = FlightRecord::Kind;
using State = FlightRecord::State;

FlightRecord action(std::int64_t at, const char* what, State state = State::Done) {
  FlightRecord record{.begun = at, .ended = state == State::Begun ? 0 : at + 1, .step = 5, .state = state};
  std::strcpy(record.what, what);
  return record;
}

FlightRecord message(Kind kind, int peer, std::uint64_t tag, std::int64_t at, State state) {
  return {.begun = at,
          .waited = at,
          .ended = state == State::Waiting ? 0 : at + 1'000'000'000,
          .step = 5,
          .bytes = 64,
          .tag = tag,
          .peer = peer,
          .kind = kind,
          .state = state};
}

std::vector<Flight> ranks(std::vector<std::vector<FlightRecord>> records) {
  std::vector<Flight> flights;
  for (std::size_t rank = 0; rank < records.size(); ++rank)
    flights.push_back(
        {.rank = static_cast<int>(rank), .stage = static_cast<int>(rank), .records = records[rank]});
  return flights;
}

TEST(Explanation, FollowsWaitsToTheRankThatWaitsForNobody) {
  const Explanation e = explain(ranks({{message(Kind::Receive, 1, 1, 10, State::Waiting)},
                                       {message(Kind::Receive, 2, 2, 12, State::Failed)},
                                       {action(9, "2F3", State::Begun)}}),
                                std::nullopt);
  EXPECT_EQ(e.root, std::vector{2});
  EXPECT_NE(e.why.find("it was in action 2F3 of step 5"), std::string::npos) << e.why;
  ASSERT_EQ(e.waits.size(), 2u);
  EXPECT_FALSE(e.waits[0].gave_up);
  EXPECT_TRUE(e.waits[1].gave_up);
  EXPECT_EQ(e.waits[1].to, 2);
  EXPECT_DOUBLE_EQ(e.waits[1].seconds, 1);
}

TEST(Explanation, FindsRanksThatWaitForEachOther) {
  const Explanation e = explain(ranks({{message(Kind::Receive, 1, 1, 10, State::Waiting)},
                                       {message(Kind::Receive, 2, 2, 10, State::Waiting)},
                                       {message(Kind::Receive, 1, 3, 10, State::Waiting)}}),
                                std::nullopt);
  EXPECT_EQ(e.root, (std::vector{1, 2}));
  EXPECT_NE(to_text(e, 3).find("ranks wait for each other: 1 for 2 for 1"), std::string::npos)
      << to_text(e, 3);
}

/// A rank that is suspended while it takes a message that was sent: its peer is not to blame.
TEST(Explanation, AMessageThatWasSentBlamesItsReceiver) {
  const std::uint64_t tag = 4;
  std::vector<std::vector<FlightRecord>> records{
      {message(Kind::Send, 1, tag, 10, State::Begun), message(Kind::Receive, 1, 9, 20, State::Waiting)},
      {message(Kind::Receive, 0, tag, 11, State::Waiting)}};
  EXPECT_EQ(explain(ranks(records), std::nullopt).root, std::vector{1});
  // With a message of an earlier step, which was taken, they do wait for each other.
  records[1].insert(records[1].begin(), message(Kind::Receive, 0, tag, 12, State::Done));
  EXPECT_EQ(explain(ranks(records), std::nullopt).root, (std::vector{0, 1}));
}

TEST(Explanation, AFailureOfItsOwnWinsOverTheGraph) {
  const std::vector<std::vector<FlightRecord>> records{{message(Kind::Receive, 1, 1, 10, State::Failed)},
                                                       {message(Kind::Receive, 0, 2, 10, State::Failed)}};
  const RunFailure killed{.rank = 1, .step = 5, .exit_code = 137, .error = "killed by signal 9"};
  Explanation e = explain(ranks(records), killed);
  EXPECT_EQ(e.root, std::vector{1});
  EXPECT_EQ(e.why.find("killed by signal 9; "), 0u) << e.why;
  e = explain(ranks(records), RunFailure{.rank = 1, .step = 5, .exit_code = 5, .error = "lost its peer"});
  EXPECT_EQ(e.root, (std::vector{0, 1}));
}

TEST(Explanation, OfARunThatGetsOnNamesNobody) {
  const Explanation e = explain(ranks({{action(1, "0F0")}, {action(2, "1F0")}}), std::nullopt);
  EXPECT_TRUE(e.root.empty());
  EXPECT_EQ(to_text(e, 1).find("no rank waits for another\n"), 0u);
  EXPECT_EQ(to_json(e, 1).find("ranks")->size(), 2u);
}

}  // namespace
}  // namespace millrace
