#include "runtime/checkpoint/job_checkpoints.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "runtime/base/numbers.h"
#include "runtime/layers/job_array.h"

namespace millrace {
namespace {

constexpr const char* kBetweenJobs = " | ";
// Settings that the jobs of an array share; other settings may differ.
constexpr std::array kCommon{"schedule", "microbatch", "microbatches", "keep-last", "clip-scope"};

const std::string* value_of(const Settings& settings, const std::string& key) {
  const auto found = std::ranges::find(settings, key, &Settings::value_type::first);
  return found == settings.end() ? nullptr : &found->second;
}

std::string joined_values(const std::vector<std::string>& of_jobs) {
  const bool alike = std::ranges::all_of(of_jobs, [&](const auto& v) { return v == of_jobs.front(); });
  if (alike) return of_jobs.front();
  std::string all;
  for (const std::string& value : of_jobs) all += (all.empty() ? "" : kBetweenJobs) + value;
  return all;
}

/// Returns the index at which the parameter's own name starts. The job's prefix precedes it, and the own name
/// has no '/'.
std::size_t own_name(const std::string& name) {
  return name.rfind('/') + 1;  // npos + 1 is 0
}

/// Returns the locations of a job's tensors, by their names in a checkpoint of the job alone.
std::map<std::string, std::pair<const SafetensorsFile*, std::string>> tensors_of(const JobSource& source) {
  std::map<std::string, std::pair<const SafetensorsFile*, std::string>> result;
  const bool array = jobs_in(*source.checkpoint) > 1;
  const std::string prefix = job_prefix(static_cast<int>(source.job));
  for (const SafetensorsFile& shard : source.checkpoint->shards) {
    for (const std::string& name : shard.names()) {
      std::string own = name;
      if (array) {
        const std::size_t at = own_name(name);
        if (at < prefix.size() || name.compare(at - prefix.size(), prefix.size(), prefix) != 0) continue;
        if (at > prefix.size() && name[at - prefix.size() - 1] != '/') continue;
        own.erase(at - prefix.size(), prefix.size());
      }
      result[own] = {&shard, name};
    }
  }
  return result;
}

}  // namespace

Settings joined_settings(const std::vector<Settings>& of_jobs) {
  Settings all;
  for (const Settings& keys : of_jobs) {
    for (const auto& [key, ignored] : keys) {
      if (value_of(all, key)) continue;
      std::vector<std::string> values;
      for (const Settings& job : of_jobs) {
        const std::string* value = value_of(job, key);
        values.push_back(value ? *value : "(none)");
      }
      all.emplace_back(key, joined_values(values));
    }
  }
  return all;
}

std::vector<Settings> split_settings(const Settings& array, std::size_t jobs) {
  std::vector<Settings> all(jobs);
  const std::string between = kBetweenJobs;
  for (const auto& [key, value] : array) {
    if (key == "jobs") continue;
    std::vector<std::string> values;
    for (std::size_t at = 0;;) {
      const std::size_t end = value.find(between, at);
      values.push_back(value.substr(at, end - at));
      if (end == std::string::npos) break;
      at = end + between.size();
    }
    for (std::size_t job = 0; job < jobs; ++job) {
      const std::string& own = values.size() == jobs ? values[job] : value;
      if (own != "(none)") all[job].emplace_back(key, own);
    }
  }
  return all;
}

std::size_t jobs_in(const Checkpoint& checkpoint) {
  const std::string* jobs = value_of(checkpoint.info.settings, "jobs");
  return std::max<std::size_t>(1, jobs ? number_of<std::size_t>(*jobs).value_or(1) : 1);
}

Status of_one_job(const Checkpoint& checkpoint, const std::string& path) {
  const std::size_t jobs = jobs_in(checkpoint);
  if (jobs == 1) return Ok{};
  return Problem{path, "holds a job array: the weights of " + std::to_string(jobs) + " jobs",
                 "take one job out: millrace fuse " + path + "@0 --out job0, then give job0"};
}

std::vector<JobProgress> progress_of(const Checkpoint& checkpoint) {
  const CheckpointInfo& info = checkpoint.info;
  if (!info.jobs.empty()) return info.jobs;
  return std::vector<JobProgress>(jobs_in(checkpoint), {.step = info.step,
                                                        .position = info.position,
                                                        .updates = info.updates,
                                                        .averaging = info.averaging,
                                                        .loss_scale = info.loss_scale});
}

bool at_one_step(const std::vector<JobProgress>& jobs) {
  return std::ranges::all_of(jobs, [&](const JobProgress& job) {
    return job.step == jobs.front().step && job.position == jobs.front().position &&
           job.updates == jobs.front().updates && job.is_new == jobs.front().is_new;
  });
}

namespace {

/// Returns the errors of jobs at different steps: an asynchronous schedule, or layers that carry states.
Problems problems_of_steps(
    const CheckpointInfo& info, const Checkpoint& first,
    const std::map<std::string, std::pair<const SafetensorsFile*, std::string>>& model) {
  if (at_one_step(info.jobs)) return {};
  Problems problems;
  const std::string apart = "the jobs would be at different steps, and ";
  const std::string* schedule = value_of(first.info.settings, "schedule");
  if (schedule && *schedule != "with a flush")
    problems.push_back({first.path, apart + "schedule " + *schedule + " never flushes",
                        "fuse jobs at one step, or train them with a schedule that flushes"});
  const auto carried = model.lower_bound("carried/");
  if (carried != model.end() && carried->first.starts_with("carried/"))
    problems.push_back({first.path,
                        apart + first.info.model + " carries states from window to window, which all read",
                        "fuse jobs at one step"});
  return problems;
}

/// Returns the settings that a job that has not started cannot choose.
Settings common_settings(const Settings& first) {
  Settings common;
  for (const char* key : kCommon)
    if (const std::string* value = value_of(first, key)) common.emplace_back(key, *value);
  return common;
}

}  // namespace

Result<JoinedCheckpoint> join_jobs(const std::vector<JobSource>& jobs, std::size_t num_new) {
  Problems problems;
  const Checkpoint& first = *jobs.front().checkpoint;
  const std::size_t count = jobs.size() + num_new;
  std::vector<Settings> settings;
  std::vector<JobProgress> progress;
  const auto say = [&](const Checkpoint& other, const std::string& what, const std::string& there,
                       const std::string& here, const std::string& hint) {
    problems.push_back({other.path, what + " is " + here + ", in " + first.path + " it is " + there, hint});
  };
  for (const JobSource& source : jobs) {
    const Checkpoint& c = *source.checkpoint;
    settings.push_back(split_settings(c.info.settings, jobs_in(c))[source.job]);
    progress.push_back(progress_of(c)[source.job]);
    if (c.info.model != first.info.model) say(c, "the model", first.info.model, c.info.model, {});
    for (const char* key : kCommon) {
      const std::string *there = value_of(settings.front(), key), *here = value_of(settings.back(), key);
      if ((there ? *there : "(none)") != (here ? *here : "(none)"))
        say(c, key, there ? *there : "(none)", here ? *here : "(none)", "it cannot differ within an array");
    }
  }
  if (!problems.empty()) return problems;
  const auto begun = std::ranges::find(progress, false, &JobProgress::is_new);
  if (begun == progress.end())
    return Problem{first.path, "the job has not begun: there is nothing of it yet",
                   "take a job with it that has, or train it from its seed"};
  const JobSource& like_all = jobs[begun - progress.begin()];
  settings.resize(count, common_settings(settings.front()));
  progress.resize(count, {.is_new = true});
  JoinedCheckpoint joined{.info = first.info};
  joined.info.settings = joined_settings(settings);
  if (count > 1) joined.info.settings.emplace_back("jobs", std::to_string(count));
  const JobProgress& farthest = *std::ranges::max_element(progress, {}, &JobProgress::position);
  joined.info.step = farthest.step;
  joined.info.position = farthest.position;
  joined.info.updates = farthest.updates;
  joined.info.averaging = count == 1 ? farthest.averaging : std::nullopt;
  joined.info.loss_scale = count == 1 ? farthest.loss_scale : std::nullopt;
  joined.info.jobs.clear();
  const auto is_told_apart = [&](const JobProgress& job) { return job != farthest || job.has_state(); };
  if (count > 1 && std::ranges::any_of(progress, is_told_apart)) joined.info.jobs = progress;
  const auto model = tensors_of(like_all);
  append(problems, problems_of_steps(joined.info, first, model));
  for (std::size_t b = 0; b < jobs.size(); ++b) {
    if (progress[b].is_new) continue;
    const auto tensors = tensors_of(jobs[b]);
    for (const auto& [name, place] : tensors) {
      const bool is_weight = name.find('/') == std::string::npos;
      const auto like = model.find(name);
      // Rule state is not compared: it depends on the job's settings.
      if (is_weight && (like == model.end() ||
                        like->second.first->shape(like->second.second) != place.first->shape(place.second))) {
        problems.push_back({jobs[b].checkpoint->path,
                            name + " is not of the form that it has in " + like_all.checkpoint->path,
                            "jobs of an array have one model"});
        continue;
      }
      std::string full = name;
      if (count > 1) full.insert(own_name(name), job_prefix(static_cast<int>(b)));
      joined.tensors.emplace_back(std::move(full), place.first->tensor(place.second));
    }
    for (const auto& [name, place] : model) {
      if (name.find('/') == std::string::npos && !tensors.contains(name))
        problems.push_back(
            {jobs[b].checkpoint->path, "has no tensor " + name, "jobs of an array have one model"});
    }
  }
  if (!problems.empty()) return problems;
  return joined;
}

}  // namespace millrace
