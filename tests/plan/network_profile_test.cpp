// The line through times of messages, and what a cluster file says of measured links.
#include "runtime/plan/network_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace millrace {
namespace {

/// Messages of 64 KiB to 4 MiB over a link, `copies` of each size.
std::vector<MessageTime> times_of(const ClusterLink& link, int copies = 1) {
  std::vector<MessageTime> times;
  for (Bytes bytes = 64 * kKiB; bytes <= 4 * kMiB; bytes *= 2) {
    for (int i = 0; i < copies; ++i)
      times.push_back({bytes, link.latency_s + static_cast<double>(bytes) / link.bandwidth});
  }
  return times;
}

LinkMeasurement measurement(int from, int to, const ClusterLink& link) {
  return {.from = RankId(from),
          .to = RankId(to),
          .latency_s = link.latency_s,
          .there = times_of(link),
          .back = times_of(link)};
}

const ClusterLink kLinks[] = {{2e10, 5e-7}, {1.25e9, 5e-5}, {1.25e7, 2e-3}};

TEST(LineFit, ExactTimesGiveTheLink) {
  for (const ClusterLink& link : kLinks) {
    const LineFit fit = fit_line(times_of(link));
    EXPECT_NEAR(fit.seconds_per_byte * link.bandwidth, 1, 1e-9);
    EXPECT_NEAR(fit.intercept_s, link.latency_s, 1e-9);
  }
}

TEST(LineFit, NoiseOfAFewPercentMovesItByLess) {
  for (const ClusterLink& link : kLinks) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      std::mt19937 random(seed);
      std::lognormal_distribution<double> noise(0, 0.05);
      std::vector<MessageTime> times = times_of(link, 9);
      for (MessageTime& time : times) time.seconds *= noise(random);
      EXPECT_NEAR(fit_line(times).seconds_per_byte * link.bandwidth, 1, 0.05) << seed;
    }
  }
}

/// Another process takes the core: some messages take up to a hundred times as long, of any size.
TEST(LineFit, OneMessageInFiveMayBeHeldUp) {
  for (const ClusterLink& link : kLinks) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      std::mt19937 random(seed);
      std::lognormal_distribution<double> noise(0, 0.03);
      std::uniform_real_distribution<double> held_up(2, 100);
      std::vector<MessageTime> times = times_of(link, 10);
      for (std::size_t i = 0; i < times.size(); ++i) {
        const bool victim = i % 10 == seed % 10 || i % 10 == (seed + 5) % 10;
        times[i].seconds *= victim ? held_up(random) : noise(random);
      }
      const LineFit fit = fit_line(times);
      EXPECT_NEAR(fit.seconds_per_byte * link.bandwidth, 1, 0.1) << seed;
    }
  }
}

TEST(LineFit, DegenerateTimesStillGiveALink) {
  EXPECT_EQ(fit_line({}).seconds_per_byte, 0);
  EXPECT_EQ(fit_line({{100, 2}, {100, 4}}).seconds_per_byte, 0);
  EXPECT_EQ(fit_line({{100, 2}, {100, 4}}).intercept_s, 3);
  // Larger messages that take less time, equal times, one size, no time at all, nothing.
  const std::vector<MessageTime> cases[] = {{{1000, 3e-3}, {2000, 2e-3}, {4000, 1e-3}},
                                            {{1000, 1e-3}, {2000, 1e-3}},
                                            {{1000, 1e-3}},
                                            {{1000, 0}, {2000, 0}},
                                            {}};
  for (const auto& times : cases) {
    const LinkMeasurement m{
        .from = RankId(0), .to = RankId(1), .latency_s = 1e-5, .there = times, .back = times};
    EXPECT_GT(m.link().bandwidth, 0);
    EXPECT_TRUE(std::isfinite(m.link().bandwidth));
  }
}

TEST(LinkMeasurement, TheSlowerDirectionCounts) {
  LinkMeasurement m = measurement(0, 1, {4e9, 1e-5});
  m.back = times_of({1e9, 1e-5});
  EXPECT_NEAR(m.bandwidth_there(), 4e9, 1);
  EXPECT_NEAR(m.bandwidth_back(), 1e9, 1);
  EXPECT_NEAR(m.link().bandwidth, 1e9, 1);
}

// ---- cluster files
// -----------------------------------------------------------------------------------------

using LinkOf = ClusterLink (*)(int from, int to);

