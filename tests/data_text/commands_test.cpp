// `millrace data text` as users type it: from raw text to token files and back.
#include <gtest/gtest.h>

#include <cstdlib>

#include "data/text/line_reader.h"
#include "data/text/word_counts.h"
#include "driver/text/text_command.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

struct Answer {
  int code = -1;
  std::string out, error;
};

Answer text(const std::vector<std::string>& args) {
  Answer answer;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    answer.code = data_text_command(args);
  } catch (const Error& error) {
    answer.code = static_cast<int>(error.code());
    std::fprintf(stderr, "%s\n", error.what());
  }
  answer.out = testing::internal::GetCapturedStdout();
  answer.error = testing::internal::GetCapturedStderr();
  return answer;
}

/// The text of a file but for repeated spaces and those at the ends of lines.
std::string with_single_spaces(const std::string& path) {
  std::string text;
  LineReader reader(path);
  for (std::string_view line; reader.next(line); text += '\n') {
    bool first = true;
    for_each_word(line, [&](std::string_view word) {
      text += (first ? "" : " ") + std::string(word);
      first = false;
    });
  }
  return text;
}

/// Learns on both sides, encodes them, and has the text back; `train`, `codes` and more lie in `folder`.
void expect_round_trip(const TemporaryFolder& folder, const std::vector<std::string>& sides,
                       const std::string& merges) {
  const auto with = [&](std::vector<std::string> args, const std::vector<std::string>& more) {
    args.insert(args.end(), more.begin(), more.end());
    const Answer answer = text(args);
    EXPECT_EQ(answer.code, 0) << args[0] << answer.error;
    return answer.out;
  };
  const std::string codes = folder.path("codes"), vocabulary = folder.path("vocab");
  with({"learn-bpe", "-o", codes, "--merges", merges}, sides);
  with({"vocab", "-o", vocabulary, "-c", codes}, sides);
  const std::vector<std::string> outputs{folder.path("0.tokens"), folder.path("1.tokens")};
  const std::string report =
      with({"encode", "-c", codes, "-v", vocabulary, "-o", outputs[0], "-o", outputs[1], "--format", "json"},
           sides);
  const Result<Json> json = parse_json(report, "report");
  ASSERT_TRUE(json) << report;
  for (std::size_t i = 0; i < 2; ++i) {
    with({"check", outputs[i], "-v", vocabulary}, {});
    with({"decode", outputs[i], "-v", vocabulary, "-o", folder.path("back")}, {});
    EXPECT_TRUE(folder.read("back") == with_single_spaces(sides[i])) << sides[i];
    EXPECT_GT(folder.read("back").size(), 1000u);
    std::filesystem::remove(folder.path("back"));
  }
}

TEST(TextCommands, RawTextComesBackFromTokenFiles) {
  const TemporaryFolder folder;
  std::string one, other;
  for (int i = 0; i < 300; ++i) {
    one += "the  cat number " + std::to_string(i) + " sat on the Mat, ß ü 中文 ok\n";
    other += "die Katze Nummer " + std::to_string(i * 7) + " saß auf  der Matte\n";
  }
  expect_round_trip(folder, {folder.write("a", one), folder.write("b", other)}, "100");
}

TEST(Multi30k, RawTextComesBackFromTokenFiles) {
  const char* data = std::getenv("MILLRACE_DATA");
  if (!data) GTEST_SKIP() << "MILLRACE_DATA is not set";
  const TemporaryFolder folder;
  const std::string start = std::string(data) + "/multi30k/train.";
  expect_round_trip(folder, {start + "de.gz", start + "en.gz"}, "4000");
}

