// Applies byte-pair codes to words, as subword-nmt 0.3.8 does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/text/word_counts.h"
#include "runtime/base/result.h"

namespace millrace {

/// The codes of a file: "#version: 0.2" (or 0.1, which files without that line have), then a line "left
/// right" for each rank. Of two equal lines the first counts. Immutable when made; thread-safe.
class BpeCodes {
 public:
  /// Reads codes. `merges` is the number of first lines to use, -1: all. Problems have `name` and the line:
  /// another version, lines that are not two symbols, bytes that are no UTF-8.
  static Result<BpeCodes> parse(std::string_view text, const std::string& name, std::int64_t merges = -1);

  /// Restricts the pieces to a vocabulary. From now on, pieces outside of it are split again as long as
  /// possible. `text` has a line for each piece (with "@@" inside a word) and its count. Pieces with a count
  /// below `threshold` do not belong to the vocabulary.
  Status restrict_to(std::string_view text, const std::string& name, std::int64_t threshold = 0);

  /// Sets `ends` to the ends of the word's pieces, in bytes. The word must not be empty and must be valid
  /// UTF-8.
  void split(std::string_view word, std::vector<std::uint32_t>& ends) const;

  std::size_t size() const { return num_merges_; }

 private:
  struct Merge {
    std::uint32_t rank = 0;
    std::int32_t made = 0;
  };
  struct Piece {
    std::int32_t symbol = -1;  ///< -1: no code has it
    std::uint32_t end = 0;
  };
  struct KeyHash {
    std::size_t operator()(std::uint64_t key) const {
      key *= 0x9E3779B97F4A7C15u;
      return key ^ key >> 32;
    }
  };
  std::int32_t intern(std::string_view text);
  std::int32_t find(std::string_view text) const;
  const Merge* merge_of(const Piece& left, const Piece& right) const;
  void merge_short(std::vector<Piece>& pieces) const;
  void merge_long(std::vector<Piece>& pieces) const;
  void split_again(std::string_view piece, bool last, std::uint32_t offset,
                   std::vector<std::uint32_t>& ends) const;
  bool is_known(std::string_view piece, bool last) const;

  bool end_is_a_symbol_ = false;  // version 0.1
  std::size_t num_merges_ = 0;
  TextMap<std::int32_t> symbols_;
  std::unordered_map<std::uint64_t, Merge, KeyHash> merges_;
  TextMap<std::pair<std::string, std::string>> made_of_;  // merged symbol -> its halves
  bool restricted_ = false;
  TextMap<bool> vocabulary_;
};

/// Remembers the pieces of words in at most 64 MiB, so that a frequent word is split once. Not thread-safe.
class BpeCache {
 public:
  explicit BpeCache(const BpeCodes& codes) : codes_(codes) {}
  /// Returns the ends of the word's pieces, valid until the next call.
  const std::vector<std::uint32_t>& split(std::string_view word);

 private:
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  const BpeCodes& codes_;
  TextMap<std::vector<std::uint32_t>> known_;
  std::size_t bytes_ = 0;
};

/// Writes the line with its words in pieces: "lo@@ wer new@@ est". Spaces and carriage returns at its ends
/// stay.
void apply_bpe(BpeCache& cache, std::string_view line, std::string& out);

}  // namespace millrace
