#include "models/translate/beam_search.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/topk.h>

#include "runtime/base/check.h"

namespace millrace {
namespace {

struct Candidate {
  double score;
  std::size_t beam;
  std::int64_t word;
};

/// The k most likely words of every row.
struct Likely {
  at::Tensor words, scores;  // int64 and float32 [R, k]
};

Likely most_likely(const at::Tensor& logits, int k) {
  auto [values, words] = at::topk(logits, k, 1);
  return {words.contiguous(), values.sub_(at::logsumexp(logits, 1, true)).to(at::kFloat).contiguous()};
}

at::Tensor tensor_of(const std::vector<std::int64_t>& numbers) {
  at::Tensor result = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  std::ranges::copy(numbers, result.mutable_data_ptr<std::int64_t>());
  return result;
}

}  // namespace

class BeamSearch::Search {
 public:
  Search(std::int64_t sentences, const BeamOptions& options)
      : o_(options), sentences_(static_cast<std::size_t>(sentences)) {
    MILLRACE_CHECK(o_.beam > 0 && o_.longest > 0, "beam " << o_.beam);
    for (std::size_t s = 0; s < sentences_.size(); ++s)
      sentences_[s].beams = {Beam{.row = static_cast<std::int64_t>(s)}};
    words = at::full({length_ < o_.longest ? sentences : 0}, o_.begin, at::kLong);
  }

  void advance(const NextWords::Step& step) {
    const Likely likely = most_likely(step.logits, o_.beam);
    const at::Tensor attention = step.attention.to(at::kFloat).contiguous();
    for (Sentence& sentence : sentences_) {
      if (sentence.active) extend(sentence, likely, attention);
    }
    ++length_;
    give_rows(length_ < o_.longest);
  }

  std::vector<std::vector<Hypothesis>> hypotheses() {
    std::vector<std::vector<Hypothesis>> results;
    for (Sentence& sentence : sentences_) results.push_back(hypotheses(sentence));
    return results;
  }

  at::Tensor words, from;

 private:
  struct Beam {
    std::vector<std::uint32_t> words;
    double score = 0;
    std::int64_t length = 1;  // words, where begin counts
    bool finished = false;
    std::int64_t row = 0;  // the model's row, until the hypothesis is finished
  };

  struct Sentence {
    std::vector<Beam> beams;
    std::vector<std::vector<double>> coverage;  // indexed by beam; with Compat by place
    bool active = true;
    bool ended = false;  // ended before the room for words did

    bool all_finished() const {
      return std::ranges::all_of(beams, [](const Beam& beam) { return beam.finished; });
    }
  };

  /// Extends the hypotheses of a sentence by one word.
  void extend(Sentence& sentence, const Likely& likely, const at::Tensor& attention) {
    add_attention(sentence, attention);
    const auto* words = likely.words.const_data_ptr<std::int64_t>();
    const auto* scores = likely.scores.const_data_ptr<float>();
    std::vector<Candidate> candidates;
    for (std::size_t b = 0; b < sentence.beams.size(); ++b) {
      const Beam& beam = sentence.beams[b];
      if (beam.finished) {
        candidates.push_back({beam.score, b, o_.end});
        continue;
      }
      for (int i = 0; i < o_.beam; ++i) {
        const std::int64_t at = beam.row * o_.beam + i;
        candidates.push_back({beam.score + double{scores[at]}, b, words[at]});
      }
    }
    std::ranges::stable_sort(candidates, std::ranges::greater{}, &Candidate::score);
    candidates.resize(std::min(candidates.size(), static_cast<std::size_t>(o_.beam)));
    std::vector<Beam> beams;
    std::vector<std::vector<double>> coverage;
    for (const Candidate& candidate : candidates) {
      Beam beam = sentence.beams[candidate.beam];
      beam.score = candidate.score;
      if (!beam.finished) {
        ++beam.length;
        beam.finished = candidate.word == o_.end;
        if (!beam.finished) beam.words.push_back(static_cast<std::uint32_t>(candidate.word));
      }
      beams.push_back(std::move(beam));
      coverage.push_back(sentence.coverage[candidate.beam]);
    }
    // The first step has one beam. The original has `beam` copies of it, so all places get its coverage.
    if (o_.coverage == Coverage::Exact || sentence.beams.size() == 1) sentence.coverage = std::move(coverage);
    sentence.beams = std::move(beams);
  }

