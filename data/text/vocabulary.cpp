#include "data/text/vocabulary.h"

#include <algorithm>
#include <array>
#include <limits>

#include "data/text/line_reader.h"
#include "data/text/segmenter.h"
#include "data/text/unicode.h"
#include "data/text/word_counts.h"
#include "runtime/base/byte_order_mark.h"
#include "runtime/base/check.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr std::array<const char*, 4> kGnmtSpecials{"<pad>", "<unk>", "<s>", "<\\s>"};
constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return lines;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Returns "token" for "token 123", and nothing for other lines.
std::optional<std::string_view> without_count(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || !is_number(line.substr(space + 1)))
    return std::nullopt;
  return line.substr(0, space);
}

/// Returns 10 for the piece "<0x0A>" of a SentencePiece model with byte fallback, and nothing for other
/// pieces.
std::optional<char> byte_of(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : piece.substr(3, 2)) {
    if (c >= '0' && c <= '9') {
      value = value * 16 + c - '0';
    } else if (c >= 'A' && c <= 'F') {
      value = value * 16 + c - 'A' + 10;
    } else {
      return std::nullopt;
    }
  }
  return static_cast<char>(value);
}

Result<std::vector<std::string>> bpe_tokens(const std::vector<std::string_view>& lines,
                                            const std::string& name, std::int64_t pad_to) {
  const bool counted = !lines.empty() && std::all_of(lines.begin(), lines.end(), [](std::string_view line) {
    return without_count(line).has_value();
  });
  std::vector<std::string> tokens(kGnmtSpecials.begin(), kGnmtSpecials.end());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string_view token = counted ? *without_count(lines[i]) : lines[i];
    if (token.empty() || token.find(' ') != std::string_view::npos)
      return Problem{place_of_line(name, i + 1), "'" + escaped(token.substr(0, 80)) + "' is not a token",
                     "a vocabulary has a token a line, or a token and its count on every line"};
    if (std::find(kGnmtSpecials.begin(), kGnmtSpecials.end(), token) != kGnmtSpecials.end())
      return Problem{place_of_line(name, i + 1), "'" + std::string(token) + "' is put in front by itself",
                     "leave <pad>, <unk>, <s> and <\\s> out of the file"};
    tokens.emplace_back(token);
  }
  if (pad_to > 0) {
    const std::int64_t more = pad_to - static_cast<std::int64_t>(tokens.size()) % pad_to;
    for (std::int64_t i = 0; i < more; ++i)
      tokens.push_back(printed("madeupword%04lld", static_cast<long long>(i)));
  }
  return tokens;
}

}  // namespace

const char* to_string(TokenKind kind) {
  switch (kind) {
    case TokenKind::Bpe:
      return "bpe";
    case TokenKind::WordPiece:
      return "wordpiece";
    case TokenKind::SentencePiece:
      return "sentencepiece";
  }
  return "?";
}

Result<Vocabulary> Vocabulary::of(std::vector<std::string> tokens, TokenKind kind, const std::string& name) {
  MILLRACE_CHECK(tokens.size() < std::numeric_limits<std::uint32_t>::max());
  Vocabulary vocabulary;
  vocabulary.kind_ = kind;
  vocabulary.tokens_ = std::move(tokens);
  std::string all = to_string(kind);
  for (std::uint32_t i = 0; i < vocabulary.tokens_.size(); ++i) {
    const std::string& token = vocabulary.tokens_[i];
    const auto [found, is_new] = vocabulary.numbers_.emplace(token, i);
    if (!is_new)
      return Problem{name,
                     "'" + escaped(token.substr(0, 80)) + "' is token " + std::to_string(found->second) +
                         " and token " + std::to_string(i),
                     "a token has one number: take one of them out"};
    all += '\n';
    all += token;
  }
  const bool bert = kind == TokenKind::WordPiece;
  const auto unk = vocabulary.find(bert ? "[UNK]" : "<unk>");
  if (!unk)
    return Problem{name, bert ? "has no [UNK]" : "has no <unk>", "is this a vocabulary of another kind?"};
  vocabulary.unk_ = *unk;
  vocabulary.pad_ = vocabulary.find(bert ? "[PAD]" : "<pad>");
  vocabulary.bos_ = vocabulary.find(bert ? "[CLS]" : "<s>");
  vocabulary.eos_ = vocabulary.find(bert ? "[SEP]" : kind == TokenKind::Bpe ? "<\\s>" : "</s>");
  vocabulary.fingerprint_ = xxh3_128(all);
  return vocabulary;
}