TEST(TextCommands, WrongUseHasItsExitCode) {
  const TemporaryFolder folder;
  const std::string input = folder.write("in", "a b c\n"), vocabulary = folder.write("v", "a\nb\n");
  const std::string out = folder.path("out");
  EXPECT_EQ(text({}).code, 2);
  EXPECT_EQ(text({"encod"}).code, 2);
  EXPECT_EQ(text({"encode", input, "-o", out}).code, 2) << "no vocabulary";
  EXPECT_EQ(text({"encode", input, "-o", out, "-v", vocabulary, "--wordpiece", vocabulary}).code, 2);
  EXPECT_EQ(text({"encode", input, "-o", out, "--wordpiece", vocabulary, "-c", vocabulary}).code, 2);
  EXPECT_EQ(text({"encode", input, input, "-o", out, "-v", vocabulary}).code, 2) << "an output for each";
  EXPECT_EQ(text({"encode", input, "-o", out, "-v", vocabulary, "--invalid-utf8", "x"}).code, 2);
  EXPECT_EQ(text({"encode", input, "-o", out, "-v", folder.path("absent")}).code, 3);
  EXPECT_EQ(text({"encode", input, "-o", out, "--sentencepiece", vocabulary}).code, 3);
  EXPECT_EQ(text({"encode", input, "-o", out, "--wordpiece", vocabulary}).code, 3);
  EXPECT_EQ(text({"encode", folder.path("absent"), "-o", out, "-v", vocabulary}).code, 3);
  EXPECT_EQ(text({"apply-bpe", input, "-o", out, "-c", vocabulary}).code, 3);
  EXPECT_EQ(text({"decode", input, "-v", vocabulary}).code, 3);
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_EQ(text({"encode", input, "-o", out, "-v", vocabulary}).code, 0);
  EXPECT_EQ(text({"encode", input, "-o", out, "-v", vocabulary}).code, 2) << "exists";
  EXPECT_EQ(text({"encode", input, "-o", out, "-v", vocabulary, "--overwrite"}).code, 0);
  const Answer decoded = text({"decode", out, "-v", vocabulary});
  EXPECT_EQ(decoded.out, "a b <unk>\n");
  const Answer other = text({"decode", out, "-v", folder.write("w", "a\nc\n")});
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.error.find("another vocabulary"), std::string::npos);
}

TEST(TextCommands, EmptyFilesAreFilesWithoutLines) {
  const TemporaryFolder folder;
  const std::string input = folder.write("in", ""), vocabulary = folder.write("v", "a\n");
  EXPECT_EQ(text({"learn-bpe", input, "-o", folder.path("codes")}).code, 0);
  EXPECT_EQ(folder.read("codes"), "#version: 0.2\n");
  EXPECT_EQ(text({"apply-bpe", input, "-c", folder.path("codes"), "-o", folder.path("split")}).code, 0);
  EXPECT_EQ(folder.read("split"), "");
  EXPECT_EQ(text({"encode", input, "-v", vocabulary, "-o", folder.path("t")}).code, 0);
  EXPECT_EQ(text({"decode", folder.path("t"), "-v", vocabulary}).out, "");
}

TEST(TextCommands, DocsDescribeEveryFlagAndExamplesParse) {
  std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + "/docs/text.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  for (const CommandSpec& spec : data_text_specs()) {
    const std::size_t start = page.find("## millrace " + spec.command + "\n");
    ASSERT_NE(start, std::string::npos) << spec.command;
    const std::string section = page.substr(start, page.find("\n## ", start) - start);
    for (const Flag& flag : spec.flags) {
      // The page describes flags that prepare lines once, for all commands.
      const std::string shown = "--" + flag.name + (flag.value.empty() ? "" : " " + flag.value);
      EXPECT_NE((flag.group.empty() ? section : page).find(shown), std::string::npos)
          << spec.command << shown;
    }
    for (const std::string& example : spec.examples) {
      std::istringstream words(example);
      std::vector<std::string> args;
      for (std::string word; words >> word;) args.push_back(word);
      EXPECT_TRUE(parse_arguments(spec, {args.begin() + 4, args.end()})) << example;
    }
  }
}

// Codes, segmentation and numbers of the tools of others: tests/reference/install makes the environment.
TEST(TextReference, EqualsTheFieldsTokenisers) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python) GTEST_SKIP() << "tests/reference/install makes it";
  const TemporaryFolder folder;
  const std::string command = std::string(python) + " " + MILLRACE_SOURCE_DIR +
                              "/tests/reference/compare_text.py " + MILLRACE_BIN_DIR + "/millrace " +
                              folder.path();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace millrace