/// All pairs of a cluster measured: the file it makes, read back.
ClusterSpec measured_cluster(const std::string& yaml, LinkOf link_of) {
  const auto before = ClusterSpec::parse(yaml, "before");
  EXPECT_TRUE(before) << to_string(before.problems());
  std::vector<LinkMeasurement> all;
  for (int to = 0; to < before->num_ranks(); ++to) {
    for (int from = 0; from < to; ++from) all.push_back(measurement(from, to, link_of(from, to)));
  }
  const std::string text = with_measured_links(*before, all).to_yaml();
  auto after = ClusterSpec::parse(text, "after");
  EXPECT_TRUE(after) << text << to_string(after.problems());
  EXPECT_EQ(after->to_yaml(), text);
  EXPECT_EQ(after->num_ranks(), before->num_ranks());
  // Whatever form it takes, the file says of every pair what was measured, up to the tolerance.
  for (const LinkMeasurement& m : all) {
    const ClusterLink says = after->link(m.to, m.from);
    EXPECT_NEAR(says.bandwidth / m.link().bandwidth, 1, kLinkTolerance + 0.01) << text;
    EXPECT_NEAR(says.latency_s, m.latency_s, kLinkTolerance * m.latency_s + kLatencyNoise) << text;
  }
  return *after;
}

constexpr const char* kHosts =
    "memory: 8GiB\nkinds: [{name: big, speed: 2}]\nhosts: [{name: a, devices: 2, kind: big, bandwidth: 1e9}, "
    "{name: b, devices: 2, bandwidth: 1e9}, {name: c}]\nnetwork: {bandwidth: 1e8, latency: 1e-3}\n";

int host_of(int rank) {
  return rank / 2;
}

TEST(MeasuredCluster, HostsThatAreAlikeShareTheNetwork) {
  const ClusterSpec spec = measured_cluster(kHosts, [](int a, int b) {
    const double wobble = 1 + 0.02 * (a + b);
    return host_of(a) == host_of(b) ? ClusterLink{2e10 * wobble, 1e-6} : ClusterLink{1e9 * wobble, 5e-5};
  });
  EXPECT_TRUE(spec.links.empty() && spec.rank_links.empty()) << spec.to_yaml();
  EXPECT_NEAR(spec.network.bandwidth, 1.1e9, 1e8);
  EXPECT_NEAR(spec.hosts[0].link.bandwidth, 2.04e10, 1e8);
  EXPECT_NEAR(spec.hosts[1].link.bandwidth, 2.2e10, 1e8);
  EXPECT_EQ(spec.memory_per_rank, 8 * kGiB);  // the rest of the file stays
  EXPECT_EQ(spec.speed_of(RankId(1)), 2);
}

TEST(MeasuredCluster, AHostPairUnlikeTheNetworkIsListed) {
  const ClusterSpec spec = measured_cluster(kHosts, [](int a, int b) {
    if (host_of(a) == host_of(b)) return ClusterLink{2e10, 1e-6};
    return host_of(a) == 0 && host_of(b) == 2 ? ClusterLink{1e7, 1e-2} : ClusterLink{1e9, 5e-5};
  });
  ASSERT_EQ(spec.links.size(), 1u) << spec.to_yaml();
  EXPECT_EQ(spec.links[0].from + spec.links[0].to, "ac");
  EXPECT_TRUE(spec.rank_links.empty()) << spec.to_yaml();
}

TEST(MeasuredCluster, ARankPairUnlikeItsGroupIsListed) {
  for (const char* yaml :
       {"levels: [{count: 4, bandwidth: 1e9}]\n", "hosts: [{name: a, devices: 4, bandwidth: 1e9}]\n"}) {
    const ClusterSpec spec = measured_cluster(yaml, [](int a, int b) {
      return a == 1 && b == 3 ? ClusterLink{1e9, 4e-5} : ClusterLink{8e9, 2e-6};
    });
    ASSERT_EQ(spec.rank_links.size(), 1u) << spec.to_yaml();
    EXPECT_EQ(spec.link(RankId(3), RankId(1)), (ClusterLink{1e9, 4e-5}));
    EXPECT_EQ(spec.link(RankId(2), RankId(1)), (ClusterLink{8e9, 2e-6}));
    // Measured again, alike now: the old entry is gone.
    EXPECT_TRUE(measured_cluster(spec.to_yaml(), [](int, int) {
                  return ClusterLink{8e9, 2e-6};
                }).rank_links.empty());
  }
}

