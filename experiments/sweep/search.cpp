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
  bool is_over(int) const override { return true; }

 private:
  int trials_, iterations_, given_ = 0;
};

/// Rung after rung. A rung's trials go on from where they are.
class Bracket {
 public:
  /// The bracket's trials are `first` and those that follow.
  Bracket(std::vector<Rung> rungs, int first) : rungs_(std::move(rungs)), first_(first) {}

  int first() const { return first_; }
  int num_trials() const { return rungs_.front().trials; }

  std::vector<TrialStep> next() {
    if (scored_.size() < going_.size()) return {};
    std::vector<TrialStep> steps;
    if (rung_ == 0)
      steps = fresh();
    else if (rung_ < rungs_.size())
      steps = kept(rungs_[rung_ - 1], rungs_[rung_]);
    rung_ = steps.empty() ? rungs_.size() : rung_ + 1;  // none: all have failed
    scored_.clear();
    going_.clear();
    for (const TrialStep& step : steps) going_.insert(step.trial);
    return steps;
  }

  void report(int trial, double score) { scored_.push_back({trial, score}); }
  bool is_over(int trial) const { return going_.count(trial) == 0; }

 private:
  std::vector<TrialStep> fresh() const {
    std::vector<TrialStep> steps;
    for (int i = 0; i < num_trials(); ++i) steps.push_back({first_ + i, 0, rungs_.front().iterations});
    return steps;
  }
  std::vector<TrialStep> kept(const Rung& before, const Rung& rung) {
    std::erase_if(scored_, [](const Scored& s) { return has_failed(s.score); });
    sort_by_score(scored_);
    if (scored_.size() > static_cast<std::size_t>(rung.trials)) scored_.resize(rung.trials);
    std::vector<TrialStep> steps;
    for (const Scored& s : scored_) steps.push_back({s.trial, before.iterations, rung.iterations});
    std::ranges::sort(steps, {}, &TrialStep::trial);
    return steps;
  }

  std::vector<Rung> rungs_;
  int first_;
  std::size_t rung_ = 0;  // what comes next
  std::set<int> going_;   // trials of the rung that was given out
  std::vector<Scored> scored_;
};

/// All brackets side by side: none knows of the others.
class Hyperband final : public Search {
 public:
  explicit Hyperband(const SearchOptions& options) {
    for (int s = whole_log(options.most, options.eta); s >= 0; --s) {
      std::vector<Rung> rungs = bracket(options.most, options.eta, s, options.skip_last);
      if (rungs.empty()) continue;
      brackets_.emplace_back(std::move(rungs), trials_);
      trials_ += brackets_.back().num_trials();
    }
  }

  std::vector<TrialStep> next() override {
    std::vector<TrialStep> steps;
    for (Bracket& bracket : brackets_) {
      const std::vector<TrialStep> more = bracket.next();
      steps.insert(steps.end(), more.begin(), more.end());
    }
    return steps;
  }

  void report(const TrialStep& step, double score) override {
    brackets_[group(step.trial)].report(step.trial, score);
  }
  int num_trials() const override { return trials_; }
  int group(int trial) const override {
    const auto after = std::ranges::upper_bound(brackets_, trial, {}, &Bracket::first);
    return static_cast<int>(after - brackets_.begin()) - 1;
  }
  bool is_over(int trial) const override { return brackets_[group(trial)].is_over(trial); }

 private:
  std::vector<Bracket> brackets_;
  int trials_ = 0;
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
