#include "runtime/train/run_settings.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/checkpoint/job_checkpoints.h"
#include "runtime/train/trainer.h"

namespace millrace {
namespace {

std::string text_of(double value) {
  return Json(value).dump();
}

std::string text_of(const Shape& shape) {
  std::string text;
  for (std::int64_t d : shape) {
    if (!text.empty()) text += 'x';
    text += std::to_string(d);
  }
  return text;
}

/// Returns the schedule as a setting. All schedules that flush give the same weights; each of the others
/// gives its own.
std::string kind_of(ScheduleKind kind) {
  return is_asynchronous(kind) ? to_string(kind) : "with a flush";
}

const std::string* value_of(const Settings& settings, const std::string& key) {
  const auto found = std::ranges::find(settings, key, &Settings::value_type::first);
  return found == settings.end() ? nullptr : &found->second;
}

void add_rate(const LearningRateOptions& rate, Settings& settings) {
  const LearningRateOptions usual;
  const auto put_unusual = [&](const char* key, auto value, auto usual_value) {
    if (value != usual_value) settings.emplace_back(key, text_of(double(value)));
  };
  settings.emplace_back("lr", text_of(rate.base));
  settings.emplace_back("lr-policy", to_string(rate.policy));
  settings.emplace_back("warmup-steps", std::to_string(rate.warmup_steps));
  if (rate.policy == RatePolicy::Step) settings.emplace_back("lr-step-size", std::to_string(rate.step_size));
  if (rate.policy == RatePolicy::Step || rate.policy == RatePolicy::Exponential ||
      rate.policy == RatePolicy::MultiStep || rate.policy == RatePolicy::Gnmt)
    settings.emplace_back("gamma", text_of(rate.gamma));
  if (needs_total(rate)) settings.emplace_back("steps", std::to_string(rate.total_steps));
  if (rate.warmup != usual.warmup) settings.emplace_back("warmup", to_string(rate.warmup));
  if (!rate.milestones.empty()) settings.emplace_back("lr-milestones", text_of(rate.milestones));
  if (rate.count_from) settings.emplace_back("lr-count-from", std::to_string(*rate.count_from));
  put_unusual("warmup-fraction", rate.warmup_fraction, usual.warmup_fraction);
  put_unusual("lr-power", rate.power, usual.power);
  put_unusual("lr-end", rate.end, usual.end);
  put_unusual("lr-after-warmup", rate.after_warmup, usual.after_warmup);
  put_unusual("lr-decay-start", rate.decay_start, usual.decay_start);
  put_unusual("lr-per-epoch", rate.steps_per_epoch, usual.steps_per_epoch);
  if (rate.policy == RatePolicy::Gnmt) {
    put_unusual("lr-remain", rate.remain, usual.remain);
    put_unusual("lr-decay-interval", rate.decay_interval, usual.decay_interval);
    put_unusual("lr-decays", rate.decays, usual.decays);
  }
}

/// Adds the settings of an update rule. Numbers that are the rule's defaults are left out, except those that
/// checkpoints have always recorded. The sharding of rule state is left out, as it changes no weights.
void add_rule(const RuleOptions& rule, const ClipOptions& clip, Settings& settings) {
  settings.emplace_back("rule", to_string(rule.kind));
  const RuleOptions usual{.kind = rule.kind};
  for (const RuleNumber& number : rule_numbers()) {
    const double value = value_of(rule, number.member);
    const bool always =
        number.flag == "weight-decay" || (number.flag == "momentum" && rule.kind == UpdateRuleKind::Sgd);
    if (always || value != value_of(usual, number.member)) settings.emplace_back(number.flag, text_of(value));
  }
  for (const RuleSwitch& option : rule_switches())
    if (rule.*option.member) settings.emplace_back(option.flag, "true");
  if (no_decay_of(rule) != no_decay_of(usual)) {
    std::string names;
    for (ParameterGroup group : no_decay_of(rule)) {
      if (!names.empty()) names += ',';
      names += to_string(group);
    }
    settings.emplace_back("no-decay", names.empty() ? "none" : names);
  }
  const double norm = clip_norm_of(rule, clip);
  if (norm != clip_norm_of(usual, {})) settings.emplace_back("clip-norm", text_of(norm));
  if (norm > 0 && clip.scope != ClipScope::Model) settings.emplace_back("clip-scope", to_string(clip.scope));
  if (clip.value > 0) settings.emplace_back("clip-value", text_of(clip.value));
}

/// Adds the settings of precision and loss scale. It adds nothing for float32 without a scale, because older
/// checkpoints of such runs record nothing.
void add_precision(const TrainOptions& options, Settings& settings) {
  if (options.precision != Precision::Float32)
    settings.emplace_back("precision", to_string(options.precision));
  const LossScaleOptions& scale = options.loss_scale;
  const LossScaleOptions usual;
  const LossScaleKind kind = kind_of(options.precision, scale);
  if (kind.scaling != kind_of(options.precision, usual).scaling)
    settings.emplace_back("loss-scale", to_string(kind));
  if (kind.scaling != LossScaling::Dynamic) return;
  const auto put_unusual = [&](const char* key, double value, double usual_value) {
    if (value != usual_value) settings.emplace_back(key, text_of(value));
  };
  put_unusual("loss-scale-initial", scale.initial, usual.initial);
  put_unusual("loss-scale-growth", scale.growth, usual.growth);
  put_unusual("loss-scale-backoff", scale.backoff, usual.backoff);
  put_unusual("loss-scale-growth-interval", double(scale.growth_interval), double(usual.growth_interval));
}

/// Returns the settings of one job. `model` is the model of that job alone.
Settings settings_of_job(const LayeredModel& model, const Plan& plan, const TrainOptions& options,
                         const JobOptions& job) {
  Settings settings;
  for (const FieldSpec& field : model.fields) {
    if (field.limit > 0)
      settings.emplace_back(field.name == "target" ? "classes" : field.name, std::to_string(field.limit));
    else
      settings.emplace_back(field.name, text_of(field.shape));
  }
  const Settings more{{"schedule", kind_of(plan.schedule)},
                      {"microbatch", std::to_string(options.microbatch)},
                      {"microbatches", std::to_string(microbatches_per_step(plan))},
                      {"seed", std::to_string(job.seed)}};
  settings.insert(settings.end(), more.begin(), more.end());
  add_rule(job.rule, job.clip, settings);
  if (value_of(job.rule, &RuleOptions::nonmonotone) > 0)
    settings.emplace_back("evaluate-every", std::to_string(options.evaluate_every));
  add_rate(job.learning_rate, settings);
  add_precision(options, settings);
  if (options.sync_batch_norm) settings.emplace_back("sync-batch-norm", "true");
  if (options.masks != MasksFrom::Device) settings.emplace_back("dropout-masks", to_string(options.masks));
  if (options.rate_by_replicas) settings.emplace_back("lr-by-replicas", "true");
  if (options.rate_per_length > 0)
    settings.emplace_back("lr-by-length", std::to_string(options.rate_per_length));
  settings.insert(settings.end(), job.settings.begin(), job.settings.end());
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
  std::vector<Settings> of_jobs;
  for (std::size_t job = 0; job < jobs.size(); ++job)
    of_jobs.push_back(
        settings_of_job(model.of_jobs.empty() ? model : model.of_jobs[job], plan, options, jobs[job]));
  if (of_jobs.size() == 1) return of_jobs.front();
  Settings all = joined_settings(of_jobs);
  all.emplace_back("jobs", std::to_string(of_jobs.size()));
  return all;
}

Settings rank_settings(const Plan& plan, const TrainOptions& options) {
  Settings settings{{"plan", plan.fingerprint()},
                    {"schedule kind", to_string(plan.schedule)},
                    {"model", plan.model},
                    {"steps", std::to_string(options.steps)},
                    {"checkpoint-every", std::to_string(options.checkpoint_every)},
                    {"checkpoint-at-end", options.checkpoint_at_end ? "true" : "false"},
                    {"checkpoint-required", options.checkpoint_required ? "true" : "false"},
                    {"checkpoint-background", options.background_saves ? "true" : "false"},
                    {"evaluate-every", std::to_string(options.evaluate_every)},
                    {"score-every", std::to_string(options.score_every)},
                    {"target-score", options.target_score ? text_of(*options.target_score) : "none"},
                    {"keep-best", options.keep_best},
                    {"early-stop", options.early_stop ? to_string(*options.early_stop) : "none"},
                    {"output-dir", options.output_dir.empty() ? "none" : "given"},
                    {"save-weights", options.save_weights.empty() ? "none" : "given"},
                    {"resume", options.resume.empty() ? "none" : "given"},
                    {"init-from", options.init_from.empty() ? "none" : "given"},
                    {"zero-1", options.rule.shard_state ? "true" : "false"},
                    {"on-nonfinite", to_string(options.nonfinite.on)},
                    {"check-finite", to_string(options.nonfinite.check)}};
  std::string of_jobs;
  for (const JobOptions& job : options.jobs)
    of_jobs += " " + std::to_string(job.steps.value_or(options.steps));
  settings.emplace_back("steps of jobs", of_jobs);
  settings.insert(settings.end(), options.rank_settings.begin(), options.rank_settings.end());
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
  if (std::ranges::any_of(progress, &JobProgress::is_new)) {  // which are what this run says
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
