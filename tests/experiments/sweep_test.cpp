// Sweeps and searches without a process: settings, partitions, rungs, promotions, throughput, files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <set>

#include "experiments/sweep/array_pace.h"
#include "experiments/sweep/batch_arrays.h"
#include "experiments/sweep/journal.h"
#include "experiments/sweep/next_array.h"
#include "experiments/sweep/partition.h"
#include "experiments/sweep/run_pool.h"
#include "experiments/sweep/search.h"
#include "experiments/sweep/settings.h"
#include "experiments/sweep/sweep_command.h"
#include "experiments/sweep/sweep_spec.h"
#include "experiments/sweep/throughput.h"
#include "experiments/sweep/tune_command.h"
#include "experiments/sweep/tune_results.h"
#include "experiments/sweep/tune_spec.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

Varied varied_of(const std::string& yaml, Problems& problems) {
  const Result<Json> json = parse_yaml(yaml, "sweep.yaml");
  EXPECT_TRUE(json) << yaml;
  return read_varied(json->find("lists"), json->find("grid"), json->find("sample"), problems);
}

std::vector<std::string> texts(const Varied& varied, int jobs, std::uint64_t seed = 1) {
  std::vector<std::string> all;
  for (int i = 0; i < jobs; ++i)
    all.push_back(settings_text(settings_of(varied, seed, static_cast<std::size_t>(i))));
  return all;
}

TEST(SweptSettings, ListsGoTogetherAndGridsCross) {
  Problems problems;
  const Varied varied = varied_of(
      "lists: {lr: [0.1, 2e-3], seed: [1, 2]}\ngrid: {beta_1: [0, 0.9], optimizer: [sgd, adam]}", problems);
  ASSERT_TRUE(problems.empty()) << to_string(problems);
  EXPECT_EQ(varied.combinations(), 8u);
  EXPECT_EQ(texts(varied, 8),
            (std::vector<std::string>{
                "lr=0.1 seed=1 beta-1=0 rule=sgd", "lr=0.1 seed=1 beta-1=0 rule=adam",
                "lr=0.1 seed=1 beta-1=0.9 rule=sgd", "lr=0.1 seed=1 beta-1=0.9 rule=adam",
                "lr=0.002 seed=2 beta-1=0 rule=sgd", "lr=0.002 seed=2 beta-1=0 rule=adam",
                "lr=0.002 seed=2 beta-1=0.9 rule=sgd", "lr=0.002 seed=2 beta-1=0.9 rule=adam"}));
}

TEST(SweptSettings, DrawsDependOnSeedFlagAndJobAlone) {
  Problems problems;
  const Varied one = varied_of("sample: {lr: {uniform: [0.1, 0.9]}}", problems);
  const Varied two = varied_of(
      "sample: {step: {integers: [5, 40], step: 5}, lr: {uniform: [0.1, 0.9]}, gamma: {log_uniform: [1e-4, "
      "1]}}",
      problems);
  ASSERT_TRUE(problems.empty()) << to_string(problems);
  std::set<std::string> steps;
  for (std::size_t job = 0; job < 200; ++job) {
    const JobSettings all = settings_of(two, 7, job);
    EXPECT_EQ(settings_of(one, 7, job)[0].text, all[1].text);
    EXPECT_NE(settings_of(two, 8, job)[1].text, all[1].text);
    const double lr = std::stod(all[1].text), gamma = std::stod(all[2].text);
    EXPECT_TRUE(lr >= 0.1 && lr <= 0.9 && gamma >= 1e-4 && gamma <= 1) << settings_text(all);
    steps.insert(all[0].text);
  }
  EXPECT_EQ(steps, (std::set<std::string>{"5", "10", "15", "20", "25", "30", "35", "40"}));
}

TEST(SweptSettings, WrongOnesAreRefusedWithTheirPlace) {
  const std::map<std::string, std::string> wrong{
      {"lists: {lr: [1, 2], seed: [1, 2, 3]}", "seed has 3 values, lr has 2"},
      {"lists: {lr: []}", "needs a list"},
      {"lists: {lr: 3}", "needs a list"},
      {"lists: {lr: [1, [2]]}", "not one value"},
      {"lists: {lr: [1]}\ngrid: {lr: [2]}", "varies twice"},
      {"lists: {weight_decay: [1], weight-decay: [2]}", "varies twice"},
      {"sample: {lr: {uniform: [0.1, 0.1]}}", "no width"},
      {"sample: {lr: {uniform: [0.2, 0.1]}}", "above the upper"},
      {"sample: {lr: {uniform: [0.1]}}", "two numbers"},
      {"sample: {lr: {log_uniform: [0, 1]}}", "above 0"},
      {"sample: {lr: {integers: [3, 3]}}", "no width"},
      {"sample: {lr: {integers: [1, 2.5]}}", "two integers"},
      {"sample: {lr: {integers: [1, 10], step: 20}}", "no width"},
      {"sample: {lr: {uniform: [1, 10], step: 2}}", "step belongs to integers"},
      {"sample: {lr: {choice: [8]}}", "no width"},
      {"sample: {lr: {choice: [8, 8]}}", "no width"},
      {"sample: {lr: {unifrom: [1, 2]}}", "uniform"},
      {"sample: {lr: {uniform: [1, 2], choice: [1, 2]}}", "needs one of"},
      {"sample: {lr: 3}", "needs a distribution"},
      {"grid: [lr]", "not a mapping"},
  };
  for (const auto& [yaml, part] : wrong) {
    Problems problems;
    varied_of(yaml, problems);
    const std::string said = to_string(problems);
    EXPECT_NE(said.find(part), std::string::npos) << yaml << "\n" << said;
    EXPECT_EQ(said.rfind("sweep.yaml:", 0), 0u) << yaml << "\n" << said;
  }
}