  static void add_attention(Sentence& sentence, const at::Tensor& attention) {
    const std::int64_t positions = attention.size(1);
    sentence.coverage.resize(sentence.beams.size(), std::vector<double>(positions));
    for (std::size_t b = 0; b < sentence.beams.size(); ++b) {
      const Beam& beam = sentence.beams[b];
      if (beam.finished) continue;
      const float* of_row = attention.const_data_ptr<float>() + beam.row * positions;
      for (std::size_t i = 0; i < sentence.coverage[b].size(); ++i)
        sentence.coverage[b][i] += double{of_row[i]};
    }
  }

  /// Gives rows to the beams that are not finished, if there is room for another word. A sentence whose last
  /// beams finish only with the last word that has room counts as cut off, as in the original.
  void give_rows(bool room) {
    std::vector<std::int64_t> before, last;
    for (Sentence& sentence : sentences_) {
      if (!sentence.active) continue;
      if (sentence.all_finished()) {
        sentence.active = false;
        sentence.ended = room;
      }
      for (Beam& beam : sentence.beams) {
        if (beam.finished || !room) continue;
        before.push_back(beam.row);
        last.push_back(beam.words.back());
        beam.row = static_cast<std::int64_t>(before.size()) - 1;
      }
    }
    words = tensor_of(last);
    from = tensor_of(before);
  }

  double penalised(const Beam& beam, const std::vector<double>& coverage) const {
    const double norm =
        std::pow((o_.length_constant + static_cast<double>(beam.length)) / (o_.length_constant + 1),
                 o_.length_penalty);
    double covered = 0;
    for (const double sum : coverage) {
      if (sum > 0) covered += std::log(std::min(1.0, sum));
    }
    return beam.score / norm + o_.coverage_penalty * covered;
  }

  std::vector<Hypothesis> hypotheses(Sentence& sentence) const {
    std::vector<Hypothesis> results;
    for (std::size_t b = 0; b < sentence.beams.size(); ++b) {
      Beam& beam = sentence.beams[b];
      const bool penalties = sentence.ended && o_.beam > 1;
      const double score = penalties ? penalised(beam, sentence.coverage[b]) : beam.score;
      results.push_back({std::move(beam.words), score, beam.finished});
    }
    std::ranges::stable_sort(results, std::ranges::greater{}, &Hypothesis::score);
    return results;
  }

  BeamOptions o_;
  std::vector<Sentence> sentences_;
  std::int64_t length_ = 1;  // length of the hypotheses that are not finished
};

BeamSearch::BeamSearch(std::int64_t sentences, const BeamOptions& options)
    : search_(std::make_unique<Search>(sentences, options)) {}
BeamSearch::~BeamSearch() = default;
BeamSearch::BeamSearch(BeamSearch&&) noexcept = default;
BeamSearch& BeamSearch::operator=(BeamSearch&&) noexcept = default;

const at::Tensor& BeamSearch::words() const {
  return search_->words;
}
const at::Tensor& BeamSearch::from() const {
  return search_->from;
}
void BeamSearch::advance(const NextWords::Step& step) {
  search_->advance(step);
}
std::vector<std::vector<Hypothesis>> BeamSearch::hypotheses() {
  return search_->hypotheses();
}

std::vector<std::vector<Hypothesis>> beam_search(NextWords& model, std::int64_t sentences,
                                                 const BeamOptions& options) {
  const at::NoGradGuard no_grad;
  BeamSearch search(sentences, options);
  while (search.words().size(0) > 0) {
    if (search.from().defined()) model.reorder(search.from());
    search.advance(model.step(search.words()));
  }
  return search.hypotheses();
}

}  // namespace millrace
