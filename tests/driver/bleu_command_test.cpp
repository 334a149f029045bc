// `millrace bleu` as users type it: what it prints, what it refuses and with which exit code.
#include "driver/bleu/bleu_command.h"

#include <gtest/gtest.h>

#include "runtime/base/json.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

struct Said {
  int code = -1;
  std::string out, err;
};

class BleuCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_.write("hyp", "The dog bit the man.\nIt wasn't surprising.\nThe man had just bitten him.\n");
    folder_.write("a", "The dog bit the man.\nIt was not unexpected.\nThe man bit him first.\n");
    folder_.write("b", "The dog had bit the man.\nNo one was surprised.\nThe man had bitten the dog.\n");
    folder_.write("tabs",
                  "The dog bit the man.\tThe dog had bit the man.\r\nIt was not unexpected.\tNo one was "
                  "surprised.\nThe man bit him first.\tThe man had bitten the dog.");
  }
  /// `@name` stands for a file of the folder.
  Said run(std::vector<std::string> args) const {
    for (std::string& arg : args)
      if (arg.starts_with('@')) arg = folder_.path(arg.substr(1));
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Said said;
    said.code = bleu_command(args);
    std::fflush(stdout);
    said.out = testing::internal::GetCapturedStdout();
    said.err = testing::internal::GetCapturedStderr();
    return said;
  }
  Json json(std::vector<std::string> args) const {
    args.insert(args.end(), {"--format", "json"});
    const Said said = run(args);
    EXPECT_EQ(said.code, 0) << said.err;
    const Result<Json> parsed = parse_json(said.out, "stdout");
    EXPECT_TRUE(parsed) << said.out;
    return parsed ? *parsed : Json();
  }
  void expect_refusal(const std::vector<std::string>& args, int code, const std::string& part) const {
    const Said said = run(args);
    EXPECT_EQ(said.code, code) << part;
    EXPECT_EQ(said.out, "") << part;
    EXPECT_NE(said.err.find(part), std::string::npos) << said.err;
  }
  TemporaryFolder folder_;
};

TEST_F(BleuCommand, PrintsTheLineOfEachProgram) {
  const std::string numbers = " 82.4/50.0/45.5/37.5 (BP = 0.943 ratio = 0.944 hyp_len = 17 ref_len = 18)\n";
  EXPECT_EQ(run({"@hyp", "@a", "@b"}).out,
            "BLEU|nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|impl:millrace-0.1.0 = 48.53" + numbers);
  EXPECT_EQ(run({"@hyp", "@a", "@b", "--bleu-compat", "1.2.10", "-w1"}).out,
            "BLEU+case.mixed+numrefs.2+smooth.exp+tok.13a+impl.millrace-0.1.0-as-1.2.10 = 48.5" + numbers);
  EXPECT_EQ(run({"@hyp", "@a", "@b", "--bleu-compat", "multi-bleu"}).out,
            "BLEU = 49.19, 71.4/54.5/50.0/40.0 (BP=0.931, ratio=0.933, hyp_len=14, ref_len=15)\n");
  EXPECT_EQ(run({"@hyp", "@a", "@b", "--bleu-compat", "mteval", "--preserve-case"}).out,
            "BLEU score = 0.4853\n");
  EXPECT_EQ(run({"@hyp", "@a", "@b", "-b", "-w", "4"}).out, "48.5308\n");
}

TEST_F(BleuCommand, ReadsLineEndsAsEachProgramDoes) {
  folder_.write("wide", "a b c d \u3000\r\n");
  folder_.write("plain", "a b c d\n");
  EXPECT_NE(run({"@wide", "@plain", "--bleu-compat", "multi-bleu"}).out.find("hyp_len=5"), std::string::npos);
  EXPECT_NE(run({"@wide", "@plain"}).out.find("hyp_len = 4"), std::string::npos);
}

