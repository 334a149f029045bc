// A small folder of ShapeNet-part's form.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "runtime/base/files.h"

namespace millrace {

/// Categories Chair (4 parts) and Bag (2), three shapes each to train on and one to test, of 40 points.
inline void write_shape_net(const std::filesystem::path& folder) {
  const auto put = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder / name).parent_path());
    ASSERT_TRUE(write_file_atomically(folder / name, text));
  };
  put("synsetoffset2category.txt", "Chair\t03001627\nBag\t02773838\n");
  std::string train, test;
  for (const auto& [id, parts] : {std::pair{"03001627", 4}, {"02773838", 2}}) {
    for (int shape = 0; shape < 4; ++shape) {
      const std::string name = "shape" + std::to_string(shape);
      std::string points, labels;
      for (int i = 0; i < 40; ++i) {
        const double height = double(i % parts) + 0.1 * (i % 3);
        points += std::to_string(0.3 * (i % 7) + shape) + " " + std::to_string(height) + " " +
                  std::to_string(0.2 * (i % 5)) + "\n";
        labels += std::to_string(i % parts + 1) + "\n";
      }
      put(std::string(id) + "/points/" + name + ".pts", points);
      put(std::string(id) + "/points_label/" + name + ".seg", labels);
      std::string& list = shape < 3 ? train : test;
      list += std::string(list.empty() ? "" : ", ") + "\"shape_data/" + id + "/" + name + "\"";
    }
  }
  put("train_test_split/shuffled_train_file_list.json", "[" + train + "]");
  put("train_test_split/shuffled_test_file_list.json", "[" + test + "]");
}

}  // namespace millrace