// -- partitions --

TEST(Partitions, AreTheFewestThatAgreeAndKeepTheirOrder) {
  std::vector<JobSettings> jobs;
  for (const auto& [batch, depth] : std::vector<std::pair<const char*, const char*>>{
           {"8", "2"}, {"16", "2"}, {"8", "2"}, {"8", "3"}, {"16", "2"}, {"16", "3"}, {"8", "3"}})
    jobs.push_back({{"microbatch", batch, ""}, {"lr", "1", ""}, {"depth", depth, ""}});
  const auto of = [&](int job) -> const JobSettings& { return jobs[job]; };
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6};
  const std::vector<std::string> infusible{"microbatch", "depth"};
  const std::vector<Partition> parts = partitions(all, infusible, of);
  EXPECT_EQ(parts, (std::vector<Partition>{{0, 2}, {1, 4}, {3, 6}, {5}}));
  EXPECT_EQ(partition_key(jobs[1], infusible), "depth:2,microbatch:16");
  EXPECT_TRUE(partitions({}, infusible, of).empty());
  EXPECT_TRUE(is_fusible("lr") && is_fusible("beta2") && is_fusible("dropout") && is_fusible("seed") &&
              is_fusible("lr") && is_fusible("gamma") && is_fusible("lr-step-epochs") && is_fusible("rule"));
  EXPECT_FALSE(is_fusible("microbatch") || is_fusible("width") || is_fusible("stages"));
}

// -- searches --

TEST(Hyperband, HasThePapersTable) {
  using R = std::vector<Rung>;
  EXPECT_EQ(bracket(81, 3, 4), (R{{81, 1}, {27, 3}, {9, 9}, {3, 27}, {1, 81}}));
  EXPECT_EQ(bracket(81, 3, 3), (R{{34, 3}, {11, 9}, {3, 27}, {1, 81}}));
  EXPECT_EQ(bracket(81, 3, 2), (R{{15, 9}, {5, 27}, {1, 81}}));
  EXPECT_EQ(bracket(81, 3, 1), (R{{8, 27}, {2, 81}}));
  EXPECT_EQ(bracket(81, 3, 0), (R{{5, 81}}));
}

TEST(Hyperband, IsExactWhereFloatsAreNot) {
  EXPECT_EQ(whole_log(243, 3), 5) << "int(log(243) / log(3)) is 4";
  EXPECT_EQ(whole_log(242, 3), 4);
  EXPECT_EQ(whole_log(125, 5), 3);
  EXPECT_EQ(whole_log(1, 2), 0);
  EXPECT_EQ(bracket(243, 3, 5).front(), (Rung{243, 1}));
  // Odd numbers: whole iterations that grow, the last rung the whole budget.
  for (int eta = 2; eta <= 5; ++eta) {
    for (int most = 1; most <= 300; ++most) {
      for (int s = 0; s <= whole_log(most, eta); ++s) {
        const std::vector<Rung> rungs = bracket(most, eta, s);
        for (std::size_t i = 0; i < rungs.size(); ++i) {
          EXPECT_GE(rungs[i].trials, 1);
          if (i == 0) continue;
          EXPECT_GT(rungs[i].iterations, rungs[i - 1].iterations);
          EXPECT_EQ(rungs[i].trials, rungs[i - 1].trials / eta);
        }
        const bool whole = rungs.size() == static_cast<std::size_t>(s) + 1;
        EXPECT_TRUE(!whole || rungs.back().iterations == most);
      }
    }
  }
}

struct Played {
  std::set<int> trials;
  std::int64_t iterations = 0, restarts = 0;
  std::vector<TrialStep> order;
  int best_full = -1;  ///< best of those that came to the end
};

/// Runs a search with scores that are known, `at_once` steps at a time; of those that run the one that
/// `next_end` picks ends first.
template <class Score, class NextEnd>
Played play(const SearchOptions& options, Score score, std::size_t at_once, NextEnd next_end) {
  const auto search = make_search(options);
  Played played;
  std::deque<TrialStep> waiting;
  std::vector<TrialStep> running;
  std::map<int, int> reached;
  double best = -std::numeric_limits<double>::infinity();
  const int full = options.kind == SearchKind::Random ? options.iterations : options.most;
  for (;;) {
    for (const TrialStep& step : search->next()) {
      EXPECT_EQ(reached[step.trial], step.from) << "goes on from where it is";
      EXPECT_LT(step.from, step.to);
      reached[step.trial] = step.to;
      waiting.push_back(step);
      played.order.push_back(step);
    }
    while (!waiting.empty() && running.size() < at_once) {
      running.push_back(waiting.front());
      waiting.pop_front();
    }
    if (running.empty()) break;
    const std::size_t at = next_end(running.size());
    const TrialStep step = running[at];
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
    played.trials.insert(step.trial);
    played.iterations += step.to - step.from;
    played.restarts += step.to;
    const double value = score(step);
    if (step.to == full && value > best) best = value, played.best_full = step.trial;
    search->report(step, value);
  }
  EXPECT_LE(played.trials.size(), static_cast<std::size_t>(search->num_trials()));
  return played;
}

double known_score(const TrialStep& step) {
  return RandomStream(derive_seed(3, "score", static_cast<std::uint64_t>(step.trial))).uniform() +
         1e-3 * step.to;
}

std::size_t first_of(std::size_t) {
  return 0;
}

