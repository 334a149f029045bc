// The generator gives NumPy's numbers; the tests behave as tests of significance do.
#include "runtime/metrics/significance.h"

#include <gtest/gtest.h>

#include "runtime/metrics/numpy_random.h"

namespace millrace {
namespace {

struct Draws {
  std::uint64_t seed, bound;
  std::vector<std::uint32_t> values;
};

// numpy.random.default_rng(seed).choice(bound, size=6), NumPy 2.4.6.
TEST(NumpyRandom, ChoiceIsNumpys) {
  const Draws cases[] = {
      {0u, 1u, {0, 0, 0, 0, 0, 0}},
      {0u, 2u, {1, 1, 1, 0, 0, 0}},
      {0u, 10u, {8, 6, 5, 2, 3, 0}},
      {0u, 3003u, {2554, 1912, 1534, 810, 924, 123}},
      {0u, 2147483649u, {87989972, 161576974, 376383645, 1746484540, 1394609703, 1440696408}},
      {0u, 4294967296u, {3653403231, 2735729615, 2195314465, 1158725112, 1322117304, 175979945}},
      {12345u, 1u, {0, 0, 0, 0, 0, 0}},
      {12345u, 2u, {1, 0, 1, 0, 0, 1}},
      {12345u, 10u, {6, 2, 7, 3, 2, 7}},
      {12345u, 3003u, {2099, 682, 2368, 951, 613, 2394}},
      {12345u, 2147483649u, {488200390, 1693606511, 680233354, 438466540, 1712329281, 1380152456}},
      {12345u, 4294967296u, {3003105693, 976400781, 3387213022, 1360466709, 876933081, 3424658562}},
      {1099511627783u, 1u, {0, 0, 0, 0, 0, 0}},
      {1099511627783u, 2u, {0, 1, 1, 0, 0, 0}},
      {1099511627783u, 10u, {2, 8, 6, 2, 0, 1}},
      {1099511627783u, 3003u, {620, 2491, 1830, 766, 51, 461}},
      {1099511627783u, 2147483649u, {1782009616, 548263652, 330263047, 1900927028, 202923123, 1052257144}},
      {1099511627783u, 4294967296u, {886972842, 3564019232, 2617800309, 1096527305, 73059204, 660526095}},
  };
  for (const Draws& expected : cases) {
    NumpyRandom random(expected.seed);
    for (const std::uint32_t value : expected.values)
      EXPECT_EQ(random.below(expected.bound), value) << expected.seed << " " << expected.bound;
  }
}

// default_rng(12345).integers(2, size=70, dtype=bool)
TEST(NumpyRandom, CoinsAreNumpys) {
  NumpyRandom random(12345);
  std::string coins;
  for (int i = 0; i < 70; ++i) coins += random.coin() ? '1' : '0';
  EXPECT_EQ(coins, "1011100110000011111111110100110110110001100011010100110001011100011110");
}

std::vector<BleuStatistics> system_that_is_right(int right_of_ten, std::size_t sentences) {
  std::vector<BleuStatistics> result;
  BleuCounter count({});
  for (std::size_t s = 0; s < sentences; ++s) {
    const std::string right = "the quick brown fox number " + std::to_string(s) + " jumps over it";
    const bool is_right = static_cast<int>(s % 10) < right_of_ten;
    const std::string_view references[] = {right};
    result.push_back(count(is_right ? right : "the quick fox of number " + std::to_string(s), references));
  }
  return result;
}

TEST(Bootstrap, NarrowsWithTheCorpus) {
  const ConfidenceInterval small = bootstrap_interval(system_that_is_right(5, 40), {});
  const ConfidenceInterval large = bootstrap_interval(system_that_is_right(5, 4000), {});
  EXPECT_GT(small.half_width, 5 * large.half_width);
  EXPECT_GT(large.half_width, 0);
  EXPECT_NEAR(small.mean, large.mean, small.half_width);
  const ConfidenceInterval one = bootstrap_interval(system_that_is_right(10, 1), {});
  EXPECT_EQ(one.half_width, 0);
  EXPECT_NEAR(one.mean, 100, 1e-4);
}

TEST(PairedTests, TellSystemsApartThatDiffer) {
  const std::vector<std::vector<BleuStatistics>> systems{
      system_that_is_right(5, 300), system_that_is_right(5, 300), system_that_is_right(8, 300)};
  for (const bool randomization : {false, true}) {
    const std::vector<SystemResult> results = randomization
                                                  ? paired_randomization(systems, {}, {.samples = 500})
                                                  : paired_bootstrap(systems, {}, {.samples = 500});
    ASSERT_EQ(results.size(), 3u);
    EXPECT_FALSE(results[0].p_value);
    EXPECT_EQ(results[0].interval.has_value(), !randomization);
    EXPECT_EQ(results[0].score, results[1].score);
    EXPECT_LT(*results[2].p_value, 0.01);
  }
}

TEST(Bootstrap, DependsOnTheSeedOnly) {
  const std::vector<BleuStatistics> system = system_that_is_right(5, 30);
  const auto mean = [&](std::uint64_t seed) { return bootstrap_interval(system, {}, {100, seed}).mean; };
  EXPECT_EQ(mean(1), mean(1));
  EXPECT_NE(mean(1), mean(2));
}

}  // namespace
}  // namespace millrace
