#include "data/text/bpe.h"

#include <algorithm>
#include <queue>

#include "data/text/line_reader.h"
#include "data/text/unicode.h"
#include "runtime/base/byte_order_mark.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr std::string_view kEnd = "</w>";
constexpr std::string_view kInside = "@@";
constexpr std::size_t kShortWord = 48;  // pieces; in shorter words a search of all is faster than a queue

/// Returns the version in a line "#version: ...": 1 for 0.1, 2 for 0.2 or 0.2.0, 0 for any other.
int version_of(std::string_view line) {
  line = stripped_line(line);
  line.remove_prefix(std::min(line.size(), line.find_last_of(" :") + 1));
  while (line.size() > 2 && line.substr(line.size() - 2) == ".0") line.remove_suffix(2);
  return line == "0.1" ? 1 : line == "0.2" ? 2 : 0;
}

/// Calls `use(line, number)` for each line of `text` until it returns false.
template <class Use>
void for_each_line(std::string_view text, Use use) {
  std::uint64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (!use(text.substr(0, end), ++number)) return;
    text.remove_prefix(std::min(text.size(), end + 1));
  }
}

Status check_utf8(std::string_view text, const std::string& name) {
  const std::size_t bad = first_invalid_utf8(text);
  if (bad == std::string_view::npos) return Ok{};
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
  return Problem{place_of_line(name, static_cast<std::uint64_t>(line)), "is not UTF-8", {}};
}

}  // namespace

Result<BpeCodes> BpeCodes::parse(std::string_view text, const std::string& name, std::int64_t merges) {
  if (const Status status = check_utf8(text, name); !status) return status.problems();
  text = without_mark(without_blank_end(text));
  BpeCodes codes;
  codes.end_is_a_symbol_ = true;
  Problems problems;
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  for_each_line(text, [&](std::string_view line, std::uint64_t number) {
    if (number == 1 && line.substr(0, 9) == "#version:") {
      const int version = version_of(line);
      codes.end_is_a_symbol_ = version == 1;
      if (version == 0)
        problems.push_back({place_of_line(name, 1), "is '" + escaped(line) + "', not version 0.1 or 0.2",
                            "apply these codes with the tool that learned them"});
      return version != 0;
    }
    if (merges >= 0 && static_cast<std::int64_t>(pairs.size()) >= merges) return false;
    line = stripped_line(line);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      problems.push_back({place_of_line(name, number),
                          "'" + escaped(line.substr(0, 80)) + "' is not two symbols with a space between",
                          "is this a file of BPE codes?"});
      return false;
    }
    pairs.emplace_back(line.substr(0, space), line.substr(space + 1));
    return true;
  });
  if (!problems.empty()) return problems;
  codes.num_merges_ = pairs.size();
  for (std::size_t rank = 0; rank < pairs.size(); ++rank) {
    const auto& [left, right] = pairs[rank];
    const std::int32_t made = codes.intern(std::string(left) + std::string(right));
    const std::uint64_t key = std::uint64_t(codes.intern(left)) << 32 | std::uint32_t(codes.intern(right));
    codes.merges_.try_emplace(key, Merge{static_cast<std::uint32_t>(rank), made});
  }
  // If two pairs make the same symbol, it is taken apart into the pair whose last line comes first.
  std::unordered_map<std::uint64_t, std::size_t, KeyHash> last;
  for (std::size_t rank = 0; rank < pairs.size(); ++rank)
    last[std::uint64_t(codes.find(pairs[rank].first)) << 32 | std::uint32_t(codes.find(pairs[rank].second))] =
        rank;
  for (std::size_t rank = pairs.size(); rank-- > 0;) {
    const auto& [left, right] = pairs[rank];
    if (last[std::uint64_t(codes.find(left)) << 32 | std::uint32_t(codes.find(right))] != rank) continue;
    codes.made_of_[std::string(left) + std::string(right)] = {std::string(left), std::string(right)};
  }
  return codes;
}

