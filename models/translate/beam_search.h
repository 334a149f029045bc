// Beam search as GNMT's (arXiv 1609.08144, section 7): MLPerf's and PipeDream's generator, with the coverage
// penalty as the paper has it or as their code does.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace millrace {

/// Says whose attention a hypothesis is charged with.
enum class Coverage {
  Exact,   ///< its own: it goes along when beams are reordered
  Compat,  ///< of whatever stood in its place: the code of MLPerf and PipeDream
};

struct BeamOptions {
  int beam = 5;
  std::int64_t longest = 150;     ///< words of a hypothesis, begin and end counted
  double length_penalty = 0.6;    ///< alpha in ((5 + length) / 6)^alpha
  double length_constant = 5;     ///< the 5 in it
  double coverage_penalty = 0.1;  ///< beta
  Coverage coverage = Coverage::Exact;
  std::int64_t begin = 2, end = 3;
};

/// A model that is asked for one word after another. It has a row for each hypothesis that goes on; at first
/// one for each sentence.
class NextWords {
 public:
  struct Step {
    at::Tensor logits;     // [R, V]
    at::Tensor attention;  // [R, S], probabilities; 0 on padding
  };
  virtual ~NextWords() = default;
  /// The rows read `words` (int64 [R]).
  virtual Step step(const at::Tensor& words) = 0;
  /// Row r goes on from what row `from[r]` was (int64, rising by sentence; rows may go and come twice).
  virtual void reorder(const at::Tensor& from) = 0;
};

struct Hypothesis {
  std::vector<std::uint32_t> words;  ///< without begin and end
  double score = 0;  ///< log-probability, with the penalties; as it is where the search was cut off
  bool finished = false;
};

/// The search a word at a time, for whoever makes the model's steps. A sentence ends when all its hypotheses
/// have ended; only then are they scored with the penalties:
///   log P / ((c + length) / (c + 1))^alpha + beta sum_i ln min(1, coverage_i), ln 0 := 0
/// with begin and end counted in length. Equal scores: the hypothesis of the earlier beam, then the more
/// likely word. Needs beam <= V.
class BeamSearch {
 public:
  BeamSearch(std::int64_t sentences, const BeamOptions& options);
  ~BeamSearch();
  BeamSearch(BeamSearch&&) noexcept;
  BeamSearch& operator=(BeamSearch&&) noexcept;

  /// Returns the words that the model's rows read next, int64 [R]. Without rows the search is over.
  const at::Tensor& words() const;
  /// Row r goes on from what row `from()[r]` was, int64 [R]; undefined before the first step.
  const at::Tensor& from() const;
  /// Takes the rows' scores of the next words.
  void advance(const NextWords::Step& step);
  /// When it is over, once: for each sentence its hypotheses, `beam` at most, the best first.
  std::vector<std::vector<Hypothesis>> hypotheses();

 private:
  class Search;
  std::unique_ptr<Search> search_;
};

/// The whole search over a model. Runs under no_grad.
std::vector<std::vector<Hypothesis>> beam_search(NextWords& model, std::int64_t sentences,
                                                 const BeamOptions& options);

}  // namespace millrace
