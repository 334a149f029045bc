#include "experiments/sweep/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "runtime/base/check.h"

namespace millrace {
namespace {

struct Scored {
  int trial = 0;
  double score = 0;
};

/// Best first; equal ones in the order of trials.
void sort_by_score(std::vector<Scored>& scored) {
  std::ranges::sort(scored, [](const Scored& a, const Scored& b) {
    return a.score != b.score ? a.score > b.score : a.trial < b.trial;
  });
}

bool has_failed(double score) {
  return !(score > -std::numeric_limits<double>::infinity());
}

/// All trials, once.
class RandomSearch final : public Search {
 public:
  RandomSearch(int trials, int iterations) : trials_(trials), iterations_(iterations) {}
  std::vector<TrialStep> next() override {
    std::vector<TrialStep> steps;
    for (; given_ < trials_; ++given_) steps.push_back({given_, 0, iterations_});
    return steps;
  }
  void report(const TrialStep&, double) override {}
  int num_trials() const override { return trials_; }

 private:
  int trials_, iterations_, given_ = 0;
};

/// Bracket after bracket, rung after rung. A rung's trials go on from where they are.
class Hyperband final : public Search {
 public:
  explicit Hyperband(const SearchOptions& options) {
    for (int s = whole_log(options.most, options.eta); s >= 0; --s) {
      std::vector<Rung> rungs = bracket(options.most, options.eta, s, options.skip_last);
      if (rungs.empty()) continue;
      trials_ += rungs.front().trials;
      brackets_.push_back(std::move(rungs));
    }
  }

  std::vector<TrialStep> next() override {
    if (scored_.size() < waiting_) return {};
    while (bracket_ < brackets_.size()) {
      const std::vector<Rung>& rungs = brackets_[bracket_];
      if (rung_ == rungs.size()) {
        ++bracket_, rung_ = 0;
        scored_.clear();
        continue;
      }
      const std::vector<TrialStep> steps =
          rung_ == 0 ? fresh(rungs[0]) : kept(rungs[rung_ - 1], rungs[rung_]);
      ++rung_;
      scored_.clear();
      waiting_ = steps.size();
      if (!steps.empty()) return steps;
      rung_ = rungs.size();  // all have failed
    }
    waiting_ = 0;
    return {};
  }

  void report(const TrialStep& step, double score) override { scored_.push_back({step.trial, score}); }
  int num_trials() const override { return trials_; }

 private:
  std::vector<TrialStep> fresh(const Rung& rung) {
    std::vector<TrialStep> steps;
    for (int i = 0; i < rung.trials; ++i) steps.push_back({first_++, 0, rung.iterations});
    return steps;
  }
  std::vector<TrialStep> kept(const Rung& before, const Rung& rung) {
    std::erase_if(scored_, [](const Scored& s) { return has_failed(s.score); });
    sort_by_score(scored_);
    if (scored_.size() > static_cast<std::size_t>(rung.trials))
      scored_.resize(static_cast<std::size_t>(rung.trials));
    std::vector<TrialStep> steps;
    for (const Scored& s : scored_) steps.push_back({s.trial, before.iterations, rung.iterations});
    std::ranges::sort(steps, {}, &TrialStep::trial);
    return steps;
  }

  std::vector<std::vector<Rung>> brackets_;
  std::size_t bracket_ = 0, rung_ = 0;  // what comes next
  std::size_t waiting_ = 0;             // steps of the rung that was given out
  std::vector<Scored> scored_;
  int first_ = 0, trials_ = 0;
};

/// ASHA as `lanes` workers would play it whose time is the iterations that they run: a lane that is free at t
/// sees what ended until then. The same decisions however many steps really run at a time, and in whatever
/// order they end.
class Asha final : public Search {
 public:
  explicit Asha(const SearchOptions& options)
      : trials_(options.trials),
        eta_(options.eta),
        rungs_(asha_rungs(options.least, options.most, options.eta)),
        scored_(rungs_.size()),
        promoted_(rungs_.size()) {
    for (int lane = 0; lane < options.lanes; ++lane) lanes_.push_back({});
  }

