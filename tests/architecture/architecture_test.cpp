// Reads every #include of the source tree and checks the arrows of docs/architecture.md. Pure text: no
// compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace millrace {
namespace {

/// Path from the root of the source tree -> content.
using SourceTree = std::map<std::string, std::string>;

struct Include {
  std::string target;
  bool from_root = false;  ///< "x.h"; otherwise <x>
};

/// The folders that each folder may include besides itself. Written out: this table is the picture in
/// docs/architecture.md.
const std::map<std::string, std::set<std::string>>& direct_arrows() {
  static const std::map<std::string, std::set<std::string>> arrows{
      {"runtime/base", {}},
      {"runtime/rules", {"runtime/base"}},
      {"runtime/plan", {"runtime/base"}},
      {"runtime/trace", {"runtime/base"}},
      {"runtime/metrics", {"runtime/base"}},
      {"runtime/drawing", {"runtime/base"}},
      {"runtime/schedule", {"runtime/plan", "runtime/trace", "runtime/drawing"}},
      {"runtime/device", {"runtime/schedule"}},
      {"runtime/comm", {"runtime/schedule"}},
      {"runtime/layers", {"runtime/schedule"}},
      {"runtime/stage", {"runtime/rules", "runtime/device", "runtime/comm", "runtime/layers"}},
      {"runtime/fusion", {"runtime/stage"}},
      {"runtime/checkpoint", {"runtime/stage"}},
      {"runtime/train", {"runtime/fusion", "runtime/checkpoint", "runtime/metrics"}},
      {"optimizer", {"runtime/rules", "runtime/schedule"}},
      {"models", {"runtime/train", "models/archive"}},
      {"models/archive", {"data/files"}},
      {"data/files", {"runtime/base"}},
      {"data/generate", {"data/files"}},
      {"data/text", {"data/files"}},
      {"data", {"runtime/train", "data/generate", "data/text"}},
      {"driver", {"optimizer", "models", "data"}},
      {"experiments", {"driver"}},
      {"millrace", {"driver"}},  // the headers of the installed library
  };
  return arrows;
}

/// Everything that `folder` may include: itself and whatever is below it.
std::set<std::string> reachable(const std::string& folder) {
  std::set<std::string> found;
  std::vector<std::string> open{folder};
  while (!open.empty()) {
    const std::string next = open.back();
    open.pop_back();
    if (!found.insert(next).second) continue;
    const std::set<std::string>& below = direct_arrows().at(next);
    open.insert(open.end(), below.begin(), below.end());
  }
  return found;
}

/// "runtime/plan" of "runtime/plan/plan.h"; the first folder elsewhere. Empty for a file in the root.
std::string folder_of(const std::string& path) {
  const std::size_t first = path.find('/');
  if (first == std::string::npos) return "";
  const std::string top = path.substr(0, first);
  const std::size_t second = path.find('/', first + 1);
  const std::string nested = second == std::string::npos ? top : path.substr(0, second);
  // The torch-free parts of `data` and `models` are folders of their own.
  static const std::set<std::string> apart{"data/files", "data/generate", "data/text", "models/archive"};
  return top == "runtime" || apart.count(nested) != 0 ? nested : top;
}

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.rfind(prefix, 0) == 0;
}

bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

/// A program joins the parts: nothing includes it, so it may name anything.
bool is_program(const std::string& path) {
  return ends_with(path, "_main.cpp");
}

/// The files of targets that do not link LibTorch (CMakeLists.txt has the same rule for driver/).
bool is_torch_free(const std::string& path) {
  static const std::set<std::string> folders{
      "runtime/base",    "runtime/rules",    "runtime/metrics", "runtime/plan", "runtime/trace",
      "runtime/drawing", "runtime/schedule", "optimizer",       "data/files",   "data/generate",
      "data/text",       "models/archive",   "experiments"};
  const std::string folder = folder_of(path);
  if (folder != "driver") return folders.count(folder) != 0;
  return !starts_with(path, "driver/worker/");
}

bool is_torch_header(const Include& include) {
  if (include.from_root) return false;
  for (const char* prefix : {"ATen/", "torch/", "c10/", "caffe2/"}) {
    if (starts_with(include.target, prefix)) return true;
  }
  return false;
}

std::vector<Include> includes_of(const std::string& content) {
  static const std::regex pattern(R"re(^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">])re");
  std::vector<Include> result;
  std::istringstream lines(content);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_search(line, match, pattern)) result.push_back({match[2], match[1] == "\""});
  }
  return result;
}

