// Text files as editors of other systems write them: a byte-order mark in front, blank lines at the end.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "data/text/bpe.h"
#include "data/text/line_reader.h"
#include "data/text/vocabulary.h"
#include "driver/hosts/host_list.h"
#include "runtime/base/byte_order_mark.h"
#include "runtime/base/json.h"
#include "runtime/plan/device_table.h"
#include "runtime/plan/pipedream_formats.h"
#include "runtime/schedule/csv.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

enum class BlankEnd { Nothing, NotSaid };

struct TextReader {
  const char* name;
  std::string text;
  /// What was read, in words; nothing: it was refused.
  std::function<std::optional<std::string>(const std::string& text)> read;
  BlankEnd blank_end = BlankEnd::NotSaid;
};

std::string split_by(const BpeCodes& codes) {
  std::string out;
  BpeCache cache(codes);
  apply_bpe(cache, "the cat sat", out);
  return out;
}

const std::string kCodes = "#version: 0.2\nt h\nth e</w>\na t</w>\n";

std::function<std::optional<std::string>(const std::string&)> vocabulary(TokenKind kind) {
  return [kind](const std::string& text) -> std::optional<std::string> {
    const Result<Vocabulary> read = Vocabulary::parse(text, kind, "v", 0);
    return read ? std::optional(read->fingerprint().hex()) : std::nullopt;
  };
}

std::vector<TextReader> text_readers() {
  static const TemporaryFolder folder;
  return {
      {"codes", kCodes,
       [](const std::string& text) -> std::optional<std::string> {
         const Result<BpeCodes> codes = BpeCodes::parse(text, "c", -1);
         return codes ? std::optional(split_by(*codes)) : std::nullopt;
       },
       BlankEnd::Nothing},
      {"vocabulary of codes", "the 9\nat@@ 3\n",
       [](const std::string& text) -> std::optional<std::string> {
         BpeCodes codes = *BpeCodes::parse(kCodes, "c", -1);
         if (!codes.restrict_to(text, "v", 1)) return std::nullopt;
         return split_by(codes);
       },
       BlankEnd::Nothing},
      {"vocabulary", "the\ncat\n", vocabulary(TokenKind::Bpe), BlankEnd::Nothing},
      {"vocabulary with counts", "the 4\ncat 2\n", vocabulary(TokenKind::Bpe), BlankEnd::Nothing},
      {"word pieces", "[PAD]\n[UNK]\nthe\n", vocabulary(TokenKind::WordPiece), BlankEnd::Nothing},
      {"pieces", "<unk>\t0\n<s>\t0\n</s>\t0\nthe\t-1\n", vocabulary(TokenKind::SentencePiece),
       BlankEnd::Nothing},
      {"lines of text", "the cat\nsat\n",
       [](const std::string& text) -> std::optional<std::string> {
         LineReader lines(folder.write("lines", text));
         std::string all;
         for (std::string_view line; lines.next(line);) (all += line) += '|';
         return all;
       }},
      {"JSON", "{\"a\": [1]}",
       [](const std::string& text) -> std::optional<std::string> {
         const Result<Json> json = parse_json(text, "j");
         return json ? std::optional(json->dump() + json->find("a")->where()) : std::nullopt;
       },
       BlankEnd::Nothing},
      {"YAML", "a: [1]\n",
       [](const std::string& text) -> std::optional<std::string> {
         const Result<Json> json = parse_yaml(text, "y");
         return json ? std::optional(json->dump()) : std::nullopt;
       },
       BlankEnd::Nothing},
      {"hosts", "node1:2\nnode2\n",
       [](const std::string& text) -> std::optional<std::string> {
         const Result<std::vector<HostEntry>> hosts = parse_hosts("@" + folder.write("hosts", text));
         if (!hosts) return std::nullopt;
         std::string all;
         for (const HostEntry& host : *hosts) all += host.name + ":" + std::to_string(host.slots) + " ";
         return all;
       },
       BlankEnd::Nothing},
      {"graph.txt",
       "node1 -- Linear -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=8.0, "
       "parameter_size=4.000\n",
       [](const std::string& text) -> std::optional<std::string> {
         const Result<PipeDreamGraph> graph = parse_pipedream_graph(text, "g");
         return graph ? std::optional(to_text(*graph)) : std::nullopt;
       },
       BlankEnd::Nothing},
      {"table of devices", "v100\t16\tresnet50\t64\t224\t1\t0.1\t0.3\n",
       [](const std::string& text) -> std::optional<std::string> {
         const Result<DeviceTable> table = DeviceTable::parse(text, "d");
         return table ? std::optional(table->devices().front()) : std::nullopt;
       },
       BlankEnd::Nothing},
      {"schedule", "0F0,0B0\n1F0,1B0\n",
       [](const std::string& text) -> std::optional<std::string> {
         const Result<CsvSchedule> read = read_schedule_csv(text, "s");
         return read ? std::optional(std::to_string(read->schedule.ranks.size())) : std::nullopt;
       },
       BlankEnd::Nothing},
  };
}

TEST(TextFiles, AByteOrderMarkAndBlankLinesAtTheEndChangeNothing) {
  for (const TextReader& one : text_readers()) {
    const std::optional<std::string> plain = one.read(one.text);
    ASSERT_TRUE(plain) << one.name;
    const std::string marked = std::string(kByteOrderMark) + one.text;
    EXPECT_EQ(one.read(marked), plain) << one.name;
    if (one.blank_end == BlankEnd::Nothing) {
      EXPECT_EQ(one.read(one.text + "\n\n"), plain) << one.name;
      EXPECT_EQ(one.read(marked + "\n"), plain) << one.name;
    }
  }
}

/// A line is missing or too many, and the numbers of all tokens behind it depend on that.
TEST(TextFiles, ABlankLineWithinCodesOrAVocabularyIsRefusedWithItsPlace) {
  EXPECT_EQ(BpeCodes::parse("t h\n\nth e\n", "c", -1).problems().front().where, "c:2");
  EXPECT_EQ(Vocabulary::parse("the\n\ncat\n", TokenKind::Bpe, "v", 0).problems().front().where, "v:2");
  EXPECT_EQ(Vocabulary::parse("[UNK]\n\nthe\n", TokenKind::WordPiece, "v", 0).problems().front().where,
            "v:2");
}

}  // namespace
}  // namespace millrace
