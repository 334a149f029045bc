// What profiles have of ranks that measure at once: the time of a sum of gradients, and what changes of ranks
// on a core cost.
#include <array>

#include <gtest/gtest.h>

#include "runtime/comm/rank_threads.h"
#include "runtime/profile/profiler.h"
#include "runtime/profile/switch_loss.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

class ProfiledSums : public Pipeline {
 protected:
  static LayeredModel of_width(int width) {
    LayeredModel model = classifier("wide", {width}, 5);
    model.layers.push_back({"a", linear(width, width), {"input"}});
    model.layers.push_back({"b", linear(width, 5), {"a"}});
    end_in_cross_entropy(model);
    return model;
  }

  /// Returns LayerGraph::sum_s_per_byte of two replicas. Their clock stands still.
  double seconds_per_byte(double core_share) {
    const LayeredModel model = of_width(1024);
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

// Three ranks on two cores: the third has its turn alone. Nobody waits for a rank that has none.
TEST_F(ProfiledSums, RanksThatShareCoresTakeTurnsAlone) {
  run_as_threads(make_local_communicators(3, std::chrono::seconds(60)), [&](Communicator& replicas) {
    ProfileOptions options{.warmup = 1, .repetitions = 1, .blocks = 2};
    options.replicas = &replicas;
    options.core_share = 2. / 3;
    std::int64_t done = 0, all = 0;
    options.progress = [&](std::int64_t d, std::int64_t of) { done = d, all = of; };
    SteadyClock clock;
    const Measured measured = profile_model(of_width(8), options, clock, *device_).measured;
    EXPECT_EQ(done, all);
    EXPECT_LT(measured.switched_share, 0.99);
    EXPECT_EQ(measured.switch_s > 0, measured.switched_share > 0);
  });
}

TEST(SwitchLoss, IsWhatPassesBesideOthersTakeLonger) {
  const SwitchLoss loss = switch_loss({{0.08, 0.06, 9}, {0.16, 0.12, 10}, {0.08, 0.5, 11}});
  EXPECT_NEAR(loss.share, 0.25, 1e-12) << "of the median pair";
  EXPECT_NEAR(loss.seconds, 0.25 * 0.08 / 10, 1e-12);
  EXPECT_NEAR(switch_loss({{0.05, 0.06, 10}}).share, -0.2, 1e-12);
  EXPECT_EQ(switch_loss({{0.08, 0.06, 0}}).share, 0) << "it did not have to leave its core";
}

}  // namespace
}  // namespace millrace
