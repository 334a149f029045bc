#include "runtime/metrics/ngram_matcher.h"

#include <algorithm>
#include <functional>

namespace millrace {
namespace {

constexpr std::uint32_t kUnknown = 0xFFFFFFFF;

std::uint64_t key_of(std::uint32_t node, std::uint32_t word) {
  return std::uint64_t{node} << 32 | word;
}

std::size_t mixed(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15u;  // 2^64 / the golden ratio
  return key ^ key >> 32;
}

/// Doubles the number of slots; entries are moved.
template <class Entry, class Hash>
void grow(std::vector<Entry>& table, std::uint32_t generation, Hash hash) {
  std::vector<Entry> larger(table.size() * 2);
  for (const Entry& entry : table) {
    if (entry.generation != generation) continue;
    std::size_t at = hash(entry) & (larger.size() - 1);
    while (larger[at].generation == generation) at = (at + 1) & (larger.size() - 1);
    larger[at] = entry;
  }
  table = std::move(larger);
}

}  // namespace

NgramMatcher::NgramMatcher(int max_order) : max_order_(max_order), words_(256), edges_(1024) {
  start_sentence();
}

void NgramMatcher::start_sentence() {
  if (++generation_ == 0) {  // after 2^32 sentences, old slots would look current
    std::ranges::fill(words_, Word{});
    std::ranges::fill(edges_, Edge{});
    generation_ = 1;
  }
  references_ = 0;
  num_words_ = 0;
  letters_.clear();
  nodes_.assign(1, Node{});
}

NgramMatcher::Word& NgramMatcher::place_of(std::string_view word, std::size_t hash) {
  std::size_t at = hash & (words_.size() - 1);
  while (words_[at].generation == generation_ &&
         !(words_[at].hash == hash &&
           std::string_view(letters_).substr(words_[at].offset, words_[at].length) == word))
    at = (at + 1) & (words_.size() - 1);
  return words_[at];
}

NgramMatcher::Edge& NgramMatcher::place_of(std::uint64_t key) {
  std::size_t at = mixed(key) & (edges_.size() - 1);
  while (edges_[at].generation == generation_ && edges_[at].key != key) at = (at + 1) & (edges_.size() - 1);
  return edges_[at];
}

std::uint32_t NgramMatcher::intern(std::string_view word) {
  const std::size_t hash = std::hash<std::string_view>()(word);
  Word* place = &place_of(word, hash);
  if (place->generation == generation_) return place->id;
  if (2 * (num_words_ + 1) > words_.size()) {
    grow(words_, generation_, [](const Word& w) { return w.hash; });
    place = &place_of(word, hash);
  }
  *place = {generation_, num_words_++, hash, letters_.size(), word.size()};
  letters_.append(word);
  return place->id;
}

std::uint32_t NgramMatcher::make_node(std::uint32_t above, std::uint32_t word) {
  const std::uint64_t key = key_of(above, word);
  Edge* place = &place_of(key);
  if (place->generation == generation_) return place->node;
  if (2 * (nodes_.size() + 1) > edges_.size()) {
    grow(edges_, generation_, [](const Edge& e) { return mixed(e.key); });
    place = &place_of(key);
  }
  *place = {generation_, static_cast<std::uint32_t>(nodes_.size()), key};
  nodes_.emplace_back();
  return place->node;
}

void NgramMatcher::add_reference(std::span<const std::string_view> words) {
  ++references_;
  ids_.clear();
  for (const std::string_view word : words) ids_.push_back(intern(word));
  for (std::size_t start = 0; start < ids_.size(); ++start) {
    const std::size_t end = std::min(ids_.size(), start + static_cast<std::size_t>(max_order_));
    std::uint32_t at = 0;
    for (std::size_t i = start; i < end; ++i) {
      at = make_node(at, ids_[i]);
      Node& node = nodes_[at];
      if (node.reference != references_) node.reference = references_, node.count = 0;
      node.most = std::max(node.most, ++node.count);
    }
  }
}

void NgramMatcher::match(std::span<const std::string_view> words, std::span<std::int64_t> correct) {
  ids_.clear();
  for (const std::string_view word : words) {
    const Word& place = place_of(word, std::hash<std::string_view>()(word));
    ids_.push_back(place.generation == generation_ ? place.id : kUnknown);
  }
  for (std::size_t start = 0; start < ids_.size(); ++start) {
    const std::size_t end = std::min(ids_.size(), start + static_cast<std::size_t>(max_order_));
    std::uint32_t at = 0;
    // An n-gram that no reference has cannot be a prefix of one that a reference has.
    for (std::size_t i = start; i < end && ids_[i] != kUnknown; ++i) {
      const Edge& edge = place_of(key_of(at, ids_[i]));
      if (edge.generation != generation_) break;
      at = edge.node;
      if (nodes_[at].found++ < nodes_[at].most) ++correct[i - start];
    }
  }
}

}  // namespace millrace
