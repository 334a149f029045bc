// Files of text from Windows: each reader takes "\r\n" as "\n".
#include <gtest/gtest.h>

#include <functional>

#include "data/text/bpe.h"
#include "data/text/vocabulary.h"
#include "driver/bleu/parallel_texts.h"
#include "driver/hosts/host_list.h"
#include "runtime/base/json.h"
#include "runtime/plan/pipedream_formats.h"
#include "runtime/schedule/schedule.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

/// Returns the content that a reader found in a file, as text, or its problems.
using Read = std::function<std::string(const std::string& path, const std::string& text)>;

std::string vocabulary(const std::string& text, TokenKind kind) {
  const auto read = Vocabulary::parse(text, kind, "v");
  return read ? read->fingerprint().hex() : "refused: " + to_string(read.problems());
}

TEST(LineEnds, OfWindowsChangeNothing) {
  const TemporaryFolder folder;
  const struct {
    const char* name;
    std::string text;
    Read read;
  } readers[] = {
      {"graph.txt",
       "node1 -- Input -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=[1.0; 2.0], "
       "parameter_size=0.0\nnode2 -- Linear() -- forward_compute_time=1.0, backward_compute_time=2.0, "
       "activation_size=8.0, parameter_size=4.0 -- stage_id=1\n\tnode1 -- node2\n",
       [](const auto&, const auto& text) {
         const auto read = parse_pipedream_graph(text, "g");
         return read ? to_text(*read) : "refused: " + to_string(read.problems());
       }},
      {"schedule", "1f1b\n0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n",
       [](const auto&, const auto& text) {
         const auto read = parse_schedule(text, "s");
         return read ? to_string(*read) : "refused: " + to_string(read.problems());
       }},
      {"BPE codes", "#version: 0.2\na b\nab c</w>\n\n",
       [](const auto&, const auto& text) {
         const auto read = BpeCodes::parse(text, "c");
         if (!read) return "refused: " + to_string(read.problems());
         std::vector<std::uint32_t> ends;
         read->split("abc", ends);
         return std::to_string(read->size()) + " codes, " + std::to_string(ends.size()) + " pieces";
       }},
      {"vocabulary of BPE", "a 9\nb@@ 7\n",
       [](const auto&, const auto& t) { return vocabulary(t, TokenKind::Bpe); }},
      {"vocabulary of WordPiece", "[PAD]\n[UNK]\na\n##b\n",
       [](const auto&, const auto& t) { return vocabulary(t, TokenKind::WordPiece); }},
      {"vocabulary of SentencePiece", "<unk>\t0\n<s>\t0\n</s>\t0\n\xE2\x96\x81z\t-1.5\n",
       [](const auto&, const auto& t) { return vocabulary(t, TokenKind::SentencePiece); }},
      {"hosts", "node1:2\n# comment\nnode2 slots=3\nnode3\n",
       [](const auto& path, const auto&) {
         const auto read = parse_hosts("@" + path);
         if (!read) return "refused: " + to_string(read.problems());
         std::string all;
         for (const HostEntry& host : *read) all += host.name + ":" + std::to_string(host.slots) + " ";
         return all;
       }},
      {"texts of bleu", "a b\n\nc\n",
       [](const auto& path, const auto&) {
         const auto read = read_lines(path);
         if (!read) return "refused: " + to_string(read.problems());
         std::string all;
         for (const std::string_view line : read->lines) all += std::string(line) + "|";
         return all;
       }},
      {"YAML", "model: mlp\nsteps: 3\nlist:\n  - a\n  - b\n",
       [](const auto&, const auto& text) {
         const auto read = parse_yaml(text, "y");
         return read ? read->dump() : "refused: " + to_string(read.problems());
       }},
  };
  for (const auto& reader : readers) {
    std::string windows;
    for (const char c : reader.text) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
    folder.write("unix", reader.text);
    folder.write("windows", windows);
    const std::string expected = reader.read(folder.path("unix"), reader.text);
    EXPECT_FALSE(expected.starts_with("refused")) << reader.name << ": " << expected;
    EXPECT_EQ(reader.read(folder.path("windows"), windows), expected) << reader.name;
  }
}

}  // namespace
}  // namespace millrace
