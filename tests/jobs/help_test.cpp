// docs/help holds the --help of every command, docs/commands.md leads to each, and pages use flags that
// exist.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>

#include "runtime/base/files.h"
#include "runtime/base/text.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

class Help : public Jobs {};

/// The commands of a page: what stands between fences, with continued lines joined, and between backquotes.
std::vector<std::string> commands_in(const std::string& page) {
  std::vector<std::string> commands;
  std::istringstream lines(page);
  bool fenced = false, goes_on = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      fenced = !fenced;
    } else if (!fenced) {
      const std::vector<std::string> parts = split(line, '`');
      for (std::size_t i = 1; i < parts.size(); i += 2) commands.push_back(parts[i]);
      continue;
    } else if (goes_on) {
      commands.back() += line;
    } else {
      commands.push_back(line);
    }
    goes_on = fenced && line.ends_with("\\");
    if (goes_on && !commands.empty()) commands.back().pop_back();
  }
  return commands;
}

/// The words behind "millrace" up to a comment, a pipe or another command. Empty: there is no "millrace".
std::vector<std::string> words_behind_millrace(const std::string& command) {
  std::vector<std::string> words;
  bool inside = false;
  for (const std::string& word : words_of(command, ' ')) {
    if (inside && (word == "|" || word == "--" || word == "&&" || word.starts_with('#'))) break;
    if (inside) words.push_back(word);
    inside = inside || word == "millrace" || word.ends_with("/millrace") || word == "<(millrace";
  }
  return words;
}

TEST_F(Help, EveryScriptSaysWhatItIsFor) {
  int scripts = 0;
  for (const auto& entry : fs::directory_iterator(MILLRACE_SOURCE_DIR "/scripts")) {
    const bool runs = (entry.status().permissions() & fs::perms::owner_exec) != fs::perms::none;
    if (!entry.is_regular_file() || !runs) continue;
    const std::string said = (folder_ / "said").string();
    EXPECT_EQ(std::system(("timeout 60 " + entry.path().string() + " --help >" + said).c_str()), 0)
        << entry.path();
    EXPECT_GE(bytes("said").size(), 60u) << entry.path();
    ++scripts;
  }
  EXPECT_GE(scripts, 10);
}

TEST_F(Help, PagesUseFlagsThatTheirCommandsHave) {
  const fs::path docs = MILLRACE_SOURCE_DIR "/docs";
  std::vector<fs::path> pages{MILLRACE_SOURCE_DIR "/README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(docs))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  const auto known_by = [](const std::string& help, const std::string& flag) {
    for (std::size_t at = help.find(flag); at != std::string::npos; at = help.find(flag, at + 1)) {
      const char next = help[at + flag.size()];
      if (std::isalnum(static_cast<unsigned char>(next)) == 0 && next != '-') return true;
    }
    return false;
  };
  int checked = 0;
  for (const fs::path& path : pages) {
    const auto page = read_file(path.string());
    ASSERT_TRUE(page) << path;
    for (const std::string& command : commands_in(*page)) {
      const std::vector<std::string> words = words_behind_millrace(command);
      std::string name, help;  // of the longest command that the words begin with
      for (std::size_t i = 0; i < words.size() && i < 3; ++i) {
        name += (i > 0 ? "-" : "") + words[i];
        if (const auto text = read_file((docs / "help" / (name + ".txt")).string())) help = *text;
      }
      for (const std::string& word : help.empty() ? std::vector<std::string>() : words) {
        std::string flag = word.substr(0, word.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_"));
        std::ranges::replace(flag, '_', '-');
        // docs/commands.md shows what --train-batch-size is answered with.
        if (!flag.starts_with("--") || flag.size() < 3 || flag == "--train-batch-size") continue;
        EXPECT_TRUE(known_by(help, flag)) << path << ": " << flag << " in: " << command;
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 500);
}

TEST_F(Help, OfEveryCommandStandsInTheDocs) {
  const std::string source = MILLRACE_SOURCE_DIR, fresh = (folder_ / "help").string();
  ASSERT_EQ(
      std::system(("MILLRACE=" MILLRACE_BIN_DIR "/millrace " + source + "/scripts/help " + fresh).c_str()),
      0);
  const auto index = read_file(source + "/docs/commands.md");
  ASSERT_TRUE(index);
  int commands = 0;
  for (const auto& entry : fs::directory_iterator(fresh)) {
    const std::string name = entry.path().filename().string();
    const auto now = read_file(entry.path().string()), kept = read_file(source + "/docs/help/" + name);
    EXPECT_TRUE(kept && *kept == *now)
        << "docs/help/" << name << " is not what the program says: run scripts/help";
    const bool led_to = index->find("](help/" + name + ")") != std::string::npos;
    EXPECT_TRUE(led_to) << "docs/commands.md does not lead to help/" << name;
    ++commands;
  }
  EXPECT_GE(commands, 31);
  for (const auto& entry : fs::directory_iterator(source + "/docs/help"))
    EXPECT_TRUE(fs::exists(fs::path(fresh) / entry.path().filename())) << entry.path() << " is of no command";
}

}  // namespace
}  // namespace millrace
