#include "experiments/sweep/partition.h"

#include <algorithm>
#include <iterator>

#include "driver/flags/train_flags.h"

namespace millrace {
namespace {

std::string value_of(const JobSettings& settings, const std::string& flag) {
  const auto found = std::ranges::find(settings, flag, &Setting::flag);
  return found == settings.end() ? "" : found->text;
}

/// The flags of `train` in which the jobs of an array may differ without other shapes.
std::vector<std::string> fusible_flags() {
  std::vector<std::string> flags{"dropout", "label-smoothing"};  // options of models
  for (const Flag& flag : train_spec().flags)
    if (flag.per_job && !flag.value.empty() && flag.name != "steps") flags.push_back(flag.name);
  return flags;
}

}  // namespace

bool is_fusible(const std::string& flag) {
  static const std::vector<std::string> flags = fusible_flags();
  return std::ranges::find(flags, flag) != flags.end();
}

std::vector<std::string> infusible_among(const std::vector<std::string>& flags) {
  std::vector<std::string> found;
  std::ranges::copy_if(flags, std::back_inserter(found),
                       [](const std::string& flag) { return !is_fusible(flag); });
  return found;
}

std::vector<Partition> partitions_of_first(int num_jobs, const std::vector<std::string>& infusible,
                                           const std::function<JobSettings(int)>& of) {
  std::vector<JobSettings> settings;
  std::vector<int> jobs;
  for (int job = 0; job < std::min(num_jobs, kMostTriedJobs); ++job) {
    settings.push_back(of(job));
    jobs.push_back(job);
  }
  return partitions(jobs, infusible, [&](int job) -> const JobSettings& { return settings[job]; });
}

std::vector<Partition> partitions(const std::vector<int>& jobs, const std::vector<std::string>& infusible,
                                  const std::function<const JobSettings&(int)>& of) {
  std::vector<Partition> result;
  if (!jobs.empty()) result.push_back(jobs);
  for (const std::string& flag : infusible) {
    // Rests are appended, and so are split in their turn.
    for (std::size_t i = 0; i < result.size(); ++i) {
      const std::string value = value_of(of(result[i].front()), flag);
      Partition same, rest;
      for (int job : result[i]) (value_of(of(job), flag) == value ? same : rest).push_back(job);
      result[i] = std::move(same);
      if (!rest.empty()) result.push_back(std::move(rest));
    }
  }
  return result;
}

std::string partition_key(const JobSettings& settings, const std::vector<std::string>& infusible) {
  std::vector<std::string> names = infusible;
  std::ranges::sort(names);
  std::string key;
  for (const std::string& name : names)
    key += (key.empty() ? "" : ",") + name + ":" + value_of(settings, name);
  return key;
}

}  // namespace millrace
