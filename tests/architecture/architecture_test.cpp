// Reads every #include of the source tree and checks it against the arrows of arrows.txt. Pure text: no
// compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
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

struct Room {
  bool has_torch = false;
  std::set<std::string> below{};  ///< the rooms that it stands on directly
};

/// Returns the rooms of arrows.txt by name.
const std::map<std::string, Room>& rooms() {
  static const std::map<std::string, Room> all = [] {
    std::map<std::string, Room> found;
    std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + "/tests/architecture/arrows.txt");
    for (std::string line; std::getline(file, line);) {
      const std::size_t colon = line.find(':');
      if (line.empty() || line[0] == '#' || colon == std::string::npos) continue;
      std::istringstream head(line.substr(0, colon)), tail(line.substr(colon + 1));
      std::string name, star;
      head >> name >> star;
      Room& room = found[name];
      room.has_torch = star == "*";
      for (std::string below; tail >> below;) room.below.insert(below);
    }
    return found;
  }();
  return all;
}

/// Returns the rooms that `room` may include: itself and all below it.
std::set<std::string> reachable(const std::string& room) {
  std::set<std::string> found;
  std::vector<std::string> open{room};
  while (!open.empty()) {
    const std::string next = open.back();
    open.pop_back();
    if (!found.insert(next).second) continue;
    const std::set<std::string>& below = rooms().at(next).below;
    open.insert(open.end(), below.begin(), below.end());
  }
  return found;
}