TEST(Hyperband, CostsWhatTheSpecificationCounts) {
  const Played whole = play({.kind = SearchKind::Hyperband}, known_score, 4, first_of);
  EXPECT_EQ(whole.order.size(), 206u);
  EXPECT_EQ(whole.restarts, 1902);
  EXPECT_EQ(whole.iterations, 1581);
  const Played skipped = play({.kind = SearchKind::Hyperband, .skip_last = 2}, known_score, 4, first_of);
  EXPECT_EQ(skipped.order.size(), 177u);
  EXPECT_EQ(skipped.restarts, 579);
  EXPECT_EQ(skipped.iterations, 492);
}

TEST(Hyperband, KeepsTheBestOfARungAndNoFailure) {
  const auto some_fail = [](const TrialStep& step) {
    return step.trial % 2 == 0 ? -std::numeric_limits<double>::infinity() : known_score(step);
  };
  for (const TrialStep& step : play({.kind = SearchKind::Hyperband}, some_fail, 1, first_of).order)
    EXPECT_TRUE(step.from == 0 || step.trial % 2 == 1) << step.trial;
  const auto all_fail = [](const TrialStep&) { return -std::numeric_limits<double>::infinity(); };
  const Played none = play({.kind = SearchKind::Hyperband}, all_fail, 1, first_of);
  EXPECT_EQ(none.order.size(), 81u + 34 + 15 + 8 + 5) << "every bracket's first rung, and no more";
}

TEST(Asha, RungsEndAtTheWholeBudget) {
  EXPECT_EQ(asha_rungs(1, 81, 3), (std::vector<int>{1, 3, 9, 27, 81}));
  EXPECT_EQ(asha_rungs(5, 100, 4), (std::vector<int>{6, 25, 100}));
  EXPECT_EQ(asha_rungs(7, 7, 2), (std::vector<int>{7}));
}

TEST(Asha, PromotesATopShareAndEachTrialOnce) {
  const SearchOptions options{.kind = SearchKind::Asha, .trials = 81, .most = 27, .eta = 3, .lanes = 4};
  const Played played = play(options, known_score, 4, first_of);
  std::map<int, int> by_rung;
  for (const TrialStep& step : played.order) ++by_rung[step.to];
  EXPECT_EQ(played.trials.size(), 81u);
  EXPECT_EQ(by_rung[1], 81);
  EXPECT_GE(by_rung[3], 27);
  EXPECT_LE(by_rung[27], by_rung[9]);
  EXPECT_GE(by_rung[27], 1);
  EXPECT_LT(played.iterations, played.restarts);
}

TEST(Searches, DecideTheSameHoweverManyRunAndWhicheverEndsFirst) {
  for (SearchKind kind : {SearchKind::Random, SearchKind::Hyperband, SearchKind::Asha}) {
    const SearchOptions options{.kind = kind, .trials = 40, .most = 27, .eta = 3, .lanes = 5};
    const auto sorted = [](std::vector<TrialStep> order) {
      std::ranges::sort(order, {}, [](const TrialStep& s) { return std::pair(s.trial, s.to); });
      return order;
    };
    const auto reference = sorted(play(options, known_score, 1, first_of).order);
    for (std::size_t at_once : {1u, 2u, 3u, 16u}) {
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        RandomStream random(seed);
        const Played played =
            play(options, known_score, at_once, [&](std::size_t n) { return random.below(n); });
        EXPECT_EQ(sorted(played.order), reference) << to_string(kind) << " at once " << at_once;
      }
    }
  }
}

// -- arrays of a search --

/// One of `kinds` values of a setting that cannot be fused.
ArrayRules rules_of(int kinds, bool mixed, int most = 0) {
  return {.most = most, .mixed = mixed, .infusible = {"width"}, .settings = [kinds](int trial) {
            return JobSettings{{"width", std::to_string(trial % kinds), ""}};
          }};
}

TEST(NextArrays, RunToTheFirstEndAndTakeAlongWhoAgrees) {
  // Trials 0 and 2 have 2 iterations left, 4 is new with 1, 1 and 3 are of another kind.
  const std::vector<OpenStep> all{
      {{0, 1, 3}, 1}, {{1, 0, 1}, 0}, {{2, 1, 3}, 1}, {{3, 0, 9}, 0}, {{4, 0, 1}, 0}};
  std::vector<OpenStep> open = all;
  ArrayRun run = take_array(open, rules_of(2, true));
  EXPECT_EQ(run.iterations, 1) << "the oldest that is nearest to its end";
  EXPECT_EQ(run.steps, (std::vector<OpenStep>{all[1], all[3]}));
  run = take_array(open, rules_of(2, true));
  EXPECT_EQ(run.iterations, 1);
  EXPECT_EQ(run.steps, (std::vector<OpenStep>{all[0], all[2], all[4]})) << "new trials come last";
  EXPECT_TRUE(open.empty());
  // Trials with equally many iterations left stay together: 0 and 2 do not fit beside 4.
  open = all;
  take_array(open, rules_of(2, true));
  EXPECT_EQ(take_array(open, rules_of(2, true, 2)).steps, (std::vector<OpenStep>{all[4]}));
  EXPECT_EQ(take_array(open, rules_of(2, true, 2)).steps, (std::vector<OpenStep>{all[0], all[2]}));
  // If trials must not be mixed, an array has trials of one rung, the oldest first. Arrays of one trial come
  // one after the other.
  const OpenStep farther{{2, 3, 9}, 7}, like_first{{6, 1, 3}, 1}, other_kind{{5, 1, 3}, 1};
  open = {all[0], farther, like_first, other_kind};
  EXPECT_EQ(take_array(open, rules_of(2, false)).steps, (std::vector<OpenStep>{all[0], like_first}));
  EXPECT_EQ(take_array(open, rules_of(1, false, 1)).steps, (std::vector<OpenStep>{farther}));
  // A trial is taken along only if that pays off; the others stay.
  open = {all[0], farther, all[4]};
  ArrayRules rules = rules_of(2, true);
  rules.together = [](const auto& steps, const auto& more, int iterations) {
    EXPECT_EQ(iterations, 1);
    return steps.size() == 1 && more.front().at == 7;
  };
  EXPECT_EQ(take_array(open, rules).steps, (std::vector<OpenStep>{farther, all[4]}));
  EXPECT_EQ(open, (std::vector<OpenStep>{all[0]}));
}

