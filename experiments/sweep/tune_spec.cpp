#include "experiments/sweep/tune_spec.h"

#include <algorithm>
#include <map>

#include "experiments/sweep/journal.h"
#include "experiments/sweep/partition.h"
#include "runtime/base/flag.h"
#include "runtime/rules/best_so_far.h"

namespace millrace {
namespace {

constexpr int kMostTrials = 100'000;
constexpr int kMostIterations = 1'000'000;
constexpr int kMostSteps = 1'000'000'000;

template <Named Enum>
Enum read_choice(ObjectReader& in, const char* key, Enum fallback) {
  const std::string text = in.string(key, to_string(fallback));
  const Result<std::size_t> found = choice_from(text, key, all_names<Enum>());
  if (found) return static_cast<Enum>(*found);
  in.problem(key, found.problems().front().what, found.problems().front().hint);
  return fallback;
}

SearchOptions read_search(ObjectReader& in) {
  SearchOptions search;
  search.kind = read_choice(in, "algorithm", SearchKind::Hyperband);
  const auto number = [&](const char* key, std::initializer_list<SearchKind> kinds, int low, int high,
                          int& value) {
    if (!in.has(key)) return;
    if (std::ranges::find(kinds, search.kind) == kinds.end())
      in.problem(key, std::string(key) + " says nothing to " + to_string(search.kind), "leave it out");
    else
      value = in.whole(key, low, high);
  };
  using enum SearchKind;
  number("trials", {Random, Asha}, 1, kMostTrials, search.trials);
  number("iterations", {Random}, 1, kMostIterations, search.iterations);
  number("most", {Hyperband, Asha}, 1, kMostIterations, search.most);
  number("least", {Asha}, 1, kMostIterations, search.least);
  number("eta", {Hyperband, Asha}, 2, 1000, search.eta);
  number("skip_last", {Hyperband}, 0, 100, search.skip_last);
  number("lanes", {Asha}, 1, 10'000, search.lanes);
  if (search.kind == Asha && search.least > search.most) {
    in.problem("least", "least is more than most", {});
    search.least = search.most;
  }
  if (search.kind == Hyperband && search.skip_last > whole_log(search.most, search.eta)) {
    in.problem("skip_last", "no rung is left in any bracket", "give less");
    search.skip_last = 0;
  }
  return search;
}

/// Returns the better direction of a metric. "final_loss" and metrics of users' own heads go by their names.
Goal default_goal(const std::string& metric) {
  const Result<bool> higher = higher_is_better(metric);
  return (higher ? *higher : !metric.ends_with("loss")) ? Goal::Max : Goal::Min;
}

}  // namespace

std::vector<int> TuneSpec::first_trials() const {
  std::map<std::vector<std::string>, int> seen;
  std::vector<int> firsts;
  for (int trial = 0; trial < num_trials(); ++trial) {
    std::vector<std::string> texts;
    for (const Setting& setting : settings(trial)) texts.push_back(setting.text);
    firsts.push_back(seen.emplace(std::move(texts), trial).first->second);
  }
  return firsts;
}

Result<TuneSpec> load_tune(const std::string& path) {
  const Result<Json> json = read_swept_file(path, "a search");
  if (!json) return json.problems();
  Problems problems;
  ObjectReader in(*json, problems);
  TuneSpec spec;
  spec.read_head(in, path);
  spec.search = read_search(in);
  spec.steps = in.whole("iteration", 1, kMostSteps, static_cast<int>(spec.steps));
  spec.metric = in.string("metric", spec.metric);
  spec.goal = read_choice(in, "goal", default_goal(spec.metric));
  spec.mode = read_choice(in, "mode", SweepMode::Serial);
  spec.keep = read_choice(in, "checkpoints", KeptCheckpoints::Best);
  spec.at_once = in.has("at_once") ? in.whole("at_once", 1, kMostTrials) : 0;
  spec.array = in.has("array") ? in.whole("array", 1, kMostTrials) : 0;
  spec.mixed = read_choice(in, "mixed", MixedArrays::Auto);
  if (in.has("mixed") && spec.mode != SweepMode::Fused)
    in.problem("mixed", "mixed says nothing without mode fused", "leave it out");
  spec.space = read_varied(nullptr, nullptr, in.any("space"), problems);
  if (spec.space.sample.empty() && problems.empty())
    problems.push_back({path, "the space is empty", "e.g. space: {lr: {log_uniform: [1e-4, 1e-1]}}"});
  std::vector<std::string> more;
  if (in.has("infusible")) more = in.strings("infusible");
  for (const std::string& name : more) {
    const auto flags = spec.space.flags();
    if (std::ranges::find(flags, flag_name(name)) == flags.end())
      in.problem("infusible", "'" + name + "' is not in the space", "it need not be said");
  }
  for (const Sampled& one : spec.space.sample) {
    const bool named = std::ranges::any_of(more, [&](const auto& n) { return flag_name(n) == one.flag; });
    if (named || !is_fusible(one.flag)) spec.infusible.push_back(one.flag);
    if (one.flag == "steps" || one.flag == "epochs")
      problems.push_back({one.where, one.flag + " is what the search decides", "leave it out of the space"});
  }
  spec.read_job(
      in, spec.space, [&] { return spec.num_trials(); }, spec.mode == SweepMode::Fused, "tune", problems);
  in.finish();
  if (!problems.empty()) return problems;
  const Result<JobSpec> first = spec.job.with(spec.settings(0));
  if (spec.metric != "final_loss" && first && first->find("no-evaluation"))
    return Problem{path, "metric " + spec.metric + " is of an evaluation, and the job has none",
                   "leave no_evaluation out, or metric: final_loss"};
  // These keys say what runs at the same time, which changes no result.
  spec.set_identity(*json, {"at_once", "mixed", "checkpoints"});
  if (spec.search.kind != SearchKind::Hyperband) spec.identity[kGrowingTrials] = spec.search.trials;
  return spec;
}

}  // namespace millrace
