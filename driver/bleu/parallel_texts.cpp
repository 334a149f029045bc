#include "driver/bleu/parallel_texts.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "runtime/base/files.h"
#include "runtime/base/text.h"
#include "runtime/metrics/characters.h"

namespace millrace {
namespace {

constexpr Bytes kMostBytesOfText = 8 * kGiB;

Result<std::string> read_standard_input() {
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n == 0) return content;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Problem{"stdin", std::string("reading it: ") + std::strerror(errno), ""};
    content.append(buffer, static_cast<std::size_t>(n));
    if (static_cast<Bytes>(content.size()) > kMostBytesOfText)
      return Problem{"stdin", "is larger than the limit of " + std::to_string(kMostBytesOfText) + " bytes",
                     ""};
  }
}

std::string hint_for(std::string_view content, const std::string& path) {
  if (content.starts_with("\x1f\x8b")) return "it is compressed: `zcat " + path + " | millrace bleu - ...`";
  if (content.starts_with("\xff\xfe") || content.starts_with("\xfe\xff"))
    return "it looks like UTF-16: `iconv -f UTF-16 -t UTF-8`";
  return "convert it, e.g. from Latin-1: `iconv -f ISO-8859-1 -t UTF-8`";
}

std::string lines_text(const TextLines& text) {
  return std::to_string(text.lines.size()) + (text.lines.size() == 1 ? " line" : " lines");
}

}  // namespace

Result<TextLines> read_lines(const std::string& path) {
  TextLines text{.name = path == "-" ? "stdin" : path};
  Result<std::string> content = path == "-" ? read_standard_input() : read_file(path, kMostBytesOfText);
  if (!content) return content.problems();
  if (const std::optional<std::size_t> bad = first_invalid_byte(*content)) {
    const auto at = static_cast<std::ptrdiff_t>(*bad);
    const auto line = std::count(content->begin(), content->begin() + at, '\n') + 1;
    const std::size_t start = *bad == 0 ? 0 : content->rfind('\n', *bad - 1) + 1;  // npos + 1 is 0
    return Problem{text.name + ":" + std::to_string(line),
                   "is not UTF-8: byte " + std::to_string(*bad - start + 1) + " of the line is " +
                       printed("0x%02x", unsigned{static_cast<unsigned char>((*content)[*bad])}),
                   hint_for(*content, path)};
  }
  text.content = std::make_unique<const std::string>(*std::move(content));
  const std::string_view all = *text.content;
  text.has_byte_order_mark = all.starts_with("\ufeff");
  for (std::size_t start = 0; start < all.size();) {
    const std::size_t end = std::min(all.find('\n', start), all.size());
    // Other white space at the end is a word to multi-bleu.perl; BleuCounter leaves it out where it is none.
    const std::string_view line = all.substr(start, end - start);
    text.lines.push_back(line.substr(0, line.find_last_not_of(" \t\n\v\f\r") + 1));
    start = end + 1;
  }
  return text;
}

Result<ReferenceSet> references_of(const std::vector<TextLines>& streams) {
  std::vector<const TextLines*> all;
  for (const TextLines& stream : streams) all.push_back(&stream);
  if (Problems problems = check_line_counts(all); !problems.empty()) return problems;
  ReferenceSet set{.number = static_cast<int>(streams.size())};
  set.by_sentence.resize(streams.front().lines.size());
  for (std::size_t s = 0; s < set.by_sentence.size(); ++s)
    for (const TextLines& stream : streams) set.by_sentence[s].push_back(stream.lines[s]);
  return set;
}

Result<ReferenceSet> split_references(const TextLines& stream, int number) {
  ReferenceSet set{.number = number};
  Problems problems;
  for (std::size_t s = 0; s < stream.lines.size(); ++s) {
    std::vector<std::string_view>& references = set.by_sentence.emplace_back();
    std::string_view rest = stream.lines[s];
    for (bool more = true; more;) {
      const bool last = number > 0 && static_cast<int>(references.size()) == number - 1;
      const std::size_t tab = last ? std::string_view::npos : rest.find('\t');
      more = tab != std::string_view::npos;
      const std::string_view field = rest.substr(0, tab);
      if (number > 0 || !field.empty()) references.push_back(field);
      if (more) rest.remove_prefix(tab + 1);
    }
    if (references.empty()) references.emplace_back();
    if (number > 0 && static_cast<int>(references.size()) != number)
      problems.push_back({stream.name + ":" + std::to_string(s + 1),
                          "has " + std::to_string(references.size()) + " references between tabs, expected " +
                              std::to_string(number),
                          "--num-refs var takes as many as there are"});
  }
  if (!problems.empty()) return problems;
  const auto same = [&](const auto& references) {
    return references.size() == set.by_sentence.front().size();
  };
  if (number == 0 && !set.by_sentence.empty() && std::ranges::all_of(set.by_sentence, same))
    set.number = static_cast<int>(set.by_sentence.front().size());
  return set;
}

Problems check_line_counts(const std::vector<const TextLines*>& texts) {
  Problems problems;
  for (const TextLines* text : texts)
    if (text->lines.size() != texts.front()->lines.size())
      problems.push_back(
          {text->name,
           "has " + lines_text(*text) + ", but " + texts.front()->name + " has " + lines_text(*texts.front()),
           "line k of each file belongs to sentence k; is the translation complete?"});
  return problems;
}

}  // namespace millrace
