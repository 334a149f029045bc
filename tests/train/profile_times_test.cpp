// A profile has times on its clock, or processor time where ranks share cores.
#include <array>

#include <gtest/gtest.h>

#include "runtime/comm/rank_threads.h"
#include "runtime/profile/profiler.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

class ProfiledTimes : public Pipeline {
 protected:
  /// Returns the profile that the first of two replicas measures. Their clock stands still.
  LayerGraph profile_of_two(double core_share) {
    LayeredModel model = classifier("wide", {1024}, 5);
    model.layers.push_back({"a", linear(1024, 1024), {"input"}});
    model.layers.push_back({"b", linear(1024, 5), {"a"}});
    end_in_cross_entropy(model);
    VirtualClock clock;
    std::array<LayerGraph, 2> found;
    run_as_threads(make_local_communicators(2, std::chrono::seconds(60)), [&](Communicator& replicas) {
      ProfileOptions options{.warmup = 1, .repetitions = 1, .blocks = 4};
      options.replicas = &replicas;
      options.core_share = core_share;
      found.at(replicas.rank().value) = profile_model(model, options, clock, *device_);
    });
    return found[0];
  }
};

// Ranks wait for each other in a sum, and take turns within a pass. What others do meanwhile does not count.
TEST_F(ProfiledTimes, AreTheProcessorsTimeWhereRanksShareCores) {
  const LayerGraph own_cores = profile_of_two(1), shared = profile_of_two(0.5);
  EXPECT_EQ(own_cores.sum_s_per_byte, 0);
  EXPECT_GT(shared.sum_s_per_byte, 0);
  for (const LayerNode& layer : own_cores.nodes) EXPECT_EQ(layer.forward_s, 0) << layer.name;
  for (const LayerNode& layer : shared.nodes) {
    EXPECT_GT(layer.forward_s, 0) << layer.name;
    EXPECT_GT(layer.backward_weight_s, 0) << layer.name;
  }
  EXPECT_EQ(own_cores.update_s_per_byte, 0);
  EXPECT_GT(shared.update_s_per_byte, 0);
}

}  // namespace
}  // namespace millrace