struct PlayedArrays {
  std::vector<TrialStep> order;
  int runs = 0, differing = 0;  ///< arrays that ran, and those whose trials differ in progress
  std::int64_t iterations = 0, of_trials = 0;
};

/// Plays the arrays one after the other, as run_tune does.
PlayedArrays play_arrays(
    const SearchOptions& options, const ArrayRules& rules, const auto& score,
    const std::function<void(const ArrayRun&)>& ran = [](const ArrayRun&) {}) {
  const auto search = make_search(options);
  PlayedArrays played;
  std::vector<OpenStep> open;
  std::map<int, int> reached;
  for (;;) {
    for (const TrialStep& step : search->next()) {
      EXPECT_EQ(reached[step.trial], step.from);
      played.order.push_back(step);
      open.push_back({step, step.from});
    }
    if (open.empty()) break;
    const ArrayRun run = take_array(open, rules);
    EXPECT_TRUE(rules.most == 0 || run.steps.size() <= static_cast<std::size_t>(rules.most));
    EXPECT_GT(run.iterations, 0);
    const auto differs = [&](const OpenStep& one) { return one.at != run.steps.front().at; };
    ++played.runs, played.differing += std::ranges::any_of(run.steps, differs);
    played.iterations += run.iterations;
    ran(run);
    bool ends = false;
    for (OpenStep one : run.steps) {
      EXPECT_EQ(rules.settings(one.step.trial)[0].text, rules.settings(run.steps[0].step.trial)[0].text);
      EXPECT_EQ(reached[one.step.trial], one.at);
      EXPECT_LE(run.iterations, one.left()) << "nobody is trained for nothing";
      one.at = reached[one.step.trial] += run.iterations;
      played.of_trials += run.iterations;
      ends = ends || one.left() == 0;
      if (one.left() == 0)
        search->report(one.step, score(one.step));
      else
        open.push_back(one);
    }
    EXPECT_TRUE(ends);
  }
  return played;
}

TEST(NextArrays, DecideAsSerialSearchesDoInFewerIterationsOfArrays) {
  const auto sorted = [](std::vector<TrialStep> order) {
    std::ranges::sort(order, {}, [](const TrialStep& s) { return std::pair(s.trial, s.to); });
    return order;
  };
  const auto some_fail = [](const TrialStep& step) {
    return step.trial % 7 == 3 ? -std::numeric_limits<double>::infinity() : known_score(step);
  };
  for (SearchKind kind : {SearchKind::Random, SearchKind::Hyperband, SearchKind::Asha}) {
    for (int lanes : {1, 3, 4, 16}) {
      const SearchOptions options{.kind = kind, .trials = 60, .most = 27, .eta = 3, .lanes = lanes};
      const Played serial = play(options, some_fail, 1, first_of);
      for (int kinds : {1, 2, 5}) {
        for (int most : {0, 1, 3, 8}) {
          const PlayedArrays apart = play_arrays(options, rules_of(kinds, false, most), some_fail);
          const PlayedArrays mixed = play_arrays(options, rules_of(kinds, true, most), some_fail);
          const std::string what = to_string(kind) + " lanes " + std::to_string(lanes) + " kinds " +
                                   std::to_string(kinds) + " most " + std::to_string(most);
          EXPECT_EQ(sorted(apart.order), sorted(serial.order)) << what;
          EXPECT_EQ(sorted(mixed.order), sorted(serial.order)) << what;
          EXPECT_EQ(apart.of_trials, serial.iterations) << what;
          EXPECT_EQ(mixed.of_trials, serial.iterations) << what;
          EXPECT_LE(mixed.iterations, apart.iterations) << what;
          EXPECT_EQ(apart.differing, 0) << what;
          EXPECT_TRUE(most != 0 || mixed.runs <= apart.runs) << what;
          const bool can_differ = kind == SearchKind::Asha && lanes > 1 && most != 1;
          EXPECT_EQ(mixed.differing > 0, can_differ || (kind == SearchKind::Hyperband && most > 1)) << what;
        }
      }
    }
  }
}

TEST(NextArrays, BracketsShareThemSoThatOneEndsWithTheLongest) {
  const SearchOptions options{.kind = SearchKind::Hyperband};
  const PlayedArrays apart = play_arrays(options, rules_of(1, false), known_score);
  const PlayedArrays mixed = play_arrays(options, rules_of(1, true), known_score);
  EXPECT_EQ(std::pair(apart.runs, apart.iterations), std::pair(9, std::int64_t{201})) << "a rung's alone";
  EXPECT_EQ(std::pair(mixed.runs, mixed.iterations), std::pair(5, std::int64_t{81})) << "five brackets of 81";
  EXPECT_EQ(mixed.of_trials, 1581);
  EXPECT_EQ(mixed.differing, 0) << "all began together: one batch for all";
}