TEST_F(BleuCommand, JsonHasSacrebleusNames) {
  const Json result = json({"@hyp", "@a", "@b", "--smooth", "floor"});
  EXPECT_NEAR(result.find("score")->as_double(), 48.530827009929865, 1e-9);
  EXPECT_EQ(result.find("name")->as_string(), "BLEU");
  EXPECT_EQ(result.find("smooth")->as_string(), "floor[0.10]");
  EXPECT_EQ(result.find("nrefs")->as_string(), "2");
  EXPECT_EQ(result.find("sys_len")->as_int(), 17);
  EXPECT_EQ(result.find("ref_len")->as_int(), 18);
  EXPECT_EQ(result.find("counts")->items()[3].as_int(), 3);
  EXPECT_EQ(result.find("totals")->items()[0].as_int(), 17);
  EXPECT_NEAR(result.find("precisions")->items()[1].as_double(), 50, 1e-9);
  EXPECT_NEAR(result.find("bp")->as_double(), 0.9428731438548749, 1e-12);
}

TEST_F(BleuCommand, ReferencesMayStandInOneFileBetweenTabs) {
  const std::string both = run({"@hyp", "@a", "@b"}).out;
  EXPECT_EQ(run({"@hyp", "@tabs", "--num-refs", "2"}).out, both) << "CRLF and a last line without an end too";
  EXPECT_EQ(run({"@hyp", "@tabs", "--num-refs", "var"}).out, both);
  folder_.write("ragged",
                "The dog bit the man.\tThe dog had bit the man.\nIt was not unexpected.\n\t\tThe man\n");
  EXPECT_NE(run({"@hyp", "@ragged", "--num-refs", "var"}).out.find("nrefs:var"), std::string::npos);
  expect_refusal({"@hyp", "@ragged", "--num-refs", "2"}, 3,
                 "ragged:2: has 1 references between tabs, expected 2");
  expect_refusal({"@hyp", "@a", "@b", "--num-refs", "2"}, 2, "splits one file");
}

TEST_F(BleuCommand, ScoresEachSentence) {
  const Json result = json({"@hyp", "@a", "@b", "--sentence"});
  EXPECT_EQ(result.find("eff")->as_string(), "yes");
  ASSERT_EQ(result.find("sentences")->size(), 3u);
  EXPECT_NEAR(result.find("sentences")->items()[0].find("score")->as_double(), 100, 1e-9);
  const std::string lines = run({"@hyp", "@a", "@b", "--sentence", "-b"}).out;
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
}

