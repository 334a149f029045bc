#include "optimizer/planner/plan_jobs.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "runtime/plan/array_profiles.h"

namespace millrace {
namespace {

constexpr double kEqual = 1e-9;          // relative difference of times that count as equal
constexpr int kEverySize = 16;           // all sizes of arrays up to this one are looked at
constexpr int kEveryArrayCount = 16;     // all numbers of arrays at once up to this one are looked at
constexpr long kMostPlaces = 1'000'000;  // arrays x microbatches x ranks that a search may have

int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

/// Returns the sizes of arrays that are looked at: small ones, measured ones, and the sizes of equal parts
/// into which the jobs divide.
std::vector<int> sizes_of(const LayerGraph& profile, int jobs) {
  const std::vector<int> measured = measured_sizes(profile);
  const int most = std::min(jobs, measured.back());
  std::set<int> sizes;
  for (int size = measured.front(); size <= std::min(most, kEverySize); ++size) sizes.insert(size);
  for (int size : measured)
    if (size <= most) sizes.insert(size);
  for (int parts = 1; parts <= jobs; ++parts)
    if (const int size = ceil_div(jobs, parts); size <= most && size >= measured.front()) sizes.insert(size);
  return {sizes.begin(), sizes.end()};
}

/// Returns the numbers of arrays at once for `arrays` arrays in all: small ones, and the fewest for each
/// number of rounds.
std::vector<int> array_counts(int arrays) {
  std::set<int> counts;
  for (int count = 1; count <= std::min(arrays, kEveryArrayCount); ++count) counts.insert(count);
  for (int rounds = 1; rounds <= arrays; ++rounds) counts.insert(ceil_div(arrays, rounds));
  return {counts.begin(), counts.end()};
}

/// A way to divide the jobs.
struct JobsWay {
  int jobs = 1, arrays = 1;
  std::vector<PlanRound> rounds;
  double compute_s = 0;
};

/// Returns whether `a` is better: less time, then measured sizes, fewer rounds, less memory, fewer arrays.
bool better_candidate(const JobsCandidate& a, const JobsCandidate& b) {
  if (std::abs(a.total_s - b.total_s) > kEqual * std::max(a.total_s, b.total_s)) return a.total_s < b.total_s;
  const auto key = [](const JobsCandidate& c) {
    return std::tuple(c.interpolated, c.plan.rounds.size(), c.peak_bytes, c.arrays);
  };
  return key(a) < key(b);
}

class JobsSearch {
 public:
  JobsSearch(const LayerGraph& profile, const ClusterSpec& cluster, const PlannerOptions& options, int jobs)
      : profile_(profile),
        cluster_(cluster),
        options_(options),
        jobs_(jobs),
        costs_(profile, cluster, options.costs),
        fingerprint_(profile.fingerprint()) {}

  Result<JobsAnswer> run() {
    if (Problems problems = add_ways(); !problems.empty()) return problems;
    for (const JobsWay& way : ways_) look_at(way);
    if (answer_.candidates.empty()) return refusal();
    std::ranges::stable_sort(answer_.candidates, better_candidate);
    answer_.ways = static_cast<int>(ways_.size());
    return std::move(answer_);
  }

 private:
  Problems add_ways() {
    for (const int size : sizes_of(profile_, jobs_)) {
      for (const int arrays : array_counts(ceil_div(jobs_, size))) {
        if (arrays > 1 && options_.schedule && is_asynchronous(*options_.schedule)) continue;
        if (arrays > 1 && long{arrays} * options_.microbatches * cluster_.num_ranks() > kMostPlaces) continue;
        for (std::vector<PlanRound>& rounds : divisions_of(jobs_, size, arrays)) {
          JobsWay way{.jobs = size, .arrays = arrays, .rounds = std::move(rounds)};
          for (const PlanRound& round : way.rounds) {
            for (const int own : round.sizes()) {
              const Result<double> seconds = costs_.compute_s(own, options_.microbatches);
              if (!seconds) return seconds.problems();
              way.compute_s += *seconds;
            }
          }
          ways_.push_back(std::move(way));
        }
      }
    }
    // Ways with the least compute time come first; of equal ones, those with fewer rounds.
    std::ranges::stable_sort(ways_, [](const JobsWay& a, const JobsWay& b) {
      return std::tuple(a.compute_s, a.rounds.size()) < std::tuple(b.compute_s, b.rounds.size());
    });
    return {};
  }

  void look_at(const JobsWay& way) {
    if (way.compute_s > least_ * (1 + kEqual)) {
      ++answer_.no_better;
      return;
    }
    const Result<PlannerAnswer>* found = plans_for(way.jobs, way.arrays);
    if (found == nullptr || !*found) {
      ++answer_.not_fitting;
      return;
    }
    std::optional<JobsCandidate> best;
    const auto consider = [&](const Plan& plan) {
      std::optional<JobsCandidate> made = candidate(way, plan);
      if (made && (!best || better_candidate(*made, *best))) best = std::move(made);
    };
    consider((*found)->plan);
    for (const PlanCandidate& other : (*found)->others) consider(other.plan);
    if (!best) return;
    least_ = std::min(least_, best->total_s);
    answer_.candidates.push_back(*std::move(best));
  }

