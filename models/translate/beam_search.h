// GNMT's beam search (arXiv 1609.08144, section 7), as in MLPerf's and PipeDream's generator. The coverage
// penalty follows the paper or their code.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace millrace {

/// Says whose attention a hypothesis is charged with.
enum class Coverage {
  Exact,   ///< its own attention, which moves with it when beams are reordered
  Compat,  ///< the attention of all hypotheses that were in its place, as MLPerf and PipeDream compute it
};

struct BeamOptions {
  int beam = 5;
  std::int64_t longest = 150;     ///< words of a hypothesis; begin and end count
  double length_penalty = 0.6;    ///< alpha in ((5 + length) / 6)^alpha
  double length_constant = 5;     ///< the 5 in that formula
  double coverage_penalty = 0.1;  ///< beta
  Coverage coverage = Coverage::Exact;
  std::int64_t begin = 2, end = 3;
};

/// A model that gives one word after another. It has a row for each hypothesis that is not finished; at first
/// there is one row for each sentence.
class NextWords {
 public:
  struct Step {
    at::Tensor logits;     // [R, V]
    at::Tensor attention;  // [R, S], probabilities; 0 on padding
  };
  virtual ~NextWords() = default;
  /// Makes all rows read their next words, `words` (int64 [R]).
  virtual Step step(const at::Tensor& words) = 0;
  /// Makes row r continue the row `from[r]`. `from` is int64 and rises by sentence. Rows may be left out or
  /// come several times.
  virtual void reorder(const at::Tensor& from) = 0;
};

struct Hypothesis {
  std::vector<std::uint32_t> words;  ///< without begin and end
  double score = 0;  ///< log-probability with the penalties; without them if cut off or with a beam of 1
  bool finished = false;
};

/// The search, one word at a time: the caller makes the model's steps. A sentence ends when all its
/// hypotheses have ended. Only then are they scored with the penalties:
///   log P / ((c + length) / (c + 1))^alpha + beta sum_i ln min(1, coverage_i), ln 0 := 0
/// where begin and end count in length. Equal scores are decided by the earlier beam, then by the more likely
/// word. Needs beam <= V.
class BeamSearch {
 public:
  BeamSearch(std::int64_t sentences, const BeamOptions& options);
  ~BeamSearch();
  BeamSearch(BeamSearch&&) noexcept;
  BeamSearch& operator=(BeamSearch&&) noexcept;

  /// Returns the words that the model's rows read next, int64 [R]. Without rows the search is over.
  const at::Tensor& words() const;
  /// Returns the rows that the new rows continue, int64 [R]: row r continues row from()[r]. Undefined before
  /// the first step.
  const at::Tensor& from() const;
  /// Takes the rows' scores of the next words.
  void advance(const NextWords::Step& step);
  /// Returns the hypotheses of each sentence, at most `beam`, the best first. Call it once, after the end.
  std::vector<std::vector<Hypothesis>> hypotheses();

 private:
  class Search;
  std::unique_ptr<Search> search_;
};

/// Does the whole search over a model. Runs under no_grad.
std::vector<std::vector<Hypothesis>> beam_search(NextWords& model, std::int64_t sentences,
                                                 const BeamOptions& options);

}  // namespace millrace