TEST_F(BleuCommand, ComparesSystems) {
  folder_.write("other", "The dog bit the man.\nIt was not surprising.\nThe man bit him.\n");
  const Json result = json({"@hyp", "@a", "--system", "@other", "--paired-ar", "--paired-ar-n", "200"});
  EXPECT_EQ(result.find("ar")->as_string(), "200");
  EXPECT_EQ(result.find("seed")->as_string(), "12345");
  const Json::Array& systems = result.find("systems")->items();
  ASSERT_EQ(systems.size(), 2u);
  EXPECT_TRUE(systems[0].find("p_value")->is_null());
  EXPECT_GT(systems[1].find("p_value")->as_double(), 0);
  const Said table = run({"@hyp", "@a", "--system", "@other", "--paired-bs"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("baseline"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("nrefs:1|bs:1000|seed:12345|"), std::string::npos);
  EXPECT_EQ(run({"@hyp", "@a", "--system", "@other"}).code, 0);
  EXPECT_NE(run({"@hyp", "@a", "--confidence"}).out.find("(μ = "), std::string::npos);
}

TEST_F(BleuCommand, TakesAModelsWords) {
  folder_.write("words",
                "The do@@ g b@@ it the man . <\\s> <pad>\nIt was n&apos;t sur@@ prising .\nThe man h@@ ad "
                "just bit@@ ten him .\n");
  folder_.write("written", "The dog bit the man.\nIt was n't surprising.\nThe man had just bitten him.\n");
  EXPECT_EQ(run({"@words", "@a", "@b", "--detokenize"}).out, run({"@written", "@a", "@b"}).out);
}

TEST_F(BleuCommand, SaysWhatIsWrongWithTheTexts) {
  folder_.write("short", "one line\n");
  expect_refusal({"@hyp", "@a", "@short"}, 3,
                 "/short: has 1 line, but " + folder_.path("hyp") + " has 3 lines");
  folder_.write("latin1",
                "ok\nDer Stra\xdf"
                "e\nok\n");
  expect_refusal({"@latin1", "@a"}, 3, "latin1:2: is not UTF-8: byte 9 of the line is 0xdf");
  folder_.write("first", "\xff\n");
  expect_refusal({"@first", "@short"}, 3, "first:1: is not UTF-8: byte 1 of the line is 0xff");
  folder_.write("packed.gz", "\x1f\x8b\x08");
  expect_refusal({"@packed.gz", "@a"}, 3, "| millrace bleu - ...`");
  folder_.write("empty", "");
  expect_refusal({"@empty", "@empty"}, 3, "has no line");
  expect_refusal({"@absent", "@a"}, 3, "/absent: ");
  folder_.write("blank", "\n\n\n");
  EXPECT_EQ(run({"@blank", "@a", "-b"}).out, "0.00\n");
  expect_refusal({"@blank", "@a", "--bleu-compat", "multi-bleu"}, 3, "has no word");
}

TEST_F(BleuCommand, RefusesWhatDoesNotGoTogether) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--smooth", "exq"}, "unknown smoothing 'exq'. Hint: did you mean 'exp'?"},
      {{"--smooth-value", "1"}, "floor and add-k only"},
      {{"--max-order", "0"}, "from 1 to 16"},
      {{"--tokenize", "zh"}, "13a, intl, char, none"},
      {{"--bleu-compat", "1.2.10", "--smooth", "add-k"}, "--bleu-compat 1.2.10"},
      {{"--bleu-compat", "multi-bleu", "--tokenize", "13a"}, "--bleu-compat multi-bleu"},
      {{"--bleu-compat", "mteval", "--confidence"}, "--bleu-compat mteval"},
      {{"--preserve-case"}, "mteval's -c"},
      {{"--paired-bs"}, "--system FILE"},
      {{"--paired-bs-n", "5"}, "needs --paired-bs"},
      {{"--sentence", "--confidence"}, "--sentence"},
      {{"--system", "@hyp"}, "given twice"},
      {{"--system", "-", "-"}, "stdin"},
      {{"--num-refs", "two"}, "not an integer"},
      {{"--format", "yaml"}, "one of: text, json"},
  };
  for (const auto& [flags, part] : cases) {
    std::vector<std::string> args{"@hyp", "@a"};
    args.insert(args.end(), flags.begin(), flags.end());
    expect_refusal(args, 2, part);
  }
  expect_refusal({"@hyp"}, 2, "REF...: is missing");
  expect_refusal({}, 2, "HYP: is missing");
}

TEST_F(BleuCommand, NotesWhatLooksLikeAMistake) {
  std::string tokens;
  for (int i = 0; i < 100; ++i) tokens += "a b .\n";
  folder_.write("tokens", tokens);
  EXPECT_NE(run({"@tokens", "@tokens"}).err.find("100 lines end in ' .'"), std::string::npos);
  EXPECT_EQ(run({"@tokens", "@tokens", "--force"}).err, "");
  EXPECT_EQ(run({"@tokens", "@tokens", "--tokenize", "none"}).err, "");
  folder_.write("mark", "\xef\xbb\xbfThe dog\n");
  EXPECT_NE(run({"@mark", "@mark"}).err.find("byte order mark"), std::string::npos);
}

}  // namespace
}  // namespace millrace
