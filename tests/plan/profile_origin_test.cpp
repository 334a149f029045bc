#include "runtime/plan/profile_origin.h"

#include <gtest/gtest.h>

#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"

namespace millrace {
namespace {

const ProfileOrigin kOrigin{.processor = "AMD EPYC 7763", .date = "2026-03-01T12:00:00Z"};

TEST(ProfileOrigin, SaysWhereAndHowLongAgo) {
  EXPECT_EQ(to_string(kOrigin, "2026-03-01T12:00:59Z"),
            "profile of less than a minute ago, on AMD EPYC 7763");
  EXPECT_EQ(to_string(kOrigin, "2026-03-01T12:05:00Z"), "profile of 5 minutes ago, on AMD EPYC 7763");
  EXPECT_EQ(to_string(kOrigin, "2026-03-02T13:00:00Z"), "profile of 25 hours ago, on AMD EPYC 7763");
  EXPECT_EQ(to_string(kOrigin, "2026-03-08T13:00:00Z"), "profile of 7 days ago, on AMD EPYC 7763");
  EXPECT_EQ(to_string({.date = kOrigin.date}, "2026-03-01T13:00:00Z"), "profile of 1 hour ago");
  EXPECT_EQ(to_string({.processor = "X"}, "2026-03-01T13:00:00Z"), "profile on X");
  EXPECT_EQ(to_string({}, "2026-03-01T13:00:00Z"), "");
  EXPECT_EQ(to_string({.date = "yesterday"}, "2026-03-01T13:00:00Z"), "");
  EXPECT_EQ(to_string(kOrigin, ""), "profile on AMD EPYC 7763");
}

TEST(ProfileOrigin, DoubtsAnotherProcessorAndADay) {
  const std::string here = kOrigin.processor;
  EXPECT_EQ(doubt_of(kOrigin, here, "2026-03-02T11:00:00Z"), "");
  EXPECT_EQ(doubt_of(kOrigin, here, "2026-03-02T13:00:00Z"),
            "the predictions are of a profile 25 hours old: profile and plan again before trusting them");
  EXPECT_EQ(
      doubt_of(kOrigin, "Xeon", "2026-03-01T13:00:00Z"),
      "the predictions are of a profile of another processor (AMD EPYC 7763, this is Xeon): profile and "
      "plan again before trusting them");
  EXPECT_EQ(doubt_of(kOrigin, "Xeon", "2026-03-11T13:00:00Z"),
            "the predictions are of a profile of another processor (AMD EPYC 7763, this is Xeon) and 10 days "
            "old: profile and plan again before trusting them");
  EXPECT_EQ(doubt_of({}, "Xeon", "2026-03-11T13:00:00Z"), "");
  EXPECT_EQ(doubt_of(kOrigin, "", ""), "");
}

TEST(ProfileOrigin, IsInProfilesAndPlansAndNotInOldFiles) {
  LayerGraph graph;
  graph.model = "m";
  graph.nodes.push_back({.name = "a", .kind = "linear"});
  graph.measured = {.ranks = 1, .blocks = 3, .spread = 0.1};
  EXPECT_EQ(graph.to_json().find("processor"), std::string::npos);
  graph.measured.origin = kOrigin;
  const auto back = LayerGraph::parse(graph.to_json(), "profile");
  ASSERT_TRUE(back) << to_string(back.problems());
  EXPECT_EQ(back->measured.origin, kOrigin);
}

}  // namespace
}  // namespace millrace