  std::vector<TrialStep> next() override {
    std::vector<TrialStep> steps;
    for (;;) {
      // The lane whose work ends first, in its own time; idle ones wait for what others learn.
      Lane* first = nullptr;
      for (Lane& lane : lanes_) {
        if (!lane.idle && (!first || lane.time < first->time)) first = &lane;
      }
      if (!first) return steps;
      if (first->step) {
        const auto known = scores_.find({first->step->trial, first->step->to});
        if (known == scores_.end()) return steps;
        learn(*first->step, known->second);
        first->step.reset();
        for (Lane& lane : lanes_) {
          if (lane.idle) lane = {.time = first->time};
        }
      }
      first->step = decide();
      if (first->step) {
        first->time += first->step->to - first->step->from;
        steps.push_back(*first->step);
      } else {
        first->idle = true;
      }
    }
  }

  void report(const TrialStep& step, double score) override { scores_[{step.trial, step.to}] = score; }
  int num_trials() const override { return trials_; }

 private:
  struct Lane {
    std::int64_t time = 0;
    std::optional<TrialStep> step = {};
    bool idle = false;
  };

  void learn(const TrialStep& step, double score) {
    const auto rung = static_cast<std::size_t>(std::ranges::find(rungs_, step.to) - rungs_.begin());
    scored_[rung].push_back({step.trial, score});
  }

  std::optional<TrialStep> decide() {
    for (std::size_t k = rungs_.size() - 1; k-- > 0;) {
      std::vector<Scored> best = scored_[k];
      sort_by_score(best);
      best.resize(best.size() / static_cast<std::size_t>(eta_));
      for (const Scored& s : best) {
        if (has_failed(s.score) || !promoted_[k].insert(s.trial).second) continue;
        return TrialStep{s.trial, rungs_[k], rungs_[k + 1]};
      }
    }
    if (given_ == trials_) return std::nullopt;
    return TrialStep{given_++, 0, rungs_[0]};
  }

  int trials_, eta_, given_ = 0;
  std::vector<int> rungs_;
  std::vector<std::vector<Scored>> scored_;  // by rung
  std::vector<std::set<int>> promoted_;      // by rung
  std::vector<Lane> lanes_;
  std::map<std::pair<int, int>, double> scores_;  // what was reported, by trial and iterations
};

}  // namespace

int whole_log(int most, int eta) {
  MILLRACE_CHECK(most >= 1 && eta >= 2);
  int s = 0;
  for (std::int64_t power = eta; power <= most; power *= eta) ++s;
  return s;
}

std::vector<Rung> bracket(int most, int eta, int s, int skip_last) {
  const int s_max = whole_log(most, eta);
  MILLRACE_CHECK(s >= 0 && s <= s_max);
  std::int64_t power = 1;
  for (int i = 0; i < s; ++i) power *= eta;
  std::int64_t trials = (power * (s_max + 1) + s) / (s + 1);
  std::vector<Rung> rungs;
  std::int64_t grown = 1;  // eta^i
  for (int i = 0; i <= s - skip_last; ++i) {
    if (trials == 0) break;
    rungs.push_back({static_cast<int>(trials),
                     static_cast<int>(std::max<std::int64_t>(1, std::int64_t{most} * grown / power))});
    trials /= eta;
    grown *= eta;
  }
  return rungs;
}

std::vector<int> asha_rungs(int least, int most, int eta) {
  MILLRACE_CHECK(least >= 1 && least <= most && eta >= 2);
  std::vector<int> rungs;
  for (std::int64_t part = 1; most / part >= least; part *= eta)
    rungs.insert(rungs.begin(), static_cast<int>(most / part));
  return rungs;
}

std::unique_ptr<Search> make_search(const SearchOptions& options) {
  switch (options.kind) {
    case SearchKind::Random:
      return std::make_unique<RandomSearch>(options.trials, options.iterations);
    case SearchKind::Hyperband:
      return std::make_unique<Hyperband>(options);
    case SearchKind::Asha:
      return std::make_unique<Asha>(options);
  }
  return nullptr;
}

}  // namespace millrace