TEST(MeasuredCluster, LevelsGetTheirPairs) {
  const ClusterSpec spec =
      measured_cluster("levels: [{count: 2, bandwidth: 1}, {count: 3, bandwidth: 1}]\n", [](int a, int b) {
        return a / 2 == b / 2 ? ClusterLink{3e10, 1e-6} : ClusterLink{1e9, 5e-5};
      });
  EXPECT_NEAR(spec.levels[0].bandwidth, 3e10, 1e7);
  EXPECT_NEAR(spec.levels[1].bandwidth, 1e9, 1e6);
  EXPECT_TRUE(spec.rank_links.empty());
}

TEST(MeasuredCluster, EveryPairMayDiffer) {
  measured_cluster(kHosts, [](int a, int b) {
    return ClusterLink{1e8 * (1 << (a + b)), 1e-4 * (1 + a * b)};
  });
  measured_cluster("levels: [{count: 5, bandwidth: 1e9}]\n", [](int a, int b) {
    return ClusterLink{1e8 * (1 << (a + b)), 1e-4 * (1 + a * b)};
  });
}

TEST(RankLinks, AreReadInAnyOrderAndCheckedWithTheirPlace) {
  const std::string start = "levels: [{count: 4, bandwidth: 1e9}]\nrank_links:\n";
  const auto spec = ClusterSpec::parse(start +
                                           "  - {between: [3, 1], bandwidth: 2e9, latency: 1e-5}\n"
                                           "  - {between: [0, 2], bandwidth: 3e9}\n",
                                       "c");
  ASSERT_TRUE(spec) << to_string(spec.problems());
  EXPECT_EQ(spec->link(RankId(1), RankId(3)), (ClusterLink{2e9, 1e-5}));
  EXPECT_EQ(spec->link(RankId(2), RankId(0)), (ClusterLink{3e9, 0}));
  EXPECT_EQ(spec->link(RankId(2), RankId(1)), (ClusterLink{1e9, 0}));
  const std::pair<const char*, const char*> cases[] = {
      {"  - {between: [0, 4], bandwidth: 1e9}\n", "c:3:15: must name two ranks from 0 to 3"},
      {"  - {between: [1, 1], bandwidth: 1e9}\n", "two ranks"},
      {"  - {between: [0], bandwidth: 1e9}\n", "two ranks"},
      {"  - {between: [a, b], bandwidth: 1e9}\n", "two ranks"},
      {"  - {between: [0, 1], bandwidth: 0}\n", "greater than 0"},
      {"  - {bandwidth: 1e9}\n", "between"},
      {"  - {between: [0, 1], bandwidth: 1e9, speed: 1}\n", "speed"},
      {"  - {between: [0, 1], bandwidth: 1e9}\n  - {between: [1, 0], bandwidth: 1e9}\n", "listed twice"}};
  for (const auto& [yaml, reason] : cases) {
    const auto bad = ClusterSpec::parse(start + yaml, "c");
    ASSERT_FALSE(bad) << yaml;
    EXPECT_NE(to_string(bad.problems()).find(reason), std::string::npos) << to_string(bad.problems());
  }
}

TEST(MeasuredCluster, HostsOfOtherSpeedGetAKind) {
  const Result<ClusterSpec> before = ClusterSpec::parse(
      "hosts: [{name: a, devices: 2, bandwidth: 5e9}, {name: b}, {name: c}, {name: d}]\nnetwork: {bandwidth: "
      "1e9}\n",
      "c.yaml");
  ASSERT_TRUE(before) << to_string(before.problems());
  EXPECT_EQ(with_measured_speeds(*before, {1, 1.1, 1, 0.95, 1.1}).to_yaml(), before->to_yaml());
  const ClusterSpec after = with_measured_speeds(*before, {1, 0.9, 0.475, 0.95, 0.5});
  const Result<ClusterSpec> read = ClusterSpec::parse(after.to_yaml(), "after.yaml");
  ASSERT_TRUE(read) << to_string(read.problems());
  const double speeds[] = {1, 1, 0.5, 1, 0.5};  // b and d are of one kind
  for (int rank = 0; rank < 5; ++rank) EXPECT_NEAR(read->speed_of(RankId(rank)), speeds[rank], 1e-6) << rank;
  EXPECT_EQ(read->kinds.size(), 1u);
  EXPECT_EQ(with_measured_speeds(after, {1, 1, 1, 1, 1}).to_yaml(),
            after.to_yaml());  // a person's kinds stay
}

}  // namespace
}  // namespace millrace