TEST(ArrayPaces, TogetherIsWhatWasMeasuredToBeFaster) {
  const std::vector<OpenStep> steps(11, {{0, 0, 1}, 0}), more(5, {{1, 1, 9}, 1});
  /// After arrays of 16, 11 and 5 trials ran, each half a second beside its steps; `differing`: also one of
  /// 16 that had come differently far, with a second.
  const auto pays = [&](auto step_s, std::int64_t steps_each, std::optional<double> differing = {}) {
    ArrayPace pace;
    EXPECT_FALSE(pace.pays(steps, more, 1, 1'000'000)) << "nothing is known";
    for (std::size_t trials : {16, 11, 5}) pace.learn(trials, false, step_s(trials), 0.5);
    if (differing) pace.learn(16, true, *differing, 1.2);
    return pace.pays(steps, more, 1, steps_each);
  };
  const auto flat = [](std::size_t) { return 1e-3; };
  const auto growing = [](std::size_t trials) { return 1e-4 * static_cast<double>(trials); };
  EXPECT_TRUE(pays(flat, 1000)) << "a second is saved, and a process";
  EXPECT_TRUE(pays(flat, 1));
  EXPECT_TRUE(pays(flat, 1000, 1.2e-3)) << "1.2 + 1.2 s beside two of 1.5 s";
  EXPECT_FALSE(pays(flat, 100, 1.2e-3)) << "0.12 + 1.2 s beside two of 0.6 s";
  EXPECT_FALSE(pays(flat, 1000, 2.5e-3)) << "batches of their own cost more";
  EXPECT_FALSE(pays(growing, 10'000, 1.7e-3));
  ArrayPace one;
  one.learn(16, false, 1e-3, 0);
  EXPECT_FALSE(one.pays(steps, more, 1, 1000)) << "until smaller ones have been slower than their share";
}

/// Machines where an array takes as long as one trial, where it takes as long as its trials, and between.
TEST(ArrayPaces, SearchesTakeTheShorterWayWhateverArraysCost) {
  const SearchOptions options{.kind = SearchKind::Asha, .trials = 81, .most = 27, .lanes = 9};
  for (double whole : {1.0, 0.5, 0.0}) {         // part of an iteration that is the same for any trials
    for (double own_batch : {0.0, 0.2}) {        // added for each trial if trials differ
      for (double stop_s : {0.01, 0.3, 10.0}) {  // seconds besides iterations
        const auto step_s = [&](std::size_t trials, bool differs) {
          return whole + static_cast<double>(trials) * (1 - whole + (differs ? own_batch : 0));
        };
        const auto seconds = [&](MixedArrays mixed) {
          ArrayPace pace;
          ArrayRules rules = rules_of(1, mixed != MixedArrays::Never);
          if (mixed == MixedArrays::Auto) {
            rules.together = [&](const auto& steps, const auto& more, int iterations) {
              return pace.pays(steps, more, iterations, 1);
            };
          }
          double sum = 0;
          play_arrays(options, rules, known_score, [&](const ArrayRun& run) {
            const double step = step_s(run.steps.size(), differ(run.steps));
            sum += stop_s + step * run.iterations;
            pace.learn(run.steps.size(), differ(run.steps), step, stop_s);
          });
          return sum;
        };
        const double learnt = seconds(MixedArrays::Auto);
        const double always = seconds(MixedArrays::Always), never = seconds(MixedArrays::Never);
        EXPECT_LE(learnt, 1.2 * std::min(always, never))
            << whole << " " << own_batch << " " << stop_s << ": " << always << " " << never;
      }
    }
  }
}

// -- throughput --

TEST(Throughput, IsOverTheKeptEpochsOfAllProcesses) {
  const Timing a{{0, 0, 10, 100}, {1, 10, 14, 100}, {2, 14, 20, 100}};
  const Timing b{{0, 1, 12, 100}, {1, 12, 17, 100}, {2, 17, 25, 100}};
  EXPECT_DOUBLE_EQ(throughput({a, b}, 1), 400.0 / (25 - 10));
  EXPECT_DOUBLE_EQ(throughput({a}, 0), 300.0 / 20);
  EXPECT_DOUBLE_EQ(throughput({a}, 3), 0);
  EXPECT_DOUBLE_EQ(throughput({}, 0), 0);
}

TEST(Throughput, TimingReadsBack) {
  const TemporaryFolder folder;
  const Timing timing{{0, 100.5, 101.25, 640}, {1, 101.25, 102, 640}};
  EXPECT_EQ(timing_csv(timing),
            ",epoch,epoch_start,epoch_stop,num_samples\n0,0,100.500000,101.250000,640\n"
            "1,1,101.250000,102.000000,640\n");
  const Result<Timing> read = read_timing(folder.write("timing.csv", timing_csv(timing)));
  ASSERT_TRUE(read);
  EXPECT_EQ(timing_csv(*read), timing_csv(timing));
  EXPECT_FALSE(read_timing(folder.write("bad.csv", "x\n1,2\n")));
  EXPECT_FALSE(read_timing(folder.write("short.csv", ",epoch,epoch_start,epoch_stop,num_samples\n0,1\n")));
}

TEST(Throughput, TableIsInterpolatedAndOverSerial) {
  const std::vector<ModeCurves> modes{{"serial", "fp32", {{{1, 90}}, {{1, 110}}}},
                                      {"fused", "fp32", {{{1, 100}, {3, 300}}, {{1, 120}, {3, 200}}}}};
  EXPECT_EQ(throughputs_csv(modes, 100, 4),
            "B,serial:fp32:0,serial:fp32:1,serial:fp32:avg,serial:fp32:min,serial:fp32:max,fused:fp32:0,"
            "fused:fp32:1,fused:fp32:avg,fused:fp32:min,fused:fp32:max\n"
            "1,0.9,1.1,1,0.9,1.1,1,1.2,1.1,1,1.2\n"
            "2,0.9,1.1,1,0.9,1.1,2,1.6,1.8,1.6,2\n"
            "3,0.9,1.1,1,0.9,1.1,3,2,2.5,2,3\n"
            "4,0.9,1.1,1,0.9,1.1,3,2,2.5,2,3\n");
}

TEST(Sizes, HoldOneTheMostAndDistinctDraws) {
  for (int most : {1, 2, 3, 5, 30, 1000}) {
    for (int count : {2, 5, 10}) {
      const std::vector<int> sizes = sizes_to_measure(most, count, 1117);
      EXPECT_EQ(sizes.size(), static_cast<std::size_t>(std::min(std::max(count, 2), most)));
      EXPECT_EQ(sizes.front(), 1);
      EXPECT_EQ(sizes.back(), most);
      EXPECT_TRUE(std::ranges::is_sorted(sizes));
      EXPECT_EQ(sizes, sizes_to_measure(most, count, 1117));
    }
  }
}

TEST(Sizes, TheLargestThatFitsIsFoundInFewTries) {
  for (int cap : {1, 2, 7, 64, 100}) {
    for (int limit = 0; limit <= cap + 3; ++limit) {
      int tries = 0;
      EXPECT_EQ(largest_that_fits(cap, [&](int jobs) { return ++tries, jobs <= limit; }),
                std::min(limit, cap));
      EXPECT_LE(tries, 2 * (whole_log(cap, 2) + 2)) << cap << " " << limit;
    }
  }
}

// -- files --

TEST(SweepJournals, KeepWhatIsDoneAndDropACutLine) {
  const TemporaryFolder folder;
  const Json spec = Json::object({{"lr", 0.1}, {"job", Json::object({{"model", "mlp"}})}});
  {
    Result<Journal> journal = Journal::open(folder.path(), "a-1", spec);
    ASSERT_TRUE(journal) << to_string(journal.problems());
    EXPECT_TRUE(journal->record("one", Json::object({{"x", 1}})));
    EXPECT_TRUE(journal->record("two", Json::object({{"x", 2}})));
  }
  const std::string whole = folder.read(kJournal);
  for (std::size_t cut = whole.size() - 5; cut < whole.size(); ++cut) {
    folder.write(kJournal, whole.substr(0, cut));
    Result<Journal> journal = Journal::open(folder.path(), "a-1", spec);
    ASSERT_TRUE(journal);
    EXPECT_TRUE(journal->find("one"));
    EXPECT_FALSE(journal->find("two")) << cut;
    EXPECT_TRUE(journal->record("two", Json::object({{"x", 3}})));
  }
  EXPECT_EQ(Journal::open(folder.path(), "a-1", spec)->find("two")->find("x")->as_int(), 3);
  const Result<Journal> other = Journal::open(
      folder.path(), "a-1", Json::object({{"lr", 0.1}, {"job", Json::object({{"model", "vgg"}})}}));
  ASSERT_FALSE(other);
  EXPECT_NE(to_string(other.problems()).find("job.model was \"mlp\", is \"vgg\""), std::string::npos)
      << to_string(other.problems());
  const TemporaryFolder listed;
  const auto of_steps = [](int steps) {
    Json workloads = Json::array();
    workloads.push_back(1);
    workloads.push_back(Json::object({{"steps", steps}}));
    return Json::object({{"workloads", workloads}});
  };
  ASSERT_TRUE(Journal::open(listed.path(), "a-1", of_steps(4)));
  const Result<Journal> in_list = Journal::open(listed.path(), "a-1", of_steps(5));
  ASSERT_FALSE(in_list);
  EXPECT_NE(to_string(in_list.problems()).find("workloads[1].steps was 4, is 5"), std::string::npos)
      << to_string(in_list.problems());
  // A search may be given more trials, but not fewer.
  const TemporaryFolder grown;
  const auto of_trials = [](int trials) { return Json::object({{"trials", trials}, {"seed", 1}}); };
  EXPECT_TRUE(Journal::open(grown.path(), "a-1", of_trials(6))->record("one", 1));
  ASSERT_TRUE(check_journal_folder(grown.path(), "a-1", of_trials(8)));
  EXPECT_TRUE(Journal::open(grown.path(), "a-1", of_trials(8))->find("one"));
  const Result<Journal> fewer = Journal::open(grown.path(), "a-1", of_trials(7));
  ASSERT_FALSE(fewer);
  EXPECT_NE(to_string(fewer.problems()).find("trials was 8, is 7"), std::string::npos);
  EXPECT_FALSE(Journal::open(folder.path(), "b-1", spec));
  EXPECT_FALSE(check_journal_folder(folder.path(), "b-1", spec));
  const TemporaryFolder foreign;
  foreign.write("thesis.txt", "mine");
  EXPECT_FALSE(check_journal_folder(foreign.path(), "a-1", spec)) << "somebody else's folder";
}

constexpr const char* kJob = "job: {model: mlp, steps: 5}\n";

TEST(SweepFiles, EveryProblemHasItsPlace) {
  const TemporaryFolder folder;
  const std::map<std::string, std::string> wrong{
      {"lists: {lr: [1, 2]}\n", "does not say which job"},
      {std::string(kJob), "nothing varies"},
      {std::string(kJob) + "sample: {lr: {uniform: [0, 1]}}\n", "how many jobs"},
      {std::string(kJob) + "lists: {lr: [1, 2]}\njobs: 3\n", "lists and grid make 2"},
      {std::string(kJob) + "list: {lr: [1, 2]}\n", "did you mean 'lists'"},
      {std::string(kJob) + "lists: {lr: [0.1, fast]}\n", "sweep.yaml:2:19: lr"},
      {std::string(kJob) + "lists: {lr: [1, 2]}\nmodes: [serail]\n", "serial"},
      {std::string(kJob) + "lists: {lr: [1, 2]}\nmodes: []\n", "modes is empty"},
      {std::string(kJob) + "lists: {microbatch: [1, 2]}\nmodes: [fused]\n", "microbatch cannot differ"},
      {std::string(kJob) + "lists: {output_dir: [a, b]}\n", "cannot vary"},
      {"job: {model: mlp, output_dir: x}\nlists: {lr: [1, 2]}\n", "output_dir is set for each job"},
      {"job: nowhere.yaml\nlists: {lr: [1, 2]}\n", "nowhere.yaml"},
      {std::string(kJob) + "lists: {lr: [1, 2]}\nmeasure: {epochs: 2, warmup_epochs: 2}\n",
       "no epoch is left"},
      {std::string(kJob) + "lists: {lr: [1, 2]}\nmeasure: {sizes: [1, 3]}\n", "number of jobs (2)"},
      {std::string(kJob) + "lists: {lr: [1, 2]}\nmeasure: {memory: lots}\n", "not a size"},
      {std::string(kJob) + "lists: {lr: [1, 2]}\nmeasure: {repeat: 2}\n", "did you mean 'repeats'"},
      {std::string(kJob) + "lists: {lr: [1, 2]}\nresults: false\n", "nothing to do"},
      {std::string(kJob) + "lists: {lr: [1, 2]}\narray: 2\n", "array says nothing without mode fused"},
      {std::string(kJob) + "sample: {lr: {uniform: [1, 1e9]}}\njobs: 2\n", "out of range"},
  };
  for (const auto& [yaml, part] : wrong) {
    const Result<SweepSpec> spec = load_sweep(folder.write("sweep.yaml", yaml));
    ASSERT_FALSE(spec) << yaml;
    EXPECT_NE(to_string(spec.problems()).find(part), std::string::npos) << yaml << to_string(spec.problems());
  }
  const Result<SweepSpec> good = load_sweep(folder.write(
      "sweep.yaml",
      std::string(kJob) + "lists: {lr: [1, 2]}\ngrid: {seed: [1, 2, 3]}\nmodes: [serial, concurrent]\n"));
  ASSERT_TRUE(good) << to_string(good.problems());
  EXPECT_EQ(good->num_jobs, 6);
  const Result<JobSpec> job = good->job.with(good->settings(5));
  ASSERT_TRUE(job);
  EXPECT_EQ(*job->find("lr"), "2");
  EXPECT_EQ(*job->find("seed"), "3");
}

TEST(TuneFiles, EveryProblemHasItsPlace) {
  const TemporaryFolder folder;
  const std::string space = "space: {lr: {uniform: [0.1, 1]}}\n";
  const std::map<std::string, std::string> wrong{
      {space, "does not say which job"},
      {kJob, "the space is empty"},
      {kJob + space + "algorithm: hyperbend\n", "hyperband"},
      {kJob + space + "trials: 4\n", "trials says nothing to hyperband"},
      {kJob + space + "algorithm: asha\nleast: 9\nmost: 3\n", "least is more than most"},
      {kJob + space + "skip_last: 9\n", "no rung is left"},
      {kJob + space + "goal: best\n", "max"},
      {kJob + space + "infusible: [depth]\n", "not in the space"},
      {kJob + std::string("space: {steps: {integers: [1, 5]}}\n"), "what the search decides"},
      {"job: {model: mlp, no_evaluation: true}\n" + space, "the job has none"},
      {kJob + space + "eta: 1\n", "eta"},
      {kJob + space + "mixed: never\n", "mixed says nothing without mode fused"},
      {kJob + space + "mode: fused\nmixed: sometimes\n", "auto"},
  };
  for (const auto& [yaml, part] : wrong) {
    const Result<TuneSpec> spec = load_tune(folder.write("tune.yaml", yaml));
    ASSERT_FALSE(spec) << yaml;
    EXPECT_NE(to_string(spec.problems()).find(part), std::string::npos) << yaml << to_string(spec.problems());
  }
  const Result<TuneSpec> good = load_tune(
      folder.write("tune.yaml", kJob + std::string("space: {lr: {uniform: [0.1, 1]}, microbatch: {choice: "
                                                   "[1, 2]}, momentum: {uniform: [0, 0.9]}}\n"
                                                   "infusible: [momentum]\nmetric: top1\n")));
  ASSERT_TRUE(good) << to_string(good.problems());
  EXPECT_EQ(good->infusible, (std::vector<std::string>{"microbatch", "momentum"}));
  EXPECT_EQ(good->goal, Goal::Max);
  EXPECT_EQ(good->num_trials(), 81 + 34 + 15 + 8 + 5);
}

TEST(TuneResults, ABestThatFailsLaterIsNoBest) {
  const auto step = [](int trial, int to, double loss, double ended, int code = 0) {
    return TrialResult{.step = {trial, to / 3, to}, .exit_code = code, .metric = loss, .ended = ended};
  };
  const std::vector<TrialResult> steps{step(0, 1, 0.1, 10), step(1, 1, 0.5, 11), step(0, 3, NAN, 12, 6),
                                       step(2, 1, 0.7, 14), step(1, 3, 0.4, 13)};
  const TuneSpec spec;
  std::string text;
  for (const BestUntil& point : trajectory_of(spec, steps))
    text += printed("%g:%g ", point.ended, point.metric);
  EXPECT_EQ(text, "11:0.5 13:0.4 14:0.4 ");
  EXPECT_EQ(best_of(spec, steps), 4);
}

TEST(TuneResults, EqualTrialsCostOnce) {
  TuneResults results;
  for (const auto& [trial, from, to] : {std::tuple(0, 0, 1), {1, 0, 1}, {0, 1, 3}, {1, 1, 3}, {2, 0, 3}})
    results.steps.push_back({.step = {trial, from, to}, .folder = "f"});
  EXPECT_EQ(cost_of(results).iterations, 3) << "2 begins where 0 is";
  EXPECT_EQ(cost_of(results).restarts_iterations, 1 + 3);
}

TEST(TuneFiles, TheShippedSpacesAreThoseOfTheSpecification) {
  const std::string folder = std::string(MILLRACE_SOURCE_DIR) + "/docs/examples/tuning/";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const Result<Json> json = read_yaml(entry.path().string());
    ASSERT_TRUE(json) << entry.path();
    Problems problems;
    const Varied space = read_varied(nullptr, nullptr, json->find("space"), problems);
    EXPECT_TRUE(problems.empty()) << to_string(problems);
    EXPECT_EQ(json->find("seed")->as_int(), 1117) << entry.path();
    for (const char* flag : {"lr", "beta1", "beta2", "weight-decay", "gamma"}) {
      const auto names = space.flags();
      EXPECT_NE(std::ranges::find(names, flag), names.end()) << entry.path() << " " << flag;
    }
    ++files;
  }
  EXPECT_GE(files, 2);
}

TEST(SweepDocs, EveryExampleParses) {
  for (const CommandSpec& spec : {sweep_spec(), tune_spec()}) {
    for (const std::string& example : spec.examples) {
      const std::vector<std::string> words = words_of(example, ' ');
      EXPECT_EQ(words[0] + " " + words[1], "millrace " + spec.command);
      EXPECT_TRUE(parse_arguments(spec, {words.begin() + 2, words.end()})) << example;
    }
  }
}

TEST(RunPools, CoresGoRoundAndWideJobsAreNotPinned) {
  const auto cores = [](int ranks, int slot) {
    PooledJob run{.job = {}};
    run.job.ranks = ranks;
    RunSlots(run.job).place(run, slot);
    return run.cores;
  };
  JobSpec one;
  const int all = RunSlots(one).count();
  ASSERT_GE(all, 1);
  EXPECT_TRUE(cores(all, 0).empty());
  if (all > 1) {
    EXPECT_EQ(cores(1, 0).size(), 1u);
    EXPECT_EQ(cores(1, all + 1), cores(1, 1));
    EXPECT_NE(cores(1, 0), cores(1, 1));
  }
  EXPECT_GT(available_memory(), 0);
}

TEST(RunPools, HostsAreSharedByRunsSideBySide) {
  JobSpec job;
  job.ranks = 2;
  job.hosts.on = "ssh";
  job.hosts.list = "a:3,b:1,c:1";
  const RunSlots slots(job);
  EXPECT_EQ(slots.count(), 2);
  const auto hosts = [&](int slot) {
    PooledJob run{.job = job};
    slots.place(run, slot);
    std::string text;
    for (std::size_t h = 0; h < run.job.hosts.entries.size(); ++h)
      text += run.job.hosts.entries[h].name + std::to_string(run.job.hosts.ranks[h]);
    return text;
  };
  EXPECT_EQ(hosts(0), "a2");
  EXPECT_EQ(hosts(1), "a1b1");
  EXPECT_EQ(hosts(2), "a2");
  job.ranks = 6;
  EXPECT_THROW(RunSlots{job}, ConfigError);
}

/// A kubectl whose pods never end.
TEST(BatchArraysOfASweep, AreNotWaitedForIfTheQueueKeepsThemAfterTheyWereCancelled) {
  const TemporaryFolder folder;
  const std::string kubectl = folder.write("kubectl",
                                           "#!/bin/sh\n"
                                           "[ $1 = get ] && echo '{\"items\": [{\"status\": {\"phase\": "
                                           "\"Running\"}, \"metadata\": {\"annotations\": "
                                           "{\"batch.kubernetes.io/job-completion-index\": \"0\"}}}]}'\n"
                                           "exit 0\n");
  std::filesystem::permissions(kubectl, std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (folder.path() + ":" + path).c_str(), 1);
  {
    BatchArrays arrays(std::chrono::milliseconds(300));
    JobSpec job;
    job.hosts.on = "kubernetes";
    job.output_dir = folder.path("run");
    arrays.submit({{.id = 7, .job = job}});
    EXPECT_TRUE(arrays.ended().empty());
    EXPECT_EQ(arrays.num_tasks(), 1u);
    arrays.stop(true);
    std::string said;
    for (const TimePoint until = steady_clock().now() + std::chrono::seconds(20);
         said.empty() && steady_clock().now() < until;) {
      try {
        EXPECT_TRUE(arrays.ended().empty());
      } catch (const PeerError& error) {
        said = error.what();
      }
    }
    EXPECT_TRUE(said.starts_with("Kubernetes still has runs of sweep-")) << said;
  }
  ::setenv("PATH", path.c_str(), 1);
}

}  // namespace
}  // namespace millrace
