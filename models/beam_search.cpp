#include "models/beam_search.h"

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

struct Beam {
  std::vector<std::uint32_t> words;
  double score = 0;
  std::int64_t length = 1;  // begin
  bool finished = false;
  std::int64_t row = 0;  // of the model, while it goes on
};

struct Sentence {
  std::vector<Beam> beams;
  std::vector<std::vector<double>> coverage;  // by beam; with Compat by place
  bool active = true;
  bool ended = false;  // before there was no room left

  bool all_finished() const {
    return std::ranges::all_of(beams, [](const Beam& beam) { return beam.finished; });
  }
};

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

class Search {
 public:
  Search(NextWords& model, std::int64_t sentences, const BeamOptions& options)
      : model_(model), o_(options), sentences_(static_cast<std::size_t>(sentences)) {
    for (std::size_t s = 0; s < sentences_.size(); ++s)
      sentences_[s].beams = {Beam{.row = static_cast<std::int64_t>(s)}};
  }

  std::vector<std::vector<Hypothesis>> run() {
    at::Tensor words = at::full({static_cast<std::int64_t>(sentences_.size())}, o_.begin, at::kLong);
    for (std::int64_t t = 1; t < o_.longest && words.size(0) > 0; ++t) {
      NextWords::Step step = model_.step(words);
      const Likely likely = most_likely(step.logits, o_.beam);
      const at::Tensor attention = step.attention.to(at::kFloat).contiguous();
      for (Sentence& sentence : sentences_) {
        if (sentence.active) extend(sentence, likely, attention);
      }
      words = next_rows(t + 1 < o_.longest);
    }
    std::vector<std::vector<Hypothesis>> results;
    for (Sentence& sentence : sentences_) results.push_back(hypotheses(sentence));
    return results;
  }

 private:
  /// A sentence by a word.
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
    // The first step has one beam, of which the original has as many copies.
    if (o_.coverage == Coverage::Exact || sentence.beams.size() == 1) sentence.coverage = std::move(coverage);
    sentence.beams = std::move(beams);
  }

  static void add_attention(Sentence& sentence, const at::Tensor& attention) {
    const std::int64_t positions = attention.size(1);
    sentence.coverage.resize(sentence.beams.size(), std::vector<double>(static_cast<std::size_t>(positions)));
    for (std::size_t b = 0; b < sentence.beams.size(); ++b) {
      const Beam& beam = sentence.beams[b];
      if (beam.finished) continue;
      const float* of_row = attention.const_data_ptr<float>() + beam.row * positions;
      for (std::size_t i = 0; i < sentence.coverage[b].size(); ++i)
        sentence.coverage[b][i] += double{of_row[i]};
    }
  }

  /// Gives rows to the beams that go on, tells the model, and returns their last words. A sentence whose
  /// beams are all finished by the last word that there is room for counts as cut off, as in the original.
  at::Tensor next_rows(bool room) {
    std::vector<std::int64_t> from, last;
    for (Sentence& sentence : sentences_) {
      if (!sentence.active) continue;
      if (sentence.all_finished()) {
        sentence.active = false;
        sentence.ended = room;
      }
      for (Beam& beam : sentence.beams) {
        if (beam.finished) continue;
        from.push_back(beam.row);
        last.push_back(beam.words.back());
        beam.row = static_cast<std::int64_t>(from.size()) - 1;
      }
    }
    const auto tensor = [](const std::vector<std::int64_t>& numbers) {
      at::Tensor result = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
      std::ranges::copy(numbers, result.mutable_data_ptr<std::int64_t>());
      return result;
    };
    if (!from.empty()) model_.reorder(tensor(from));
    return tensor(last);
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

  NextWords& model_;
  const BeamOptions& o_;
  std::vector<Sentence> sentences_;
};

}  // namespace

std::vector<std::vector<Hypothesis>> beam_search(NextWords& model, std::int64_t sentences,
                                                 const BeamOptions& options) {
  MILLRACE_CHECK(options.beam > 0 && options.longest > 0, "beam " << options.beam);
  const at::NoGradGuard no_grad;
  return Search(model, sentences, options).run();
}

}  // namespace millrace
