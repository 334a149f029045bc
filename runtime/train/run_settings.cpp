#include "runtime/train/run_settings.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/checkpoint/job_checkpoints.h"
#include "runtime/rules/rule_flags.h"
#include "runtime/train/trainer.h"

namespace millrace {
namespace {

/// Returns the schedule as a setting. All flushing schedules give the same weights; each of the others gives
/// its own.
std::string kind_of(ScheduleKind kind) {
  return is_asynchronous(kind) ? to_string(kind) : "with a flush";
}

const std::string* value_of(const Settings& settings, const std::string& key) {
  const auto found = std::ranges::find(settings, key, &Settings::value_type::first);
  return found == settings.end() ? nullptr : &found->second;
}

/// Returns the settings of one job. `model` is the model of that job alone. `options` are its own copy,
/// without jobs.
Settings settings_of_job(const LayeredModel& model, const Plan& plan, TrainOptions& options, JobOptions job) {
  Settings settings;
  for (const FieldSpec& field : model.fields) {
    if (field.limit > 0)
      settings.emplace_back(field.name == "target" ? "classes" : field.name, std::to_string(field.limit));
    else
      settings.emplace_back(field.name, recorded_text(field.shape));
  }
  settings.emplace_back("schedule", kind_of(plan.schedule));
  settings.emplace_back("microbatches", std::to_string(microbatches_per_step(plan)));
  if (value_of(job.rule, &RuleOptions::nonmonotone) > 0)
    settings.emplace_back("evaluate-every", std::to_string(options.evaluate_every));
  if (needs_total(job.learning_rate))
    settings.emplace_back("steps", std::to_string(job.learning_rate.total_steps));
  if (options.rate_per_length > 0)
    settings.emplace_back("lr-by-length", std::to_string(options.rate_per_length));
  options.seed = job.seed;
  RateInEpochs epochs;
  for (const std::vector<Flag>& flags : {train_flags(options), rule_flags(job.rule, job.clip),
                                         rate_flags(job.learning_rate, epochs, options.rate_by_replicas),
                                         precision_flags(options.precision, options.loss_scale)})
    append(settings, recorded(flags));
  append(settings, job.settings);
  return settings;
}

}  // namespace

std::vector<JobOptions> jobs_of(const TrainOptions& options) {
  std::vector<JobOptions> jobs = options.jobs;
  if (jobs.empty())
    jobs.push_back({.seed = options.seed,
                    .rule = options.rule,
                    .clip = options.clip,
                    .learning_rate = options.learning_rate,
                    .settings = options.settings});
  for (JobOptions& job : jobs) {
    if (job.learning_rate.total_steps <= 1) job.learning_rate.total_steps = job.steps.value_or(options.steps);
  }
  return jobs;
}

Settings run_settings(const LayeredModel& model, const Plan& plan, const TrainOptions& options) {
  const std::vector<JobOptions> jobs = jobs_of(options);
  TrainOptions alone = options;
  alone.jobs.clear();
  std::vector<Settings> of_jobs;
  for (std::size_t job = 0; job < jobs.size(); ++job)
    of_jobs.push_back(
        settings_of_job(model.of_jobs.empty() ? model : model.of_jobs[job], plan, alone, jobs[job]));
  if (of_jobs.size() == 1) return of_jobs.front();
  Settings all = joined_settings(of_jobs);
  all.emplace_back("jobs", std::to_string(of_jobs.size()));
  return all;
}

Settings rank_settings(const Plan& plan, const TrainOptions& options) {
  Settings settings{{"plan", plan.fingerprint()},
                    {"schedule kind", to_string(plan.schedule)},
                    {"model", plan.model},
                    {"score-every", std::to_string(options.score_every)},
                    {"target-score", options.target_score ? recorded_text(*options.target_score) : "none"}};
  TrainOptions described = options;
  for (const std::vector<Flag>& flags : {train_flags(described), rule_flags(described.rule, described.clip),
                                         nonfinite_flags(described.nonfinite)})
    for (const Flag& flag : flags) {
      const std::string& value = flag.target.fallback;
      if (flag.decides == Decides::Meetings)
        settings.emplace_back(flag.name, value.empty() ? "none" : value);
      else if (flag.decides == Decides::GivenByAll)
        settings.emplace_back(flag.name, value.empty() ? "none" : "given");
    }
  std::string of_jobs;
  for (const JobOptions& job : options.jobs)
    of_jobs += " " + std::to_string(job.steps.value_or(options.steps));
  settings.emplace_back("steps of jobs", of_jobs);
  append(settings, options.rank_settings);
  return settings;
}

std::vector<SettingChange> changes_between(const Settings& then, const Settings& now) {
  std::vector<SettingChange> changes;
  const auto text = [](const std::string* value) { return value ? *value : std::string("(none)"); };
  const auto compare = [&](const std::string& key) {
    const std::string *before = value_of(then, key), *after = value_of(now, key);
    if (text(before) != text(after)) changes.push_back({key, text(before), text(after)});
  };
  for (const auto& [key, value] : now) compare(key);
  for (const auto& [key, value] : then) {
    if (!value_of(now, key)) compare(key);
  }
  return changes;
}

std::string to_string(const std::vector<SettingChange>& changes) {
  std::string text;
  for (const SettingChange& c : changes)
    text += (text.empty() ? "" : "; ") + c.key + ": " + c.then + " there, " + c.now + " here";
  return text;
}

std::string to_text(const Settings& settings) {
  std::string text;
  for (const auto& [key, value] : settings) {
    text += key + "=";
    for (char c : value) text += c == '\n' ? ' ' : c;
    text += '\n';
  }
  return text;
}

std::vector<SettingChange> resumed_changes(const Checkpoint& found, const Settings& now,
                                           const std::vector<std::string>& allowed) {
  std::vector<std::string> keys{"all"};
  for (const Settings& side : {now, found.info.settings}) {
    for (const auto& [key, value] : side) keys.push_back(key);
  }
  for (const std::string& key : allowed) {
    if (std::ranges::find(keys, key) != keys.end()) continue;
    const auto near = nearest_name(key, keys);
    throw ConfigError("--resume-changes: a checkpoint does not record '" + key + "'",
                      near ? "did you mean '" + *near + "'?" : "docs/commands.md lists what it records");
  }
  const auto is_allowed = [&](const SettingChange& change) {
    return std::ranges::any_of(allowed, [&](const auto& a) { return a == "all" || a == change.key; });
  };
  Settings then = found.info.settings;
  const std::vector<JobProgress> progress = progress_of(found);
  // the settings of new jobs are those of this run
  if (std::ranges::any_of(progress, &JobProgress::is_new)) {
    const std::size_t count = progress.size();
    std::vector<Settings> of_jobs = split_settings(then, count), today = split_settings(now, count);
    for (std::size_t job = 0; job < count; ++job)
      if (progress[job].is_new) of_jobs[job] = today[job];
    then = joined_settings(of_jobs);
    then.emplace_back("jobs", std::to_string(count));
  }
  const std::vector<SettingChange> changes = changes_between(then, now);
  std::vector<SettingChange> refused;
  std::string names;
  for (const SettingChange& change : changes) {
    if (is_allowed(change)) continue;
    refused.push_back(change);
    names += (names.empty() ? "" : ",") + change.key;
  }
  if (!refused.empty()) {
    throw CheckpointError(
        "cannot resume: " + found.path + " is of a run with other settings: " + to_string(refused),
        "give the same ones, or --resume-changes " + names + " to go on with these");
  }
  return changes;
}

Settings settings_from(const std::string& text) {
  Settings settings;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at), equals = text.find('=', at);
    settings.emplace_back(text.substr(at, equals - at), text.substr(equals + 1, end - equals - 1));
    at = end + 1;
  }
  return settings;
}

}  // namespace millrace
