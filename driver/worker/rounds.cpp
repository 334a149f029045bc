#include "driver/worker/rounds.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "runtime/base/files.h"
#include "runtime/base/json_number.h"
#include "runtime/base/run_files.h"
#include "runtime/base/units.h"
#include "runtime/plan/plan_rounds.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

/// 0 where there is none.
double number(const Json& json, const char* key) {
  return number_in(json, key).value_or(0);
}

double sum_of(const std::vector<Json>& summaries, const char* key) {
  double sum = 0;
  for (const Json& summary : summaries) sum += number(summary, key);
  return sum;
}

double most_of(const std::vector<Json>& summaries, const char* key) {
  double most = 0;
  for (const Json& summary : summaries) most = std::max(most, number(summary, key));
  return most;
}

/// Returns the means over the jobs that have a finite loss, by step; nothing if they did not do the same
/// steps.
Json mean_losses(const Json& jobs) {
  Json losses = Json::array();
  std::optional<std::size_t> steps;
  for (const Json& job : jobs.items()) {
    const std::size_t own = job.find("losses")->size();
    if (steps && *steps != own) return losses;
    steps = own;
  }
  for (std::size_t step = 0; step < steps.value_or(0); ++step) {
    double sum = 0;
    int finite = 0;
    for (const Json& job : jobs.items()) {
      const std::optional<double> loss = number_in(job.find("losses")->items()[step]);
      if (loss && std::isfinite(*loss)) sum += *loss, ++finite;
    }
    losses.push_back(finite > 0 ? Json(sum / finite) : Json());
  }
  return losses;
}

Json mean_of_last(const Json& jobs) {
  double sum = 0;
  int finite = 0;
  for (const Json& job : jobs.items()) {
    if (const auto loss = number_in(job, "loss"); loss && std::isfinite(*loss)) sum += *loss, ++finite;
  }
  return finite > 0 ? Json(sum / finite) : Json();
}

}  // namespace

std::string round_folder(const std::string& output_dir, std::size_t round) {
  if (output_dir.empty()) return {};
  return (fs::path(output_dir) / run_files::kRounds.of(static_cast<int>(round))).string();
}

Result<std::vector<PlanRound>> rounds_of_plan(const std::string& file, const Plan& plan, std::size_t jobs) {
  if (plan.rounds.empty()) return std::vector<PlanRound>{};
  const int planned = plan.num_jobs();
  if (planned != static_cast<int>(jobs)) {
    const std::string own = std::to_string(jobs);
    return Problem{
        file,
        "is a plan for " + std::to_string(planned) + (planned == 1 ? " job" : " jobs") + ", this run has " +
            own,
        "give --fused and lists of " + std::to_string(planned) + " values, or plan again with --jobs " + own};
  }
  return plan.rounds;
}

Result<RoundState> state_of_round(const std::string& folder, const RoundGoal& goal) {
  std::error_code ignored;
  const fs::path path = folder;
  const bool has_checkpoint = fs::exists(path / run_files::kCheckpoints / "latest", ignored);
  const RoundState unfinished = has_checkpoint ? RoundState::Begun : RoundState::Untouched;
  const fs::path file = path / run_files::kSummary;
  if (!fs::exists(file, ignored)) return unfinished;
  const Result<Json> summary = read_json(file.string());
  if (!summary) return unfinished;
  const Json* jobs = summary->find("jobs");
  if (!jobs || !jobs->is_array() || jobs->size() != goal.settings.size())
    return Problem{file.string(), "is not of " + std::to_string(goal.settings.size()) + " jobs",
                   "resume with the plan that the run began with"};
  for (std::size_t b = 0; b < goal.settings.size(); ++b) {
    const Json* settings = jobs->items()[b].find("settings");
    if (settings && settings->dump() == goal.settings[b].dump()) continue;
    return Problem{file.string(),
                   "job " + std::to_string(goal.first_job + static_cast<int>(b)) + " was trained with " +
                       (settings ? settings->dump() : "other settings") + ", now it is " +
                       goal.settings[b].dump(),
                   "resume with the lists that the run began with"};
  }
  const Json* stopped = summary->find("stopped_early");
  const bool early = stopped && stopped->kind() == Json::Kind::Bool && stopped->as_bool();
  if (early || number(*summary, "first_step") + number(*summary, "steps") < static_cast<double>(goal.steps))
    return unfinished;
  for (std::size_t b = 0; b < goal.weights.size(); ++b) {
    const Json* status = jobs->items()[b].find("status");
    const bool finite = status && status->is_string() && status->as_string() == "ok";
    if (finite && !fs::exists(goal.weights[b], ignored)) return unfinished;
  }
  return RoundState::Done;
}

