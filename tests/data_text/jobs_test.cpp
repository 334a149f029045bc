// Files to files: policies, counts, order, and nothing half written.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <atomic>

#include "data/text/bpe_learn.h"
#include "data/text/in_order.h"
#include "data/text/line_reader.h"
#include "data/text/text_jobs.h"
#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

std::string gzipped(const TemporaryFolder& folder, const std::string& name,
                    const std::vector<std::string>& members) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    const gzFile file = ::gzopen(folder.path(name).c_str(), i == 0 ? "wb" : "ab");
    ::gzwrite(file, members[i].data(), static_cast<unsigned>(members[i].size()));
    ::gzclose(file);
  }
  return folder.path(name);
}

std::vector<std::string> lines_of(const std::string& path) {
  LineReader reader(path);
  std::vector<std::string> lines;
  for (std::string_view line; reader.next(line);) lines.emplace_back(line);
  return lines;
}

/// Returns the message of the exception that `call` throws, or "".
template <class Call>
std::string thrown(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

using Lines = std::vector<std::string>;

TEST(LineReader, LinesEndInLineFeedsOnly) {
  const TemporaryFolder folder;
  EXPECT_EQ(lines_of(folder.write("f",
                                  "a\r\n\nb\xE2\x80\xA8"
                                  "c\x0b\nd")),
            (Lines{"a\r", "",
                   "b\xE2\x80\xA8"
                   "c\x0b",
                   "d"}));
  EXPECT_EQ(lines_of(folder.write("f", "")), Lines{});
  EXPECT_EQ(lines_of(folder.write("f", "\n")), Lines{""});
  EXPECT_EQ(lines_of(folder.write("f",
                                  "\xEF\xBB\xBF"
                                  "a\n")),
            Lines{"a"})
      << "byte-order mark";
  const std::string longer(700'000, 'x');
  EXPECT_EQ(lines_of(folder.write("f", "a\n" + longer + "\nb\n")), (Lines{"a", longer, "b"}));
  EXPECT_EQ(lines_of(gzipped(folder, "g", {"a\nb", "c\n", longer + "\nd"})), (Lines{"a", "bc", longer, "d"}));
}

TEST(LineReader, WrongFilesAreRefused) {
  const TemporaryFolder folder;
  const auto refusal = [](const std::string& path) { return thrown([&] { lines_of(path); }); };
  EXPECT_NE(refusal(folder.path("absent")).find("cannot be opened"), std::string::npos);
  EXPECT_NE(refusal(folder.path()).find("no regular file"), std::string::npos);
  ASSERT_EQ(::mkfifo(folder.path("fifo").c_str(), 0600), 0);
  EXPECT_NE(refusal(folder.path("fifo")).find("no regular file"), std::string::npos);
  std::string text;
  RandomStream random(1);
  for (int i = 0; i < 200'000; ++i) text += static_cast<char>(i % 50 == 49 ? '\n' : 'a' + random.below(26));
  gzipped(folder, "g", {text});
  std::string packed = folder.read("g");
  EXPECT_NE(refusal(folder.write("cut", packed.substr(0, packed.size() / 2))).find("cut off (after line"),
            std::string::npos);
  packed[packed.size() / 2] ^= 0x55;
  EXPECT_NE(refusal(folder.write("bad", packed)).find("the gzip stream is"), std::string::npos);
  EXPECT_NE(refusal(folder.write("long", "a\n" + std::string(kMostLineBytes + 300'000, 'x')))
                .find(":2: the line is"),
            std::string::npos);
}

TEST(InOrder, TheEarliestFailureIsThrown) {
  for (const int threads : {1, 2, 5}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<int> part(threads), taken;
      int next = 0;
      const auto at = [&](int t) -> int& { return part[t]; };
      const std::string what = thrown([&] {
        run_in_order(threads, {.read = [&](int t) { return (at(t) = next++) < 100; },
                               .work =
                                   [&](int t) {
                                     if (at(t) == 37 || at(t) == 38 || at(t) == 41)
                                       throw DataError(std::to_string(at(t)));
                                   },
                               .take = [&](int t) { taken.push_back(at(t)); }});
      });
      EXPECT_EQ(what, "37");
      ASSERT_EQ(taken.size(), 37u);
      for (int i = 0; i < 37; ++i) EXPECT_EQ(taken[i], i);
    }
  }
}

std::string drawn_text(std::uint64_t seed, int lines) {
  RandomStream random(seed);
  std::string text;
  for (int i = 0; i < lines; ++i) {
    for (auto words = random.below(12); words > 0; --words) {
      for (auto letters = 1 + random.below(7); letters > 0; --letters)
        text += static_cast<char>('a' + random.below(5));
      text += words > 1 ? " " : "";
    }
    text += '\n';
  }
  return text;
}

struct Made {
  std::string codes, split, cleaned, tokens;
  TextReport report;
};

/// Everything there is to do, with so many threads and small blocks.
Made made_with(int threads, const TemporaryFolder& folder) {
  Made made;
  TextRun run{.inputs = {folder.path("a"), folder.path("b")}, .threads = threads, .block_bytes = 3000};
  TextReport report;
  made.codes = bpe_codes_text(learn_bpe(count_words(run, report).words(), {.merges = 60}));
  const auto codes = std::make_shared<const BpeCodes>(*BpeCodes::parse(made.codes, "codes"));
  const Lines out{folder.path("o1"), folder.path("o2")};
  apply_bpe_to_files(run, *codes, out, Existing::Replaced);
  made.split = folder.read("o1") + folder.read("o2");
  clean_files(run, {.min_words = 2, .max_words = 9, .ratio = 3}, out, Existing::Replaced);
  made.cleaned = folder.read("o1") + folder.read("o2");
  const auto vocabulary = std::make_shared<const Vocabulary>(
      *Vocabulary::parse("a\na@@\nb@@\nc@@\ne\nab@@\n", TokenKind::Bpe, "v"));
  const EncodedSide side{bpe_segmenter(codes, vocabulary), vocabulary};
  made.report = encode_files(run, {.min_tokens = 1, .max_tokens = 20}, {side, side}, out, Existing::Replaced);
  made.tokens = folder.read("o1") + folder.read("o2");
  return made;
}

TEST(TextJobs, AnyNumberOfThreadsMakesTheSame) {
  const TemporaryFolder folder;
  folder.write("a", drawn_text(1, 2000));
  folder.write("b", drawn_text(2, 2000));
  const Made one = made_with(1, folder);
  EXPECT_GT(one.report.kept, 500u);
  EXPECT_GT(one.report.dropped[static_cast<std::size_t>(DropReason::Long)], 100u);
  EXPECT_GT(one.report.dropped[static_cast<std::size_t>(DropReason::Empty)], 100u);
  for (const int threads : {2, 3, 8}) {
    const Made more = made_with(threads, folder);
    EXPECT_EQ(more.codes, one.codes);
    EXPECT_EQ(more.split, one.split);
    EXPECT_EQ(more.cleaned, one.cleaned);
    EXPECT_TRUE(more.tokens == one.tokens);
    EXPECT_EQ(more.report.dropped, one.report.dropped);
    EXPECT_EQ(more.report.unknown, one.report.unknown);
  }
}

TEST(TextJobs, CleaningLeavesOutWholeLinesAndSaysWhy) {
  const TemporaryFolder folder;
  const TextRun run{.inputs = {folder.write("a", "a  b\t\n\n1 2 3 4 5\nx\nü y\nlonger y\n\xE2\x82\xAC z\n"),
                               folder.write("b", " c d\nx\ny z\nx y z z\nh i\nh i\nh i\n")}};
  const TextReport report = clean_files(run, {.max_words = 4, .ratio = 3, .longest_word = 5, .latin1 = true},
                                        {folder.path("ca"), folder.path("cb")}, Existing::Refused);
  EXPECT_EQ(folder.read("ca"), "a b\nü y\n");
  EXPECT_EQ(folder.read("cb"), "c d\nh i\n");
  EXPECT_EQ(report.lines, 7u);
  EXPECT_EQ(report.kept, 2u);
  EXPECT_EQ(report.dropped, (std::array<std::uint64_t, kNumDropped>{0, 1, 0, 1, 1, 1, 1}));
}

TEST(TextJobs, InvalidBytesAreRefusedReplacedOrDropped) {
  const TemporaryFolder folder;
  TextRun run{.inputs = {folder.write("a",
                                      "good\nb\xff\xfe"
                                      "ad\ngood\n"),
                         folder.write("b", "1\n2\n3\n")}};
  const CleanOptions options;
  const Lines out{folder.path("ca"), folder.path("cb")};
  const std::string refusal = thrown([&] { clean_files(run, options, out, Existing::Refused); });
  EXPECT_EQ(refusal, folder.path("a") + ":2: byte 2 (0xff) is no UTF-8");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2)
      << "nothing half written";
  run.rules.invalid = InvalidUtf8::Replace;
  EXPECT_EQ(clean_files(run, options, out, Existing::Refused).replaced_bytes, 2u);
  EXPECT_EQ(folder.read("ca"),
            "good\nb\xEF\xBF\xBD\xEF\xBF\xBD"
            "ad\ngood\n");
  run.rules.invalid = InvalidUtf8::Drop;
  EXPECT_EQ(clean_files(run, options, out, Existing::Replaced).dropped[0], 1u);
  EXPECT_EQ(folder.read("cb"), "1\n3\n");
}

TEST(TextJobs, ParallelFilesHaveAsManyLines) {
  const TemporaryFolder folder;
  const TextRun run{.inputs = {folder.write("a", "1\n2\n3\n"), folder.write("b", "1\n2\n3\n4\n5")}};
  EXPECT_EQ(thrown([&] {
              clean_files(run, {}, {folder.path("x"), folder.path("y")}, Existing::Refused);
            }),
            "parallel files have unequal numbers of lines: " + folder.path("a") + " has 3, " +
                folder.path("b") + " has 5");
}

TEST(TextJobs, OutputsAreNotTakenFromAnybody) {
  const TemporaryFolder folder;
  const TextRun run{.inputs = {folder.write("a", "1\n")}};
  folder.write("there", "mine");
  const auto refusal = [&](const std::string& out) {
    return thrown([&] { clean_files(run, {}, {out}, Existing::Refused); });
  };
  EXPECT_NE(refusal(folder.path("there")).find("exists already"), std::string::npos);
  EXPECT_NE(refusal(folder.path("a")).find("an input and an output"), std::string::npos);
  EXPECT_NE(refusal(folder.path("./sub/../a")).find("an input and an output"), std::string::npos);
  EXPECT_EQ(folder.read("there"), "mine");
  TextRun two = run;
  two.inputs.push_back(folder.write("b", "1\n"));
  EXPECT_NE(thrown([&] {
              clean_files(two, {}, {folder.path("o"), folder.path("o")}, Existing::Replaced);
            }).find("two outputs"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace
