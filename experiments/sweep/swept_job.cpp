#include "experiments/sweep/swept_job.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "driver/launch/model_flags.h"
#include "experiments/sweep/batch_arrays.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

bool belongs_to_the_sweep(const std::string& key) {
  static const std::set<std::string> flags{"output-dir", "resume", "resume-changes", "overwrite", "format",
                                           "fused",      "jobs"};
  return flags.count(flag_name(key)) != 0;
}

}  // namespace

Result<SweptJob> SweptJob::from(const Json& value, const std::string& file) {
  SweptJob swept;
  if (value.is_object()) {
    Problems problems;
    for (const auto& [key, member] : value.members()) {
      if (belongs_to_the_sweep(key))
        problems.push_back({member.where(), "job: " + key + " is set for each job here", "leave it out"});
    }
    if (!problems.empty()) return problems;
    if (const Status read = swept.take(value); !read) return read.problems();
    swept.source_ = file;
    return swept;
  }
  if (!value.is_string())
    return Problem{value.where(), "job is neither a file nor a mapping", "e.g. job: job.yaml"};
  std::string path = value.as_string();
  std::error_code ignored;
  const fs::path beside = fs::path(file).parent_path() / path;
  if (!fs::exists(path, ignored) && fs::exists(beside, ignored)) path = beside.string();
  const Result<Json> json = read_yaml(path);
  if (!json) return json.problems();
  if (!json->is_object()) return Problem{path, "a job is a mapping of keys to values", "e.g. model: mlp"};
  if (const Status read = swept.take(*json); !read) return read.problems();
  swept.source_ = path;
  return swept;
}

Status SweptJob::take(const Json& job) {
  job_ = Json::object();
  for (const auto& [key, member] : job.members()) {
    if (key == "on" && member.is_string()) {
      on_ = member.as_string();
      if (on_ != "local" && !find_engine(on_))
        return Problem{member.where(), "on: '" + on_ + "' is no engine", "one of " + engine_names(", ")};
    } else if (key == "hosts") {
      hosts_ = member.is_string() ? member.as_string() : "";
      if (member.is_array()) {
        for (const Json& item : member.items())
          hosts_ += (hosts_.empty() ? "" : ",") + (item.is_string() ? item.as_string() : item.dump());
      }
      if (const auto hosts = parse_hosts(hosts_); !hosts) return hosts.problems();
    } else if (!belongs_to_the_sweep(key)) {
      job_.append_member(key, member);
    }
  }
  if (on_.empty() && !hosts_.empty()) on_ = "ssh";
  if (on_ == "local") on_.clear();
  if (!on_.empty() && hosts_.empty() && !find_engine(on_)->allocated && !find_engine(on_)->queue)
    return Problem{"job", "on: " + on_ + " needs hosts", "for example hosts: [node1:2, node2:2]"};
  return Ok{};
}

Result<JobSpec> SweptJob::with(const JobSettings& settings) const {
  Json job = Json::object();
  for (const auto& [key, value] : job_.members()) {
    const bool replaced =
        std::ranges::any_of(settings, [&, k = key](const Setting& s) { return s.flag == flag_name(k); });
    if (!replaced) job.append_member(key, value);
  }
  for (const Setting& setting : settings) {
    Json value(setting.text);
    value.set_where(setting.where);
    job.append_member(setting.flag, std::move(value));
  }
  // All jobs of a sweep have one worker.
  const AskForModels ask = [this](const std::string& named) {
    const std::string worker = named.empty() ? any_worker() : named;
    if (!*models_) *models_ = worker.empty() ? Result<Models>(Models{}) : models_of_worker(worker);
    return **models_;
  };
  Result<JobSpec> made = job_from(job, source_, {}, ask);
  if (!made) return made;
  made->hosts.on = on_;
  made->hosts.list = hosts_;
  if (const Engine* engine = queue_of(*made)) {
    const Status fits = engine->queue->check ? engine->queue->check(*made) : Ok{};
    if (!fits) return fits.problems();
  } else {
    if (const auto groups = host_groups(*made); !groups) return groups.problems();
  }
  return made;
}

SweptJob SweptJob::replaced(const std::vector<std::string>& without,
                            const std::pair<std::string, std::string>& added) const {
  SweptJob made = *this;
  made.job_ = Json::object();
  for (const auto& [key, value] : job_.members()) {
    const std::string flag = flag_name(key);
    if (flag != added.first && std::ranges::find(without, flag) == without.end())
      made.job_.append_member(key, value);
  }
  made.job_.append_member(added.first, added.second);
  return made;
}

void set_flag(JobSpec& job, const std::string& flag, const std::optional<std::string>& text) {
  const auto found = std::ranges::find(job.train, flag, &std::pair<std::string, std::string>::first);
  if (found == job.train.end()) {
    if (text) job.train.emplace_back(flag, *text);
  } else if (text) {
    found->second = *text;
  } else {
    job.train.erase(found);
  }
  if (flag == "output-dir" && text) job.output_dir = *text;
}

std::vector<JobSettings> all_settings(const Varied& varied, std::uint64_t seed, int num_jobs) {
  std::vector<JobSettings> all;
  for (int i = 0; i < num_jobs; ++i) all.push_back(settings_of(varied, seed, static_cast<std::size_t>(i)));
  return all;
}

Problems problems_of_jobs(const SweptJob& job, const Varied& varied, std::uint64_t seed, int num_jobs) {
  Problems problems;
  std::set<std::string> seen;
  const auto try_settings = [&](const JobSettings& settings) {
    const Result<JobSpec> made = job.with(settings);
    if (made) return;
    for (const Problem& problem : made.problems()) {
      // A drawn value is another each time, its place is not.
      if (seen.insert(problem.where).second) problems.push_back(problem);
    }
  };
  for (const Setting& first : num_jobs > 0 ? settings_of(varied, seed, 0) : JobSettings{}) {
    if (belongs_to_the_sweep(first.flag) || first.flag == "ranks" || first.flag == "name")
      problems.push_back({first.where, first.flag + " cannot vary from job to job", "leave it out"});
  }
  if (!problems.empty()) return problems;
  // Each value alone, beside the first job's others; then the jobs as they are.
  const JobSettings first = settings_of(varied, seed, 0);
  const auto try_value = [&](const std::string& flag, const std::string& text, const std::string& where) {
    JobSettings settings = first;
    std::ranges::find(settings, flag, &Setting::flag)->text = text;
    std::ranges::find(settings, flag, &Setting::flag)->where = where;
    try_settings(settings);
  };
  for (const Sampled& sampled : varied.sample) {
    for (const std::string& end : sampled.distribution.ends()) try_value(sampled.flag, end, sampled.where);
  }
  for (int i = 0; i < std::min(num_jobs, kMostTriedJobs); ++i)
    try_settings(settings_of(varied, seed, static_cast<std::size_t>(i)));
  return problems;
}

}  // namespace millrace