/// Includes against the arrows, and quoted includes that are not a path from the root.
std::vector<std::string> wrong_edges(const SourceTree& tree) {
  std::vector<std::string> wrong;
  for (const auto& [path, content] : tree) {
    const std::string folder = folder_of(path);
    if (direct_arrows().count(folder) == 0) {
      wrong.push_back(path + ": folder " + folder + " has no place in the architecture");
      continue;
    }
    const std::set<std::string> allowed = reachable(folder);
    for (const Include& include : includes_of(content)) {
      if (!include.from_root) continue;
      if (tree.count(include.target) == 0) {
        wrong.push_back(path + ": \"" + include.target +
                        "\" is no file of the tree (paths start at the root)");
      } else if (is_program(include.target) || ends_with(include.target, ".cpp")) {
        wrong.push_back(path + ": includes the source file " + include.target);
      } else if (!is_program(path) && allowed.count(folder_of(include.target)) == 0) {
        wrong.push_back(path + ": " + folder + " must not include " + include.target);
      }
    }
  }
  return wrong;
}

/// The chain of includes from `path` to a torch header, if there is one.
std::optional<std::string> way_to_torch(const SourceTree& tree, const std::string& path,
                                        std::set<std::string>& seen) {
  if (!seen.insert(path).second) return std::nullopt;
  const auto file = tree.find(path);
  if (file == tree.end()) return std::nullopt;
  for (const Include& include : includes_of(file->second)) {
    if (is_torch_header(include)) return path + " -> " + include.target;
    if (!include.from_root) continue;
    if (const std::optional<std::string> way = way_to_torch(tree, include.target, seen)) {
      return path + " -> " + *way;
    }
  }
  return std::nullopt;
}

std::vector<std::string> torch_in_torch_free_files(const SourceTree& tree) {
  std::vector<std::string> wrong;
  for (const auto& [path, content] : tree) {
    if (!is_torch_free(path)) continue;
    std::set<std::string> seen;
    if (const std::optional<std::string> way = way_to_torch(tree, path, seen)) wrong.push_back(*way);
  }
  return wrong;
}

SourceTree read_source_tree() {
  namespace fs = std::filesystem;
  const fs::path root = MILLRACE_SOURCE_DIR;
  SourceTree tree;
  for (const char* top : {"runtime", "optimizer", "models", "data", "driver", "experiments", "millrace"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension().string();
      if (!entry.is_regular_file() || (extension != ".h" && extension != ".cpp")) continue;
      std::ifstream stream(entry.path());
      std::ostringstream content;
      content << stream.rdbuf();
      tree[fs::relative(entry.path(), root).generic_string()] = content.str();
    }
  }
  return tree;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "  " + line + "\n";
  return text;
}

TEST(Architecture, IncludesFollowTheArrows) {
  const std::vector<std::string> wrong = wrong_edges(read_source_tree());
  EXPECT_TRUE(wrong.empty()) << joined(wrong);
}

TEST(Architecture, TorchFreeFilesReachNoTorchHeader) {
  const std::vector<std::string> wrong = torch_in_torch_free_files(read_source_tree());
  EXPECT_TRUE(wrong.empty()) << joined(wrong);
}

TEST(Architecture, TheWholeTreeWasRead) {
  const SourceTree tree = read_source_tree();
  EXPECT_GT(tree.size(), 50u);
  for (const char* file : {"runtime/base/result.h", "optimizer/planner.h", "driver/millrace_main.cpp"}) {
    EXPECT_EQ(tree.count(file), 1u) << file;
  }
}

TEST(Architecture, TheTableHasNoCycle) {
  for (const auto& [folder, below] : direct_arrows()) {
    for (const std::string& lower : below) EXPECT_EQ(reachable(lower).count(folder), 0u) << folder;
  }
}

// ---- the checker finds what it is for
// -----------------------------------------------------------------------

struct Example {
  const char* name;
  const char* path;
  const char* line;
  bool wrong;
};

class EdgeExample : public testing::TestWithParam<Example> {};

TEST_P(EdgeExample, IsJudgedAsStated) {
  SourceTree tree{
      {"runtime/base/result.h", ""},       {"runtime/plan/plan.h", ""},     {"runtime/trace/trace.h", ""},
      {"runtime/comm/communicator.h", ""}, {"runtime/train/trainer.h", ""}, {"runtime/metrics/bleu.h", ""},
      {"optimizer/planner.h", ""},         {"models/registry.h", ""},       {"driver/cli/cli.h", ""},
      {"driver/cli/cli.cpp", ""},          {"experiments/report.h", ""}};
  tree[GetParam().path] = GetParam().line;
  EXPECT_EQ(!wrong_edges(tree).empty(), GetParam().wrong) << joined(wrong_edges(tree));
}

