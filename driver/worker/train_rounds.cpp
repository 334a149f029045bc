#include "driver/worker/train_rounds.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <type_traits>
#include <utility>

#include "driver/worker/bleu_score.h"
#include "driver/worker/train_arrays.h"
#include "driver/worker/train_summary.h"
#include "runtime/plan/plan_rounds.h"

namespace millrace {

Result<Rounds> rounds_from(const std::vector<TrainFlags>& jobs, const JobLists& lists, const Additions& own,
                           const Problems& flag_problems) {
  const TrainFlags& flags = jobs.front();
  PlanFile plan;
  if (!flags.plan.empty()) plan = Plan::load(flags.plan);
  const Result<std::vector<PlanRound>> planned =
      plan && *plan ? rounds_of_plan(flags.plan, **plan, jobs.size()) : std::vector<PlanRound>{};
  if (!planned) return planned.problems();
  if (!planned->empty() && flags.arrays > 0)
    return Problem{"--arrays", "the plan says how the jobs are divided", "leave it out"};
  if (flags.model.name.empty())
    return Problem{"--model", "is required",
                   flags.options.resume.empty()
                       ? "for example --model mlp"
                       : "--resume takes all flags of the run again; `millrace report " +
                             flags.options.resume + "` shows its command"};
  const Result<std::vector<LayeredModel>> models = models_of(jobs, own);
  if (!models) {
    Problems problems = flag_problems;
    append(problems, models.problems());
    return problems;
  }
  Rounds rounds{.flags = flags};
  std::vector<std::size_t> sizes{jobs.size()};
  if (planned->size() > 1) {
    sizes.clear();
    for (const PlanRound& round : *planned) sizes.push_back(static_cast<std::size_t>(round.jobs));
  }
  std::size_t from = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    const auto part = [&](const auto& all) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(from);
      return std::decay_t<decltype(all)>(begin, begin + static_cast<std::ptrdiff_t>(sizes[r]));
    };
    std::optional<RoundPlace> place;
    if (sizes.size() > 1) place = {.round = r, .first_job = static_cast<int>(from)};
    Result<TrainSpec> spec = spec_from(part(jobs), part(*models), plan, own, flag_problems, place);
    if (!spec) return spec.problems();
    for (const auto& [flag, values] : lists.lists) spec->lists.emplace_back(flag, part(values));
    std::string results = spec->options.output_dir;
    rounds.all.push_back({.spec = *std::move(spec), .results = std::move(results)});
    from += sizes[r];
  }
  if (!rounds.several()) return rounds;
  rounds.resumed = flags.options.resume;
  rounds.plan = rounds.all.front().spec.pipeline;
  rounds.plan.rounds = *planned;
  return rounds;
}

Status open_data(Round& round, OpenDatasets& open) {
  TrainSpec& spec = round.spec;
  Result<Datasets> sets = open_datasets(spec, open);
  if (!sets) return sets.problems();
  const std::int64_t steps = steps_per_epoch(*sets->train, loader_options(spec));
  spec.steps_per_epoch = steps;
  spec.train_samples = static_cast<std::int64_t>(sets->train->size());
  spec.test_samples = sets->test ? static_cast<std::int64_t>(sets->test->size()) : 0;
  spec.options.learning_rate = in_steps(spec.options.learning_rate, spec.rate_in_epochs, steps);
  for (std::size_t job = 0; job < spec.of_jobs.size(); ++job) {
    JobOptions& mine = spec.options.jobs[job];
    mine.learning_rate = in_steps(mine.learning_rate, spec.of_jobs[job].rate_in_epochs, steps);
    const Dataset& set = *sets->trains[spec.own_data ? job : 0];
    mine.settings.emplace_back("data", set.fingerprint());
    for (const auto& setting : set.recorded()) mine.settings.push_back(setting);
  }
  if (spec.epochs > 0) {
    if (const Status enough = check_steps(*sets->train, loader_options(spec)); !enough) return enough;
    spec.options.steps = steps * spec.epochs;
    for (JobOptions& job : spec.options.jobs) job.steps = spec.options.steps;
    if (spec.options.evaluate_every == 0) spec.options.evaluate_every = steps;
    if (spec.options.checkpoint_every == 0 && spec.options.saves()) spec.options.checkpoint_every = steps;
  }
  if (const Status text = open_bleu_text(spec, *sets); !text) return text;
  // Ranks must see the same data, and a run that is resumed the data that it began with.
  spec.options.settings.emplace_back("data", sets->train->fingerprint());
  for (const auto& setting : sets->train->recorded()) spec.options.settings.push_back(setting);
  spec.options.rank_settings.emplace_back("evaluation data", sets->test ? sets->test->fingerprint() : "none");
  round.sets = *std::move(sets);
  return Ok{};
}

Status go_on(Rounds& rounds) {
  const std::string& from = rounds.resumed;
  if (from.empty()) return Ok{};
  if (const Status same = same_rounds(from, rounds.plan); !same) return same;
  std::error_code ignored;
  rounds.continues = std::filesystem::equivalent(from, rounds.flags.options.output_dir, ignored);
  for (std::size_t r = 0; r < rounds.all.size(); ++r) {
    Round& round = rounds.all[r];
    TrainOptions& o = round.spec.options;
    RoundGoal goal{.first_job = o.first_job.value_or(0), .steps = o.steps};
    for (const JobOptions& job : o.jobs) goal.steps = std::max(goal.steps, job.steps.value_or(o.steps));
    for (int b = 0; b < rounds.plan.rounds[r].jobs; ++b) {
      goal.settings.push_back(settings_of(round.spec, static_cast<std::size_t>(b)));
      if (!o.save_weights.empty()) goal.weights.push_back(file_of_job(o.save_weights, goal.first_job + b));
    }
    const std::string folder = round_folder(from, r);
    const Result<RoundState> state = state_of_round(folder, goal);
    if (!state) return state.problems();
    round.state = *state;
    if (round.state == RoundState::Done) round.results = folder;
    o.resume = round.state == RoundState::Begun ? folder : "";
    if (round.state == RoundState::Untouched && rounds.continues) o.overwrite = true;
  }
  return Ok{};
}

}  // namespace millrace
