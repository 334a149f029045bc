// Reads every #include and fails on one against the arrows of docs/architecture.md, or on a LibTorch header
// in a folder that must not need it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {
namespace fs = std::filesystem;

/// Folder -> folders that it may include. Its own is always allowed.
const std::map<std::string, std::set<std::string>>& arrows() {
  static const std::map<std::string, std::set<std::string>> allowed = [] {
    std::map<std::string, std::set<std::string>> a;
    a["runtime/base"] = {};
    a["runtime/plan"] = {"runtime/base"};
    a["runtime/trace"] = {"runtime/base"};
    a["runtime/schedule"] = {"runtime/base", "runtime/plan", "runtime/trace"};
    a["runtime/layers"] = {"runtime/base"};
    a["runtime/comm"] = {"runtime/base"};
    a["runtime/stage"] = a["runtime/schedule"];
    for (const char* f : {"runtime/schedule", "runtime/layers", "runtime/comm"}) a["runtime/stage"].insert(f);
    a["runtime/checkpoint"] = a["runtime/stage"];
    a["runtime/checkpoint"].insert("runtime/stage");
    a["runtime/train"] = a["runtime/checkpoint"];
    a["runtime/train"].insert("runtime/checkpoint");
    a["optimizer"] = {"runtime/base", "runtime/plan", "runtime/trace", "runtime/schedule"};
    a["models"] = {"runtime/base", "runtime/layers", "runtime/stage"};
    a["data"] = {"runtime/base", "runtime/train"};
    a["driver"] = a["runtime/train"];
    for (const char* f : {"runtime/train", "optimizer", "models", "data"}) a["driver"].insert(f);
    a["experiments"] = a["driver"];
    a["experiments"].insert("driver");
    return a;
  }();
  return allowed;
}

bool is_torch_header(const std::string& include) {
  return include.starts_with("ATen/") || include.starts_with("torch/") || include.starts_with("c10/");
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.starts_with("runtime/") ? path.find('/', 8) : path.find('/');
  return path.substr(0, slash);
}

/// Targets that link no LibTorch: all of these folders, and driver but for the worker's files.
bool must_be_torch_free(const std::string& path) {
  static const std::set<std::string> folders{"runtime/base",     "runtime/plan", "runtime/trace",
                                             "runtime/schedule", "optimizer",    "experiments"};
  const std::string folder = folder_of(path), name = fs::path(path).filename();
  if (folder == "driver")
    return !name.starts_with("train_") && !name.starts_with("profile_") && !name.starts_with("worker");
  return folders.contains(folder);
}

using Includes = std::map<std::string, std::vector<std::string>>;  // file -> what it includes

std::vector<std::string> violations(const Includes& files) {
  std::vector<std::string> found;
  for (const auto& [file, includes] : files) {
    const std::string folder = folder_of(file);
    // The main program joins everything that it dispatches to.
    if (file == "driver/millrace_main.cpp") continue;
    for (const std::string& include : includes) {
      if (!files.contains(include) || folder_of(include) == folder) continue;
      if (!arrows().contains(folder) || !arrows().at(folder).contains(folder_of(include)))
        found.push_back(file + " includes " + include + " against the arrows");
    }
    if (!must_be_torch_free(file)) continue;
    std::set<std::string> seen{file};
    std::vector<std::string> todo{file};
    while (!todo.empty()) {
      const std::string at = todo.back();
      todo.pop_back();
      const auto entry = files.find(at);
      if (entry == files.end()) continue;
      for (const std::string& include : entry->second) {
        if (is_torch_header(include)) found.push_back(file + " reaches " + include + " through " + at);
        if (seen.insert(include).second) todo.push_back(include);
      }
    }
  }
  return found;
}

Includes read_tree(const fs::path& root) {
  Includes files;
  for (const char* top : {"runtime", "optimizer", "models", "data", "driver", "experiments"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp") continue;
      auto& includes = files[fs::relative(entry.path(), root).string()];
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        if (!line.starts_with("#include ")) continue;
        const std::size_t end = line.find_first_of("\">", 10);
        includes.push_back(line.substr(10, end - 10));
      }
    }
  }
  return files;
}

TEST(Architecture, IncludesFollowTheArrows) {
  const Includes files = read_tree(MILLRACE_SOURCE_DIR);
  EXPECT_GT(files.size(), 80u);
  for (const std::string& violation : violations(files)) ADD_FAILURE() << violation;
}

TEST(Architecture, ViolationsAreFound) {
  const auto count = [](Includes files) { return violations(files).size(); };
  EXPECT_EQ(count({{"runtime/plan/a.h", {"runtime/base/b.h"}}, {"runtime/base/b.h", {}}}), 0u);
  EXPECT_EQ(count({{"runtime/base/a.h", {"runtime/plan/b.h"}}, {"runtime/plan/b.h", {}}}), 1u);
  EXPECT_EQ(count({{"models/a.cpp", {"data/b.h"}}, {"data/b.h", {}}}), 1u);
  EXPECT_EQ(count({{"optimizer/a.cpp", {"ATen/ATen.h"}}}), 1u);
  EXPECT_EQ(count({{"driver/launch.cpp", {"driver/train_x.h"}}, {"driver/train_x.h", {"ATen/ATen.h"}}}), 1u);
  EXPECT_EQ(count({{"driver/train_x.cpp", {"ATen/ATen.h"}}}), 0u);
}

}  // namespace
