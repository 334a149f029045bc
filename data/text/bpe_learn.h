// Learns byte-pair codes (Sennrich et al., ACL 2016) as subword-nmt 0.3.8 does, to the byte.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

struct LearnBpeOptions {
  std::int64_t merges = 32000;
  std::int64_t min_frequency = 2;  ///< stop when no pair occurs as often
};

/// A merge: the left and the right symbol; a symbol that ends a word ends in "</w>".
using BpeMerge = std::pair<std::string, std::string>;

/// Merges by rank, from words (valid UTF-8, not empty, without spaces) with their counts. The most frequent
/// pair comes next; of equals the larger by code points. `progress` (may be empty) gets how many there are.
///
/// Counts of pairs are kept up to date: a merge visits only the words that have its pair. Time is that of the
/// changes, memory that of the words and of their pairs. Equal to the original also where its bookkeeping
/// departs from a recount: a symbol that comes about in two ways, white space other than a space inside a
/// word, pairs that it had set aside as rare. Not thread-safe; deterministic.
std::vector<BpeMerge> learn_bpe(const std::vector<std::pair<std::string, std::int64_t>>& words,
                                const LearnBpeOptions& options,
                                const std::function<void(std::int64_t)>& progress = {});

/// The codes as a file: "#version: 0.2", then a merge a line.
std::string bpe_codes_text(const std::vector<BpeMerge>& merges);

}  // namespace millrace