Status same_rounds(const std::string& folder, const Plan& plan) {
  const std::string file = (fs::path(folder) / run_files::kPlan).string();
  const Result<Plan> other = Plan::load(file);
  const std::string hint = "resume with the plan that the run began with";
  if (!other) return Problem{file, "cannot be read: it says in which rounds jobs are trained", hint};
  if (std::ranges::equal(other->rounds, plan.rounds, {}, &PlanRound::jobs, &PlanRound::jobs)) return Ok{};
  return Problem{file,
                 other->rounds.empty() ? "is not of a run in rounds"
                                       : "has rounds of " + jobs_of_rounds(other->rounds) +
                                             " jobs, this run's plan of " + jobs_of_rounds(plan.rounds),
                 hint};
}

Result<std::string> round_like(const std::string& run, int jobs, int arrays, int first_job) {
  const Result<Plan> plan = Plan::load((fs::path(run) / run_files::kPlan).string());
  if (!plan || plan->rounds.size() < 2) return run;
  int like = -1, begins = 0;
  for (std::size_t r = 0; r < plan->rounds.size(); begins += plan->rounds[r++].jobs) {
    const PlanRound& round = plan->rounds[r];
    if (round.jobs == jobs && round.arrays == arrays && (like < 0 || begins == first_job))
      like = static_cast<int>(r);
  }
  if (like >= 0) return round_folder(run, static_cast<std::size_t>(like));
  return Problem{run,
                 "it trained rounds of " + jobs_of_rounds(plan->rounds) + " jobs, none of " +
                     std::to_string(jobs) + " in " + std::to_string(arrays) + " array(s)",
                 "instrument a run with the same plan, or one of " + std::to_string(jobs) +
                     " jobs with --arrays " + std::to_string(arrays)};
}

Json joined_summary(const std::vector<Json>& summaries, const std::vector<PlanRound>& rounds) {
  Json all = summaries.front();
  Json jobs = Json::array(), list = Json::array();
  int first_job = 0;
  for (std::size_t r = 0; r < summaries.size(); ++r) {
    if (const Json* own = summaries[r].find("jobs"); own && own->is_array()) {
      for (const Json& job : own->items()) jobs.push_back(job);
    }
    Json round = Json::object({{"round", static_cast<std::int64_t>(r)},
                               {"first_job", first_job},
                               {"jobs", rounds[r].jobs},
                               {"arrays", rounds[r].arrays}});
    for (const char* key : {"run", "steps", "seconds", "median_step_s", "predicted_step_s", "final_loss",
                            "samples_per_s", "peak_memory_bytes", "evaluations", "variant"}) {
      if (const Json* value = summaries[r].find(key)) round[key] = *value;
    }
    list.push_back(std::move(round));
    first_job += rounds[r].jobs;
  }
  const double samples = number(all, "samples_per_s") * number(all, "median_step_s");
  const double step_s = sum_of(summaries, "median_step_s");
  all["median_step_s"] = step_s;
  all["samples_per_s"] = step_s > 0 ? samples / step_s : 0.0;
  for (const char* key : {"predicted_step_s", "seconds"}) all[key] = sum_of(summaries, key);
  for (const char* key : {"peak_memory_bytes", "peak_stash", "peak_versions"})
    all[key] = static_cast<std::int64_t>(most_of(summaries, key));
  for (const char* key : {"checkpoints_failed", "log_lines_lost"})
    all[key] = static_cast<std::int64_t>(sum_of(summaries, key));
  Json lost = Json::array();
  for (const Json& summary : summaries) {
    if (const Json* own = summary.find("lost"); own && own->is_array())
      for (const Json& one : own->items()) lost.push_back(one);
  }
  all["lost"] = std::move(lost);
  if (const Json* variant = all.find("variant"); variant && variant->find("drawn_s")) {
    std::vector<Json> variants;
    for (const Json& summary : summaries)
      if (const Json* own = summary.find("variant")) variants.push_back(*own);
    for (const char* key : {"drawn_s", "waited_s"}) all["variant"][key] = sum_of(variants, key);
    all["variant"]["times"] = Json();  // each round has its own source
  }
  all["checkpoint_step"] = Json();     // each round has its own
  all["evaluations"] = Json::array();  // see the rounds and the jobs
  all["losses"] = mean_losses(jobs);
  all["final_loss"] = mean_of_last(jobs);
  all["jobs"] = std::move(jobs);
  all["rounds"] = std::move(list);
  return all;
}

Status join_job_tables(const std::string& output_dir, const std::vector<std::string>& folders) {
  std::string all;
  for (const std::string& folder : folders) {
    const Result<std::string> text = read_file(fs::path(folder) / run_files::kJobs, kGiB);
    if (!text) return text.problems();
    const std::size_t header = text->find('\n');
    all += all.empty() || header == std::string::npos ? *text : text->substr(header + 1);
  }
  return write_file_atomically(fs::path(output_dir) / run_files::kJobs, all);
}

}  // namespace millrace
