// Counts the n-grams of a hypothesis that occur in its references, clipped. Exact (n-grams are compared, not
// hashes), in time linear in words x order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// Matches one sentence after another; its tables stay allocated. Not thread-safe.
class NgramMatcher {
 public:
  explicit NgramMatcher(int max_order);

  /// Forgets the previous sentence's references.
  void start_sentence();
  void add_reference(std::span<const std::string_view> words);
  /// For every n-gram of `words`, adds to correct[n - 1] the minimum of its count and its largest count in
  /// one reference. Call it once per sentence, after its references are added. `correct` has at least
  /// `max_order` entries.
  void match(std::span<const std::string_view> words, std::span<std::int64_t> correct);

 private:
  // The references' n-grams form a tree: a node is an n-gram, an edge appends a word. Both hash tables use
  // open addressing with a power of two of slots; a slot of another generation is free.
  struct Word {
    std::uint32_t generation = 0;
    std::uint32_t id = 0;
    std::size_t hash = 0;
    std::size_t offset = 0, length = 0;  // in letters_
  };
  struct Edge {
    std::uint32_t generation = 0;
    std::uint32_t node = 0;
    std::uint64_t key = 0;  // parent node, word
  };
  struct Node {
    std::uint32_t reference = 0;  // the reference that `count` belongs to
    std::int32_t count = 0;
    std::int32_t most = 0;  // largest count in one reference
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
  std::vector<Node> nodes_;  // root first
  std::vector<std::uint32_t> ids_;
};

}  // namespace millrace
