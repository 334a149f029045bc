// docs/help holds the --help of every command, and docs/commands.md leads to each.
#include <filesystem>

#include "runtime/base/files.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

class Help : public Jobs {};

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