INSTANTIATE_TEST_SUITE_P(
    Edges, EdgeExample,
    testing::Values(
        Example{"Downward", "runtime/train/a.cpp", "#include \"runtime/base/result.h\"", false},
        Example{"SameFolder", "optimizer/a.cpp", "#include \"optimizer/planner.h\"", false},
        Example{"System", "runtime/base/a.cpp", "#include <vector>", false},
        Example{"ExperimentsUseDriver", "experiments/a.cpp", "#include \"driver/cli/cli.h\"", false},
        Example{"ProgramJoins", "driver/x_main.cpp", "#include \"experiments/report.h\"", false},
        Example{"Commented", "runtime/base/a.cpp", "// #include \"runtime/plan/plan.h\"", false},
        Example{"Upward", "runtime/base/a.cpp", "#include \"runtime/plan/plan.h\"", true},
        Example{"UpwardIndented", "runtime/base/a.cpp", "  #  include \"runtime/plan/plan.h\"", true},
        Example{"Sideways", "runtime/plan/a.cpp", "#include \"runtime/trace/trace.h\"", true},
        Example{"PlannerAndEngine", "optimizer/a.cpp", "#include \"runtime/train/trainer.h\"", true},
        Example{"PlannerAndComm", "optimizer/a.cpp", "#include \"runtime/comm/communicator.h\"", true},
        Example{"Siblings", "data/a.cpp", "#include \"models/registry.h\"", true},
        Example{"DriverAndExperiments", "driver/a.cpp", "#include \"experiments/report.h\"", true},
        Example{"RuntimeAndDriver", "runtime/train/a.cpp", "#include \"driver/cli/cli.h\"", true},
        Example{"NotFromTheRoot", "driver/a.cpp", "#include \"cli.h\"", true},
        Example{"SourceFile", "driver/a.cpp", "#include \"driver/cli/cli.cpp\"", true},
        Example{"MetricsAreBelowTraining", "runtime/train/a.cpp", "#include \"runtime/metrics/bleu.h\"",
                false},
        Example{"MetricsKnowNoPlan", "runtime/metrics/a.cpp", "#include \"runtime/plan/plan.h\"", true},
        Example{"UnknownFolder", "runtime/utils/a.cpp", "", true}),
    [](const testing::TestParamInfo<Example>& info) { return std::string(info.param.name); });

TEST(TorchReach, IsFoundThroughOtherHeaders) {
  SourceTree tree{{"driver/a_command.cpp", "#include \"runtime/comm/store.h\"\n"},
                  {"runtime/comm/store.h", "#include \"runtime/comm/tensors.h\"\n"},
                  {"runtime/comm/tensors.h", "#include <string>\n#include <ATen/core/Tensor.h>\n"}};
  const std::vector<std::string> wrong = torch_in_torch_free_files(tree);
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_EQ(wrong[0],
            "driver/a_command.cpp -> runtime/comm/store.h -> runtime/comm/tensors.h -> ATen/core/Tensor.h");
}

TEST(TorchReach, IsAllowedWhereLibTorchIsLinked) {
  const std::string torch = "#include <c10/core/ScalarType.h>\n";
  for (const char* path :
       {"runtime/stage/a.cpp", "models/a.cpp", "data/a.cpp", "driver/worker/train_command.cpp",
        "driver/worker/profile_command.cpp", "driver/worker/worker_main.cpp"}) {
    EXPECT_TRUE(torch_in_torch_free_files({{path, torch}}).empty()) << path;
  }
  for (const char* path :
       {"runtime/base/a.h", "runtime/plan/a.h", "runtime/trace/a.h", "runtime/schedule/a.h",
        "optimizer/a.cpp", "experiments/a.cpp", "driver/millrace_main.cpp"}) {
    EXPECT_EQ(torch_in_torch_free_files({{path, torch}}).size(), 1u) << path;
  }
}

TEST(TorchReach, EndsOnHeadersThatIncludeEachOther) {
  EXPECT_TRUE(torch_in_torch_free_files({{"runtime/base/a.h", "#include \"runtime/base/b.h\"\n"},
                                         {"runtime/base/b.h", "#include \"runtime/base/a.h\"\n"}})
                  .empty());
}

}  // namespace
}  // namespace millrace