Status BpeCodes::restrict_to(std::string_view text, const std::string& name, std::int64_t threshold) {
  if (end_is_a_symbol_)
    return Problem{name, "a vocabulary goes with codes of version 0.2, these are 0.1",
                   "learn codes again, or leave the vocabulary out"};
  if (const Status status = check_utf8(text, name); !status) return status.problems();
  text = without_mark(without_blank_end(text));
  Problems problems;
  TextMap<bool> vocabulary;
  for_each_line(text, [&](std::string_view line, std::uint64_t number) {
    line = stripped_line(line);
    const std::size_t space = line.find(' ');
    const std::string_view digits = space == std::string_view::npos ? "" : line.substr(space + 1);
    const auto count = number_of<std::int64_t>(digits);
    if (!count) {
      problems.push_back({place_of_line(name, number),
                          "'" + escaped(line.substr(0, 80)) + "' is not a piece and its count",
                          "`millrace data text vocab --counts` makes such a file"});
      return false;
    }
    if (*count >= threshold) vocabulary.emplace(line.substr(0, space), true);
    return true;
  });
  if (!problems.empty()) return problems;
  if (vocabulary.empty())
    return Problem{name, "no piece occurs " + std::to_string(threshold) + " times", "lower the threshold"};
  vocabulary_ = std::move(vocabulary);
  restricted_ = true;
  return Ok{};
}

std::int32_t BpeCodes::intern(std::string_view text) {
  const auto found = symbols_.find(text);
  if (found != symbols_.end()) return found->second;
  const auto id = static_cast<std::int32_t>(symbols_.size());
  symbols_.emplace(text, id);
  return id;
}

std::int32_t BpeCodes::find(std::string_view text) const {
  const auto found = symbols_.find(text);
  return found == symbols_.end() ? -1 : found->second;
}

const BpeCodes::Merge* BpeCodes::merge_of(const Piece& left, const Piece& right) const {
  if (left.symbol < 0 || right.symbol < 0) return nullptr;
  const auto found = merges_.find(std::uint64_t(left.symbol) << 32 | std::uint32_t(right.symbol));
  return found == merges_.end() ? nullptr : &found->second;
}

/// Merges the pair of lowest rank, all its occurrences from left to right, until no pair has a code.
void BpeCodes::merge_short(std::vector<Piece>& pieces) const {
  while (pieces.size() > 1) {
    const Merge* best = nullptr;
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
      const Merge* merge = merge_of(pieces[i], pieces[i + 1]);
      if (merge && (!best || merge->rank < best->rank)) best = merge;
    }
    if (!best) return;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      // A piece that was merged just now is at kept - 1; it cannot be a left half in the same pass.
      if (i + 1 < pieces.size() && merge_of(pieces[i], pieces[i + 1]) == best) {
        pieces[kept++] = {best->made, pieces[i + 1].end};
        ++i;
      } else {
        pieces[kept++] = pieces[i];
      }
    }
    pieces.resize(kept);
  }
}

/// Does the same as merge_short in O(n log n), with pieces in a list and pairs in a queue. When a rank comes,
/// all its pairs in the word are merged before the pairs that these merges make are looked at.
void BpeCodes::merge_long(std::vector<Piece>& pieces) const {
  const auto count = static_cast<std::int64_t>(pieces.size());
  std::vector<std::int64_t> next(pieces.size()), previous(pieces.size());
  for (std::int64_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : -1;
    previous[i] = i - 1;
  }
  using Entry = std::pair<std::uint32_t, std::int64_t>;  // rank, place of the left half
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto piece = [&](std::int64_t i) -> Piece& { return pieces[i]; };
  const auto look_at = [&](std::int64_t i) {
    const std::int64_t right = i < 0 ? -1 : next[i];
    if (right < 0) return;
    if (const Merge* merge = merge_of(piece(i), piece(right))) queue.emplace(merge->rank, i);
  };
  for (std::int64_t i = 0; i < count; ++i) look_at(i);
  std::vector<bool> gone(pieces.size());
  std::vector<std::int64_t> changed;
  while (!queue.empty()) {
    const std::uint32_t rank = queue.top().first;
    changed.clear();
    while (!queue.empty() && queue.top().first == rank) {
      const std::int64_t left = queue.top().second;
      queue.pop();
      if (gone[left]) continue;
      const std::int64_t right = next[left];
      if (right < 0) continue;
      // A piece that was merged in this pass cannot be a half of another one. An entry may also be older than
      // the pieces at its place.
      if (std::binary_search(changed.begin(), changed.end(), left) ||
          std::binary_search(changed.begin(), changed.end(), right))
        continue;
      const Merge* merge = merge_of(piece(left), piece(right));
      if (!merge || merge->rank != rank) continue;
      piece(left) = {merge->made, piece(right).end};
      gone[right] = true;
      const std::int64_t after = next[right];
      next[left] = after;
      if (after >= 0) previous[after] = left;
      changed.push_back(left);
    }
    for (const std::int64_t i : changed) {
      look_at(previous[i]);
      look_at(i);
    }
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (!gone[i]) pieces[kept++] = pieces[i];
  }
  pieces.resize(kept);
}

