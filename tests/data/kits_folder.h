// A small folder of KiTS's form.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/files/npy.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {

/// Writes a case whose values tell their places (plane * 10,000 + row * 100 + column) and whose labels are
/// those of `labels` (0 if it is empty).
inline void write_case(const std::filesystem::path& folder, int number, std::array<std::int64_t, 3> sides,
                       std::vector<std::uint8_t> labels = {}) {
  std::filesystem::create_directories(folder);
  std::vector<float> values;
  for (std::int64_t z = 0; z < sides[0]; ++z)
    for (std::int64_t y = 0; y < sides[1]; ++y)
      for (std::int64_t x = 0; x < sides[2]; ++x) values.push_back(float(z * 10'000 + y * 100 + x));
  labels.resize(values.size());
  const auto put = [&](const char* part, const char* type, const void* data, std::size_t bytes) {
    const std::string name = printed("case_%05d_%s.npy", number, part);
    ASSERT_TRUE(write_file_atomically(folder / name, npy_header(type, {1, sides[0], sides[1], sides[2]}) +
                                                         std::string(static_cast<const char*>(data), bytes)));
  };
  put("x", "<f4", values.data(), values.size() * 4);
  put("y", "|u1", labels.data(), labels.size());
}

}  // namespace millrace
