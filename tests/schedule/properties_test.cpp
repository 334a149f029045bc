// Properties that hold for every schedule and shape.
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/base/random.h"
#include "tests/schedule/every_shape.h"
#include "tests/schedule/mutations.h"
#include "tests/schedule/oracle.h"

namespace millrace {
namespace {

/// The greedy orders of auto-order are dozens of simulations: fewer shapes of them.
constexpr std::uint64_t kSampleOfAll = 4, kSampleOfAuto = 100;

TEST(EverySchedule, IsValidOnASampleOfShapes) {
  RandomStream random(17);
  int defined = 0;
  for_every_shape(8, 16, 4, 4, [&](const ShapeCase& c) {
    const bool small = c.places <= 3 && c.microbatches <= 4 && c.replicas <= 2 && c.chunks <= 2;
    const std::uint64_t sample = c.kind == ScheduleKind::AutoOrder ? kSampleOfAuto : kSampleOfAll;
    if (!(small && c.kind != ScheduleKind::AutoOrder) && random.below(sample) != 0) return;
    defined += is_defined(c);
    expect_valid(c);
  });
  EXPECT_GT(defined, 500);
}

TEST(EverySchedule, TakesSeveralArrays) {
  int defined = 0;
  for (const int arrays : {2, 3}) {
    for_every_shape(4, 5, 2, 2, [&](ShapeCase c) {
      if (c.kind == ScheduleKind::AutoOrder && c.microbatches * c.places > 6) return;
      c.arrays = arrays;
      defined += is_defined(c);
      expect_valid(c);
    });
  }
  EXPECT_GT(defined, 300);
}

TEST(EverySchedule, IsValidForMixedReplicasAndSkips) {
  RandomStream random(23);
  for (int round = 0; round < 80; ++round) {
    std::vector<int> replicas(1 + random.below(6));
    int microbatches = 1;
    for (int& r : replicas) {
      r = 1 + static_cast<int>(random.below(4));
      microbatches = std::lcm(microbatches, r);
    }
    PipelineShape shape = replicated_shape(replicas, microbatches * (1 + static_cast<int>(random.below(3))));
    const int stages = shape.num_stages();
    for (int from = 0; stages > 1 && from < stages - 1; ++from) {
      for (int to = from + 1; to < stages; ++to)
        if (to == from + 1 || random.below(4) == 0) shape.links.push_back({StageId(from), StageId(to)});
    }
    for (ScheduleKind kind : generated_kinds()) {
      if (!make_schedule(kind, shape)) continue;
      expect_valid(kind, shape, to_string(kind) + " " + ::testing::PrintToString(replicas));
      if (HasFatalFailure()) return;
    }
  }
}

/// Small shapes of every kind, replicated and with chunks.
std::vector<ShapeCase> small_cases() {
  std::vector<ShapeCase> cases;
  for_every_shape(3, 6, 2, 2, [&](const ShapeCase& c) {
    if (c.places * c.replicas > 1 && c.microbatches >= 2 && is_defined(c)) cases.push_back(c);
    ShapeCase several = c;
    several.arrays = 2;
    if (c.places * c.replicas > 1 && c.microbatches <= 3 && is_defined(several)) cases.push_back(several);
  });
  return cases;
}

TEST(Mutations, TheOracleAcceptsEveryGeneratedSchedule) {
  for (const ShapeCase& c : small_cases()) {
    for (Transport transport : {Transport::Buffered, Transport::Rendezvous}) {
      const Schedule schedule = *make_schedule(c.kind, c.shape(), transport);
      ASSERT_EQ(Oracle(schedule, c.shape()).objection(transport), "") << c.name() << "\n"
                                                                      << to_string(schedule);
    }
  }
}

TEST(Mutations, AreCaughtUnlessStillValid) {
  RandomStream random(5);
  int caught = 0, harmless = 0;
  for (const ShapeCase& c : small_cases()) {
    const PipelineShape shape = c.shape();
    for (Transport transport : {Transport::Buffered, Transport::Rendezvous}) {
      const Schedule good = *make_schedule(c.kind, shape, transport);
      for (int round = 0; round < 30; ++round) {
        Schedule bad = good;
        std::string what;
        for (std::uint64_t more = 1 + random.below(2); more > 0; --more)
          what += mutate(bad, shape, random) + "; ";
        const std::string objection = Oracle(bad, shape).objection(transport);
        const Problems problems = check(bad, shape, transport);
        ASSERT_EQ(problems.empty(), objection.empty())
            << c.name() << ": " << what << "oracle: '" << objection << "', check:\n"
            << to_string(problems) << "\n"
            << to_string(bad);
        ++(objection.empty() ? harmless : caught);
      }
    }
  }
  EXPECT_GT(caught, 10000);
  EXPECT_GT(harmless, 500);
}

}  // namespace
}  // namespace millrace