void BpeCodes::split(std::string_view word, std::vector<std::uint32_t>& ends) const {
  ends.clear();
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t begin = i;
    next_code_point(word, i);
    std::string text(word.substr(begin, i - begin));
    if (i == word.size() && !end_is_a_symbol_) text += kEnd;
    pieces.push_back({find(text), static_cast<std::uint32_t>(i)});
  }
  if (pieces.size() == 1) {
    ends.push_back(pieces[0].end);
    return;
  }
  if (end_is_a_symbol_) pieces.push_back({find(kEnd), pieces.back().end});
  if (pieces.size() < kShortWord) {
    merge_short(pieces);
  } else {
    merge_long(pieces);
  }
  std::uint32_t begin = 0;
  for (const Piece& piece : pieces) {
    if (piece.end == begin) continue;  // only the end-of-word symbol of version 0.1
    const bool last = piece.end == word.size();
    const std::string_view text = word.substr(begin, piece.end - begin);
    if (!restricted_ || is_known(text, last)) {
      ends.push_back(piece.end);
    } else {
      split_again(text, last, begin, ends);
    }
    begin = piece.end;
  }
}

bool BpeCodes::is_known(std::string_view piece, bool last) const {
  if (last) return vocabulary_.find(piece) != vocabulary_.end();
  return vocabulary_.find(std::string(piece) + std::string(kInside)) != vocabulary_.end();
}

/// Undoes merges of a piece until its parts are known or single symbols. It does not recurse, because a file
/// may build symbols from each other in a long chain.
void BpeCodes::split_again(std::string_view piece, bool last, std::uint32_t offset,
                           std::vector<std::uint32_t>& ends) const {
  struct Part {
    std::string_view text;
    bool last, asked;
  };
  std::vector<Part> open{{piece, last, false}};
  while (!open.empty()) {
    const Part part = open.back();
    open.pop_back();
    const auto halves =
        part.asked && is_known(part.text, part.last)
            ? made_of_.end()
            : made_of_.find(part.last ? std::string(part.text) + std::string(kEnd) : std::string(part.text));
    const std::size_t left = halves == made_of_.end() ? part.text.size() : halves->second.first.size();
    if (left >= part.text.size()) {
      offset += static_cast<std::uint32_t>(part.text.size());
      ends.push_back(offset);
      continue;
    }
    open.push_back({part.text.substr(left), part.last, true});
    open.push_back({part.text.substr(0, left), false, true});
  }
}

const std::vector<std::uint32_t>& BpeCache::split(std::string_view word) {
  const auto found = known_.find(word);
  if (found != known_.end()) return found->second;
  if (bytes_ > kMostBytes) {
    known_.clear();
    bytes_ = 0;
  }
  std::vector<std::uint32_t>& ends = known_[std::string(word)];
  codes_.split(word, ends);
  bytes_ += word.size() + ends.size() * sizeof(ends[0]) + 128;
  return ends;
}

void apply_bpe(BpeCache& cache, std::string_view line, std::string& out) {
  const std::string_view inner = stripped_line(line);
  const std::size_t front =
      inner.empty() ? line.size() : static_cast<std::size_t>(inner.data() - line.data());
  out.append(line.substr(0, front));
  bool first = true;
  for_each_word(inner, [&](std::string_view word) {
    if (!first) out += ' ';
    first = false;
    std::uint32_t begin = 0;
    for (const std::uint32_t end : cache.split(word)) {
      if (begin > 0) out += ' ';
      out.append(word.substr(begin, end - begin));
      if (end < word.size()) out.append(kInside);
      begin = end;
    }
  });
  if (!inner.empty()) out.append(line.substr(front + inner.size()));
}

}  // namespace millrace
