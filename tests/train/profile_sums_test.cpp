// A profile has the time of a sum of gradients: on its clock, or of the processor where ranks share cores.
#include <array>

#include <gtest/gtest.h>

#include "runtime/comm/rank_threads.h"
#include "runtime/profile/profiler.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

class ProfiledSums : public Pipeline {
 protected:
  /// Returns LayerGraph::sum_s_per_byte of two replicas. Their clock stands still.
  double seconds_per_byte(double core_share) {
    LayeredModel model = classifier("wide", {1024}, 5);
    model.layers.push_back({"a", linear(1024, 1024), {"input"}});
    model.layers.push_back({"b", linear(1024, 5), {"a"}});
    end_in_cross_entropy(model);
    VirtualClock clock;
    std::array<double, 2> found{};
    run_as_threads(make_local_communicators(2, std::chrono::seconds(60)), [&](Communicator& replicas) {
      ProfileOptions options{.warmup = 1, .repetitions = 1, .blocks = 4};
      options.replicas = &replicas;
      options.core_share = core_share;
      found.at(replicas.rank().value) = profile_model(model, options, clock, *device_).sum_s_per_byte;
    });
    return (found[0] + found[1]) / 2;
  }
};

// A rank that waits in a sum for one that has not run yet does not make the sum longer.
TEST_F(ProfiledSums, AreTheProcessorsTimeWhereRanksShareCores) {
  EXPECT_EQ(seconds_per_byte(1), 0);
  EXPECT_GT(seconds_per_byte(0.5), 0);
}

}  // namespace
}  // namespace millrace
