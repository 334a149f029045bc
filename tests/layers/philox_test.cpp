#include "runtime/kernels/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

namespace millrace {
namespace {

TEST(Philox, HasThePublishedAnswer) {
  // Random123's kat_vectors: philox4x32 10, counter and key 0.
  EXPECT_EQ(philox(0, 0), (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_NE(philox(1, 0), philox(0, 0));
  EXPECT_NE(philox(std::uint64_t{1} << 32, 0), philox(0, 0));
  EXPECT_NE(philox(0, std::uint64_t{1} << 32), philox(0, 0));
}

TEST(Philox, AMaskIsOfItsWordsAndKeepsItsShare) {
  constexpr std::uint64_t kKey = 0x0123456789abcdefULL;
  std::vector<float> mask(100'003);
  draw_mask(mask.data(), std::ssize(mask), 0.3, 2.5F, kKey);
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < std::ssize(mask); ++i) {
    const auto words = philox(static_cast<std::uint64_t>(16 * (i / 64) + i % 16), kKey);
    const bool keeps = words[i % 64 / 16] * 0x1p-32 < 0.7;
    ASSERT_EQ(mask[i], keeps ? 2.5F : 0.0F) << i;
    kept += keeps;
  }
  EXPECT_NEAR(double(kept), 70'000, 600);  // four standard deviations
  // A shorter one is its beginning.
  std::vector<float> shorter(77, -1);
  draw_mask(shorter.data(), 77, 0.3, 2.5F, kKey);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), mask.begin()));
  draw_mask(shorter.data(), 77, 0, 1, kKey);
  EXPECT_EQ(shorter, std::vector<float>(77, 1));
  draw_mask(shorter.data(), 77, 1, 1, kKey);
  EXPECT_EQ(shorter, std::vector<float>(77, 0));
}

}  // namespace
}  // namespace millrace
