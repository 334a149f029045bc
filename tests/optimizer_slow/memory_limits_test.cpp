// The complete sweep of tests/optimizer/memory_limits_test.cpp.
#include "tests/optimizer/memory_limits.h"

namespace millrace {
namespace {

TEST(MemoryLimits, TwoThousandChainsAndGraphs) {
  LimitCounts counts;
  for (std::uint64_t seed = 1000; seed < 3000; ++seed) expect_best_within_limits(seed, counts);
  std::printf("%d answered, %d refused, %d stages recompute\n", counts.answered, counts.refused,
              counts.recomputing);
  EXPECT_GT(counts.answered, 3000);
  EXPECT_GT(counts.refused, 300);
}

}  // namespace
}  // namespace millrace