  /// Returns the plans for arrays of `jobs` jobs, from a cache. Returns null if the weights and gradients do
  /// not fit even if they are spread evenly.
  const Result<PlannerAnswer>* plans_for(int jobs, int arrays) {
    const auto known = plans_.find({jobs, arrays});
    if (known != plans_.end()) return &known->second;
    const Result<SizedModel*> sized = costs_.of(jobs, arrays);
    if (!sized) return nullptr;  // add_ways() has asked for this size
    if (!may_fit((*sized)->graph, arrays)) return nullptr;
    PlannerOptions options = options_of(options_, arrays);
    options.costs = (*sized)->model->options();
    return &plans_.emplace(std::pair(jobs, arrays), plan_that_fits((*sized)->graph, cluster_, options))
                .first->second;
  }

  bool may_fit(const LayerGraph& graph, int arrays) const {
    Bytes room = 0, weights = 0;
    for (int r = 0; r < cluster_.num_ranks(); ++r) {
      const Bytes own =
          options_.memory_per_rank > 0 ? options_.memory_per_rank : cluster_.memory_of(RankId(r));
      if (own == 0) return true;
      room = saturating_sum(room, own);
    }
    for (const LayerNode& node : graph.nodes) weights = saturating_sum(weights, node.parameter_bytes);
    return saturating_product(weights, 2 * std::int64_t{arrays}) <= room;
  }

  std::optional<JobsCandidate> candidate(const JobsWay& way, const Plan& plan) {
    JobsCandidate made{.plan = plan, .jobs = way.jobs, .arrays = way.arrays, .compute_s = way.compute_s};
    made.plan.rounds = way.rounds;
    made.plan.graph_fingerprint = fingerprint_;
    double idle_s = 0;
    std::optional<std::pair<PlanRound, RoundCost>> before;  // rounds that are alike follow each other
    for (PlanRound& round : made.plan.rounds) {
      if (!before || !(before->first == round)) {
        const Result<RoundCost> cost = costs_.cost(plan, round);
        if (!cost) return std::nullopt;
        before = {round, *cost};
      }
      round.predicted_step_s = before->second.step_s;
      made.total_s += before->second.step_s;
      idle_s += before->second.step_s * before->second.idle;
      for (const int size : round.sizes())
        made.interpolated = made.interpolated || !is_measured(profile_, size);
    }
    made.idle = made.total_s > 0 ? idle_s / made.total_s : 0;
    made.plan.predicted_step_s = made.plan.rounds.front().predicted_step_s;
    for (const PlanStage& stage : plan.stages) made.peak_bytes = std::max(made.peak_bytes, stage.peak_bytes);
    return made;
  }

  /// Returns the planner's refusal for the smallest request: each job by itself.
  Problems refusal() {
    const int least = measured_sizes(profile_).front();
    const Result<SizedModel*> sized = costs_.of(least, 1);
    if (!sized) return sized.problems();
    PlannerOptions options = options_of(options_, 1);
    options.costs = (*sized)->model->options();
    const Result<PlannerAnswer> answer = explain_plan((*sized)->graph, cluster_, options, Reasons::RunnerUp);
    if (!answer) return answer.problems();
    return {{"--jobs", "no way to divide " + std::to_string(jobs_) + " jobs was found",
             "plan one job: leave out --jobs"}};
  }

  const LayerGraph& profile_;
  const ClusterSpec& cluster_;
  const PlannerOptions& options_;
  const int jobs_;
  RoundCosts costs_;
  const std::string fingerprint_;
  std::vector<JobsWay> ways_;
  std::map<std::pair<int, int>, Result<PlannerAnswer>> plans_;
  double least_ = std::numeric_limits<double>::infinity();
  JobsAnswer answer_;
};

}  // namespace

std::vector<std::vector<PlanRound>> divisions_of(int jobs, int largest, int arrays) {
  std::vector<std::vector<PlanRound>> divisions;
  if (largest > jobs || std::int64_t{largest} * (arrays - 1) >= jobs) return divisions;
  const auto add = [&](std::vector<PlanRound> rounds) {
    if (std::ranges::find(divisions, rounds) == divisions.end()) divisions.push_back(std::move(rounds));
  };
  const int of_round = static_cast<int>(std::min<std::int64_t>(std::int64_t{largest} * arrays, jobs));
  std::vector<PlanRound> full;
  for (int left = jobs; left > 0;) {
    const int own = std::min(left, of_round);
    full.push_back({.jobs = own, .arrays = std::min(arrays, ceil_div(own, largest))});
    left -= own;
  }
  const int rounds = static_cast<int>(full.size());
  if (full.front().largest() == largest && full.front().arrays == arrays) add(std::move(full));
  std::vector<PlanRound> even;
  for (int r = 0; r < rounds; ++r) {
    const int own = jobs / rounds + (r < jobs % rounds);
    even.push_back({.jobs = own, .arrays = std::min(arrays, own)});
  }
  if (even.front().largest() == largest && even.front().arrays == arrays) add(std::move(even));
  return divisions;
}

PlannerOptions options_of(const PlannerOptions& options, int arrays) {
  PlannerOptions made = options;
  made.costs.arrays = arrays;
  made.microbatches = options.microbatches * arrays;
  return made;
}

Result<JobsAnswer> plan_jobs(const LayerGraph& profile, const ClusterSpec& cluster,
                             const PlannerOptions& options, int jobs) {
  Problems problems;
  if (jobs < 1) problems.push_back({"--jobs", "is below 1", "give how many are to be trained"});
  if (options.microbatches < 1)
    problems.push_back({"--microbatches", "cannot be chosen for several jobs",
                        "give --batch SAMPLES: what a step of each job has"});
  if (profile.jobs > 1)
    problems.push_back({"profile", "begins with an array of " + std::to_string(profile.jobs) + " jobs",
                        "give the profile that it is part of"});
  if (!problems.empty()) return problems;
  return JobsSearch(profile, cluster, options, jobs).run();
}

}  // namespace millrace
