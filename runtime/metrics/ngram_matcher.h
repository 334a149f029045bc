// How many n-grams of a hypothesis its references have, clipped: exact (n-grams are compared, not hashes),
// linear in the number of words times the order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// One sentence after the other; its tables stay allocated. Not thread-safe.
class NgramMatcher {
 public:
  explicit NgramMatcher(int max_order);

  /// Forgets the references of the sentence before.
  void start_sentence();
  void add_reference(std::span<const std::string_view> words);
  /// Adds to correct[n - 1], for every n-gram of `words`, min(its count, its most frequent count in one
  /// reference). Once a sentence, after its references. `correct` has `max_order` entries at least.
  void match(std::span<const std::string_view> words, std::span<std::int64_t> correct);

 private:
  // N-grams of the references are a tree: a node is an n-gram, an edge a word more. Both tables are open
  // addressing in a power of two of places; a place of another generation is free.
  struct Word {
    std::uint32_t generation = 0;
    std::uint32_t id = 0;
    std::size_t hash = 0;
    std::size_t offset = 0, length = 0;  // in letters_
  };
  struct Edge {
    std::uint32_t generation = 0;
    std::uint32_t node = 0;
    std::uint64_t key = 0;  // node above, word
  };
  struct Node {
    std::uint32_t reference = 0;  // that `count` is of
    std::int32_t count = 0;
    std::int32_t most = 0;  // in one reference
    std::int32_t found = 0;
  };

  Word& place_of(std::string_view word, std::size_t hash);
  Edge& place_of(std::uint64_t key);
  std::uint32_t intern(std::string_view word);
  std::uint32_t make_node(std::uint32_t above, std::uint32_t word);

  int max_order_;
  std::uint32_t generation_ = 0;
  std::uint32_t references_ = 0;
  std::uint32_t num_words_ = 0;
  std::string letters_;
  std::vector<Word> words_;
  std::vector<Edge> edges_;
  std::vector<Node> nodes_;  // the root first
  std::vector<std::uint32_t> ids_;
};

}  // namespace millrace