Result<Vocabulary> Vocabulary::parse(std::string_view text, TokenKind kind, const std::string& name,
                                     std::int64_t pad_to) {
  const std::size_t bad = first_invalid_utf8(text);
  if (bad != std::string_view::npos) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
    return Problem{place_of_line(name, static_cast<std::uint64_t>(line)), "is not UTF-8", {}};
  }
  const std::vector<std::string_view> lines = lines_of(without_mark(without_blank_end(text)));
  if (lines.empty()) return Problem{name, "is empty", "a vocabulary has a token a line"};
  if (kind == TokenKind::Bpe) {
    Result<std::vector<std::string>> tokens = bpe_tokens(lines, name, pad_to);
    if (!tokens) return tokens.problems();
    return of(std::move(*tokens), kind, name);
  }
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string_view token = lines[i];
    if (kind == TokenKind::SentencePiece) {
      const std::size_t tab = token.rfind('\t');
      if (tab == std::string_view::npos)
        return Problem{place_of_line(name, i + 1), "is not a piece, a tab and its score",
                       "the file that lies beside the model, with the ending .vocab"};
      token = token.substr(0, tab);
    }
    if (token.empty()) return Problem{place_of_line(name, i + 1), "is empty, expected a token", {}};
    tokens.emplace_back(token);
  }
  return of(std::move(tokens), kind, name);
}

std::optional<std::uint32_t> Vocabulary::find(std::string_view token) const {
  const auto found = numbers_.find(token);
  if (found == numbers_.end()) return std::nullopt;
  return found->second;
}

std::string Vocabulary::text(std::span<const std::uint32_t> numbers) const {
  return kind_ == TokenKind::SentencePiece ? joined_pieces(numbers) : joined_words(numbers);
}

std::string Vocabulary::joined_words(std::span<const std::uint32_t> numbers) const {
  std::string result;
  bool goes_on = true;  // no space comes before the first word
  for (const std::uint32_t number : numbers) {
    if (is_silent(number)) continue;
    std::string_view piece = token(number);
    bool next_goes_on = false;
    if (kind_ == TokenKind::Bpe && piece.size() >= 2 && piece.substr(piece.size() - 2) == "@@") {
      piece.remove_suffix(2);
      next_goes_on = true;
    } else if (kind_ == TokenKind::WordPiece && piece.size() > 2 && piece.substr(0, 2) == "##") {
      piece.remove_prefix(2);
      goes_on = true;
    }
    if (!goes_on) result += ' ';
    result += piece;
    goes_on = next_goes_on;
  }
  if (kind_ == TokenKind::Bpe && result.find(kJoiner) != std::string::npos) return without_joiners(result);
  return result;
}

std::string Vocabulary::joined_pieces(std::span<const std::uint32_t> numbers) const {
  std::string result;
  bool any = false;
  for (const std::uint32_t number : numbers) {
    if (is_silent(number)) continue;
    std::string_view piece = token(number);
    if (number == unk_) piece = " \xE2\x81\x87 ";  // as SentencePiece writes it: U+2047 between spaces
    if (const std::optional<char> byte = byte_of(piece)) {
      result += *byte;
    } else {
      for (std::size_t i = 0; i < piece.size();) {
        const bool space = piece.substr(i, kSpace.size()) == kSpace;
        // The space that SentencePiece puts in front of a sentence is left out.
        if (space && (any || i > 0)) result += ' ';
        if (!space) result += piece[i];
        i += space ? kSpace.size() : 1;
      }
    }
    any = true;
  }
  return result;
}

}  // namespace millrace