/// Returns the folder of a file: "runtime/plan" of "runtime/plan/plan.h". Empty for a file in the root.
std::string folder_of(const std::string& path) {
  const std::size_t last = path.rfind('/');
  return last == std::string::npos ? "" : path.substr(0, last);
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

bool is_torch_free(const std::string& path) {
  const auto room = rooms().find(folder_of(path));
  return room != rooms().end() && !room->second.has_torch && !starts_with(path, "programs/worker");
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
  for (std::size_t at = content.find("include"); at != std::string::npos; at = content.find("include", at)) {
    const std::size_t begin = content.rfind('\n', at) + 1, end = content.find('\n', at);
    std::smatch match;
    const std::string line = content.substr(begin, end - begin);
    if (std::regex_search(line, match, pattern)) {
      const std::string target = match[2];
      const bool from_root = match[1] == "\"";  // public headers are named as users name them
      result.push_back(
          {from_root && starts_with(target, "millrace/") ? "include/" + target : target, from_root});
    }
    at = std::min(end, content.size());
  }
  return result;
}

/// Includes against the arrows, and quoted includes that are not a path from the root.
std::vector<std::string> wrong_edges(const SourceTree& tree) {
  std::vector<std::string> wrong;
  for (const auto& [path, content] : tree) {
    const std::string folder = folder_of(path);
    if (rooms().count(folder) == 0) {
      wrong.push_back(path + ": folder " + folder + " is no room of tests/architecture/arrows.txt");
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
  for (const char* top :
       {"runtime", "optimizer", "models", "data", "driver", "experiments", "include", "programs"}) {
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
  for (const char* file :
       {"runtime/base/result.h", "optimizer/planner/planner.h", "programs/millrace_main.cpp"}) {
    EXPECT_EQ(tree.count(file), 1u) << file;
  }
}

TEST(Architecture, TheRoomsHaveNoCycle) {
  EXPECT_GT(rooms().size(), 30u);
  for (const auto& [name, room] : rooms()) {
    for (const std::string& below : room.below) {
      ASSERT_EQ(rooms().count(below), 1u) << name << " stands on " << below << ", which is no room";
      EXPECT_EQ(reachable(below).count(name), 0u) << name;
    }
  }
}

TEST(Architecture, EveryArrowIsUsed) {
  const SourceTree tree = read_source_tree();
  for (const auto& [name, room] : rooms()) {
    for (const std::string& below : room.below) {
      const bool used = std::any_of(tree.begin(), tree.end(), [&, &name = name](const auto& file) {
        if (folder_of(file.first) != name) return false;
        const std::vector<Include> includes = includes_of(file.second);
        return std::any_of(includes.begin(), includes.end(), [&](const Include& include) {
          return include.from_root && folder_of(include.target) == below;
        });
      });
      EXPECT_TRUE(used) << name << " includes nothing of " << below;
    }
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
      {"runtime/base/result.h", ""},       {"runtime/plan/plan.h", ""},        {"runtime/trace/trace.h", ""},
      {"runtime/comm/communicator.h", ""}, {"runtime/train/trainer.h", ""},    {"runtime/metrics/bleu.h", ""},
      {"optimizer/planner/planner.h", ""}, {"models/registry.h", ""},          {"driver/cli/cli.h", ""},
      {"driver/cli/cli.cpp", ""},          {"experiments/report/report.h", ""}};
  tree[GetParam().path] = GetParam().line;
  EXPECT_EQ(!wrong_edges(tree).empty(), GetParam().wrong) << joined(wrong_edges(tree));
}

INSTANTIATE_TEST_SUITE_P(
    Edges, EdgeExample,
    testing::Values(
        Example{"Downward", "runtime/train/a.cpp", "#include \"runtime/base/result.h\"", false},
        Example{"SameFolder", "optimizer/planner/a.cpp", "#include \"optimizer/planner/planner.h\"", false},
        Example{"System", "runtime/base/a.cpp", "#include <vector>", false},
        Example{"ExperimentsUseDriver", "experiments/sweep/a.cpp", "#include \"driver/cli/cli.h\"", false},
        Example{"ProgramJoins", "programs/x_main.cpp", "#include \"experiments/report/report.h\"", false},
        Example{"Commented", "runtime/base/a.cpp", "// #include \"runtime/plan/plan.h\"", false},
        Example{"Upward", "runtime/base/a.cpp", "#include \"runtime/plan/plan.h\"", true},
        Example{"UpwardIndented", "runtime/base/a.cpp", "  #  include \"runtime/plan/plan.h\"", true},
        Example{"Sideways", "runtime/plan/a.cpp", "#include \"runtime/trace/trace.h\"", true},
        Example{"PlannerAndEngine", "optimizer/planner/a.cpp", "#include \"runtime/train/trainer.h\"", true},
        Example{"PlannerAndComm", "optimizer/planner/a.cpp", "#include \"runtime/comm/communicator.h\"",
                true},
        Example{"Siblings", "data/a.cpp", "#include \"models/registry.h\"", true},
        Example{"DriverAndExperiments", "driver/launch/a.cpp", "#include \"experiments/report/report.h\"",
                true},
        Example{"RuntimeAndDriver", "runtime/train/a.cpp", "#include \"driver/cli/cli.h\"", true},
        Example{"NotFromTheRoot", "driver/launch/a.cpp", "#include \"cli.h\"", true},
        Example{"SourceFile", "driver/launch/a.cpp", "#include \"driver/cli/cli.cpp\"", true},
        Example{"MetricsAreBelowBleu", "driver/bleu/a.cpp", "#include \"runtime/metrics/bleu.h\"", false},
        Example{"MetricsKnowNoPlan", "runtime/metrics/a.cpp", "#include \"runtime/plan/plan.h\"", true},
        Example{"UnknownFolder", "runtime/utils/a.cpp", "", true}),
    [](const testing::TestParamInfo<Example>& info) { return std::string(info.param.name); });

TEST(TorchReach, IsFoundThroughOtherHeaders) {
  SourceTree tree{{"driver/launch/a_command.cpp", "#include \"runtime/comm/store.h\"\n"},
                  {"runtime/comm/store.h", "#include \"runtime/comm/tensors.h\"\n"},
                  {"runtime/comm/tensors.h", "#include <string>\n#include <ATen/core/Tensor.h>\n"}};
  const std::vector<std::string> wrong = torch_in_torch_free_files(tree);
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_EQ(
      wrong[0],
      "driver/launch/a_command.cpp -> runtime/comm/store.h -> runtime/comm/tensors.h -> ATen/core/Tensor.h");
}

TEST(TorchReach, IsAllowedWhereLibTorchIsLinked) {
  const std::string torch = "#include <c10/core/ScalarType.h>\n";
  for (const char* path :
       {"runtime/stage/a.cpp", "models/a.cpp", "data/a.cpp", "driver/worker/train_command.cpp",
        "driver/worker/profile_command.cpp", "programs/worker_main.cpp"}) {
    EXPECT_TRUE(torch_in_torch_free_files({{path, torch}}).empty()) << path;
  }
  for (const char* path :
       {"runtime/base/a.h", "runtime/plan/a.h", "runtime/trace/a.h", "runtime/schedule/a.h",
        "optimizer/planner/a.cpp", "experiments/sweep/a.cpp", "programs/millrace_main.cpp"}) {
    EXPECT_EQ(torch_in_torch_free_files({{path, torch}}).size(), 1u) << path;
  }
}

TEST(TorchReach, EndsOnHeadersThatIncludeEachOther) {
  EXPECT_TRUE(torch_in_torch_free_files({{"runtime/base/a.h", "#include \"runtime/base/b.h\"\n"},
                                         {"runtime/base/b.h", "#include \"runtime/base/a.h\"\n"}})
                  .empty());
}

// ---- one definition of each name
// ----------------------------------------------------------------------------

/// Returns the words and marks of C++ text, without comments, literals and lines of the preprocessor.
std::vector<std::string> tokens_of(const std::string& text) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::vector<std::string> tokens;
  bool line_begins = true;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    const std::size_t from = i;
    if (c == '#' && line_begins) {
      while (i < text.size() && text[i] != '\n') i += text[i] == '\\' ? 2u : 1u;
    } else if (text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size());
    } else if (text.compare(i, 2, "/*") == 0) {
      i = std::min(text.find("*/", i + 2), text.size() - 2) + 2;
    } else if (text.compare(i, 2, "R\"") == 0) {
      const std::string end = ")" + text.substr(i + 2, text.find('(', i) - i - 2) + "\"";
      i = std::min(text.find(end, i), text.size() - end.size()) + end.size();
    } else if (c == '"' || c == '\'') {
      for (++i; i < text.size() && text[i] != c; ++i) i += text[i] == '\\' ? 1u : 0u;
      ++i;
    } else if (is_word(c)) {
      const bool number = std::isdigit(static_cast<unsigned char>(c)) != 0;  // 1'000 and 0.5
      while (i < text.size() && (is_word(text[i]) || (number && (text[i] == '\'' || text[i] == '.')))) ++i;
      tokens.push_back(text.substr(from, i - from));
    } else if (std::isspace(static_cast<unsigned char>(c)) == 0) {
      i += text.compare(i, 2, "::") == 0 ? 2u : 1u;
      tokens.push_back(text.substr(from, i - from));
    } else {
      ++i;
    }
    line_begins = c == '\n' || (line_begins && (c == ' ' || c == '\t'));
  }
  return tokens;
}

using Tokens = std::vector<std::string>;

/// Returns where the bracket that opens at `open` closes; the number of tokens if it does not.
std::size_t closing(const Tokens& head, std::size_t open, const std::string& opens,
                    const std::string& closes) {
  int depth = 0;
  for (std::size_t i = open; i < head.size(); ++i) {
    depth += head[i] == opens ? 1 : head[i] == closes ? -1 : 0;
    if (depth == 0) return i;
  }
  return head.size();
}

/// Returns the types of a parameter list without names and defaults: "int,const string&" of (int a, const
/// string& b).
std::string parameter_types(const Tokens& list) {
  std::string text;
  Tokens one;
  int depth = 0;
  const auto end_parameter = [&] {
    one.erase(std::find(one.begin(), one.end(), "="), one.end());
    const bool named = one.size() > 1 && one.back() != "&" && one.back() != "*" && one.back() != ">" &&
                       one[one.size() - 2] != "::" && one[one.size() - 2] != "const";
    if (named) one.pop_back();
    for (const std::string& token : one) text += token + " ";
    one.clear();
  };
  for (const std::string& token : list) {
    depth += token == "(" || token == "<" || token == "{"   ? 1
             : token == ")" || token == ">" || token == "}" ? -1
                                                            : 0;
    if (token == "," && depth == 0) {
      end_parameter();
      text += ", ";
    } else {
      one.push_back(token);
    }
  }
  end_parameter();
  return text;
}

/// Returns what the tokens before a "{" define: "Name" of a type, "name (types)" of a function; empty:
/// neither, or a name that other files may define as well (static, a specialization).
std::string defined_name(Tokens head) {
  if (!head.empty() && head[0] == "template")
    head.erase(head.begin(), head.begin() + static_cast<std::ptrdiff_t>(
                                                std::min(closing(head, 1, "<", ">") + 1, head.size())));
  for (auto at = head.begin(); (at = std::find(head.begin(), head.end(), "[")) != head.end();) {
    const std::size_t from = static_cast<std::size_t>(at - head.begin());
    const std::size_t to = std::min(closing(head, from, "[", "]") + 1, head.size());
    head.erase(at, head.begin() + static_cast<std::ptrdiff_t>(to));
  }
  static const std::set<std::string> keys{"class", "struct", "union", "enum"};
  std::string name;
  if (!head.empty() && keys.count(head[0]) != 0) {
    std::size_t i = 1;
    if (i < head.size() && keys.count(head[i]) != 0) ++i;  // enum class
    for (; i < head.size() && head[i] != "final" && head[i] != ":"; ++i) name += head[i];
    return name.find('<') == std::string::npos ? name : "";
  }
  const std::size_t open = static_cast<std::size_t>(std::find(head.begin(), head.end(), "(") - head.begin());
  const std::size_t close = closing(head, open, "(", ")");
  const auto before = head.begin() + static_cast<std::ptrdiff_t>(open);
  if (open == 0 || close >= head.size() || head[open - 1] == ">" ||
      std::find(head.begin(), before, "static") != before || std::find(head.begin(), before, "=") != before)
    return "";
  std::size_t first = open - 1;
  while (first >= 2 && head[first - 1] == "::") first -= 2;
  for (std::size_t i = first; i < open; ++i) name += head[i];
  if (name == "main" || name == "void") return "";  // void (*pointer)()
  const auto list = head.begin() + static_cast<std::ptrdiff_t>(open) + 1;
  return name + " (" + parameter_types({list, head.begin() + static_cast<std::ptrdiff_t>(close)}) + ")";
}

/// Returns "Name" of the tokens of `using Name = ...`, with or without a template before it; empty: no alias.
std::string alias_name(const Tokens& head) {
  const auto at = std::find(head.begin(), head.end(), "using");
  const bool first = at == head.begin() || (head[0] == "template" && at != head.end() && *(at - 1) == ">");
  return first && head.end() - at > 2 && *(at + 2) == "=" ? *(at + 1) : "";
}

/// Returns the names of types, aliases and functions that more than one file defines in the same namespace,
/// with the files. A linker keeps one of such definitions without a word. Names in anonymous namespaces are
/// each file's.
std::vector<std::string> names_defined_twice(const SourceTree& tree) {
  std::map<std::string, std::set<std::string>> files;
  const auto note = [&](const std::string& name, const std::vector<std::string>& scopes,
                        const std::string& path) {
    std::string full;
    for (const std::string& outer : scopes) full += outer + "::";
    if (!name.empty()) files[full + name].insert(path);
  };
  for (const auto& [path, content] : tree) {
    std::vector<std::string>
        scopes;  // "namespace millrace"; "" of any other brace and of anonymous namespaces
    Tokens head;
    for (const std::string& token : tokens_of(content)) {
      if (token == "{") {
        const bool in_namespaces = std::count(scopes.begin(), scopes.end(), "") == 0;
        const auto space = std::find(head.begin(), head.end(), "namespace");
        std::string scope;
        if (space != head.end()) {
          for (auto part = space + 1; part != head.end(); ++part) scope += *part;
        } else if (in_namespaces) {
          note(defined_name(head), scopes, path);
        }
        scopes.push_back(scope);
        head.clear();
      } else if (token == "}") {
        if (!scopes.empty()) scopes.pop_back();
        head.clear();
      } else if (token == ";") {
        if (std::count(scopes.begin(), scopes.end(), "") == 0) note(alias_name(head), scopes, path);
        head.clear();
      } else {
        head.push_back(token);
      }
    }
    if (!scopes.empty()) files["braces of " + path].insert({path, "the reader of this test"});
  }
  std::vector<std::string> twice;
  for (const auto& [name, places] : files) {
    if (places.size() < 2) continue;
    std::string line = name + ":";
    for (const std::string& place : places) line += " " + place;
    twice.push_back(line);
  }
  return twice;
}

TEST(OneDefinition, OfEachTypeAndFunction) {
  const std::vector<std::string> twice = names_defined_twice(read_source_tree());
  EXPECT_TRUE(twice.empty()) << joined(twice) << "Hint: rename one, or put it into an anonymous namespace.";
}

TEST(OneDefinition, IsMissedWhereTwoFilesHaveTheName) {
  struct Case {
    const char *first, *second;
    bool twice;
  };
  for (const Case& one : {
           Case{"struct Batch {", "class Batch final : public Base {", true},
           Case{"enum class RunVariant {", "enum class [[nodiscard]] RunVariant : int {", true},
           Case{"template <typename T> struct Box {", "struct Box {", true},
           Case{"int size(const A& a) {", "long size(const A& b) noexcept {", true},
           Case{"constexpr auto names_of(Kind) {", "inline auto names_of(Kind kind) {", true},
           Case{"void f(std::map<int, int> a, int b) {", "void f(std::map<int, int>, int) {", true},
           Case{"int A::size() const {", "int A::size() const {", true},
           Case{"using Times = int; struct A {", "struct Times {", true},
           Case{"template <class T> using Times = T; struct A {", "using Times = int; struct B {", true},
           Case{"namespace {using Times = int; struct A {", "struct Times {", false},
           Case{"struct Batch;} namespace x{", "struct Batch {", false},
           Case{"namespace {struct Batch {", "struct Batch {}; namespace {", false},
           Case{"namespace inner {struct Batch {", "struct Batch {}; namespace x {", false},
           Case{"template <> struct Box<int> {", "template <> struct Box<long> {", false},
           Case{"static int size(const A& a) {", "int size(const A& a) {", false},
           Case{"int size(const A& a) {", "int size(const B& a) {", false},
           Case{"int size(const A& a) {", "int size(const A& a); struct C {", false},
           Case{"// struct Batch {\nstruct A {", "const char* k = \"struct Batch {\"; struct Batch {", false},
           Case{"void f(Options o = {}); struct A {", "void f(Options o) {", false},
       }) {
    const auto closed = [](const std::string& line) {
      std::string text = "namespace millrace {\n" + line;
      const auto opens =
          std::count(text.begin(), text.end(), '{') - std::count(text.begin(), text.end(), '}');
      const bool quoted = text.find("k = \"") != std::string::npos || text.find("//") != std::string::npos;
      return text + std::string(static_cast<std::size_t>(opens - (quoted ? 1 : 0)), '}');
    };
    const std::vector<std::string> found =
        names_defined_twice({{"a.h", closed(one.first)}, {"b.cpp", closed(one.second)}});
    EXPECT_EQ(!found.empty(), one.twice) << one.first << " | " << one.second << "\n" << joined(found);
  }
}

}  // namespace
}  // namespace millrace
