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

/// Returns merges in the order of rank, from words with their counts. Words are valid UTF-8, not empty and
/// without spaces. The most frequent pair comes next; of equally frequent ones, the larger by code points.
/// `progress` (may be empty) gets the number of merges so far.
///
/// Counts of pairs are kept up to date: a merge visits only the words that have its pair. Memory holds the
/// words and their pairs. The result equals the original's also in cases in which its bookkeeping departs
/// from a recount: a symbol that arises in two ways, white space other than a space inside a word, pairs that
/// it had set aside as rare. Not thread-safe; deterministic.
std::vector<BpeMerge> learn_bpe(const std::vector<std::pair<std::string, std::int64_t>>& words,
                                const LearnBpeOptions& options,
                                const std::function<void(std::int64_t)>& progress = {});

/// Returns the codes as the text of a file: "#version: 0.2", then a merge in each line.
std::string bpe_codes_text(const std::vector<BpeMerge>& merges);

}  // namespace millrace
