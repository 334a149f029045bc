#include "driver/flags/job_lists.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "driver/flags/compute_specs.h"
#include "runtime/rules/rule_table.h"

namespace millrace {
namespace {

/// A word of the command line that names a flag: --lr, --lr=0.1, -j; not -0.5.
bool is_flag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' &&
         (word[1] == '-' || std::isalpha(static_cast<unsigned char>(word[1])));
}

std::string name_of(const std::string& word) {
  if (!word.starts_with("--")) return word.substr(1, 1);
  std::string name =
      word.substr(2, word.find('=') == std::string::npos ? std::string::npos : word.find('=') - 2);
  std::ranges::replace(name, '_', '-');
  return name;
}

const Flag* flag_of(const CommandSpec& spec, const std::string& word) {
  const std::string name = name_of_alias(spec.flags, word);
  const auto found = std::ranges::find_if(spec.flags, [&](const Flag& flag) {
    return flag.name == name || (name.size() == 1 && flag.short_name == name[0]);
  });
  return found == spec.flags.end() ? nullptr : &*found;
}

/// A flag with the words that follow it.
struct Group {
  std::vector<std::string> words;  ///< the flag first; none: words that belong to no flag
  bool has_flag = false;
  std::vector<std::string> values() const {
    std::vector<std::string> all;
    if (const std::size_t equals = words[0].find('='); equals != std::string::npos)
      all.push_back(words[0].substr(equals + 1));
    all.insert(all.end(), words.begin() + 1, words.end());
    return all;
  }
};

std::vector<Group> groups_of(const std::vector<std::string>& args) {
  std::vector<Group> groups;
  for (const std::string& word : args) {
    if (is_flag(word))
      groups.push_back({{word}, true});
    else if (groups.empty())
      groups.push_back({{word}, false});
    else
      groups.back().words.push_back(word);
  }
  return groups;
}

}  // namespace

bool may_differ(const std::string& name) {
  const std::vector<Flag> flags = train_spec().flags;
  const auto found = std::ranges::find(flags, name, &Flag::name);
  return found == flags.end() || found->per_job;  // the others are options of models
}

std::optional<std::string> as_one_text(const Flag& flag, const std::vector<std::string>& values) {
  static const std::vector<std::string> lists{"PATTERNS", "KEYS", "FILES"};
  if (flag.value.find("[,") == std::string::npos && std::ranges::find(lists, flag.value) == lists.end())
    return std::nullopt;
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ",") + value;
  return text;
}

bool JobLists::has(const std::string& flag) const {
  return std::ranges::find(lists, flag, &decltype(lists)::value_type::first) != lists.end();
}

Result<JobLists> take_job_lists(const CommandSpec& spec, const std::vector<std::string>& args) {
  Problems problems;
  JobLists result;
  std::optional<std::size_t> jobs;
  std::string jobs_from;
  const auto set_jobs = [&](std::size_t count, const std::string& flag) {
    if (!jobs) {
      jobs = count;
      jobs_from = flag;
    } else if (*jobs != count) {
      problems.push_back(
          {"--" + flag,
           "is for " + std::to_string(count) + " jobs, --" + jobs_from + " for " + std::to_string(*jobs),
           "give every list as many values, or one value for all jobs"});
    }
  };
  const std::vector<Group> groups = groups_of(args);
  const bool fused = std::ranges::any_of(
      groups, [](const Group& g) { return g.has_flag && name_of(g.words[0]) == "fused"; });
  for (const Group& group : groups) {
    if (!group.has_flag) continue;
    const std::string name = name_of(group.words[0]);
    const std::vector<std::string> values = group.values();
    const Flag* flag = flag_of(spec, name);
    // In `plan` and `profile` the flag has another meaning.
    if (name == "jobs" && values.size() == 1 && flag_of(spec, "fused") != nullptr) {
      const Result<std::int64_t> count = integer_from(values[0], 0, kMostJobs);
      if (!count)
        problems.push_back({"--jobs", count.problems().front().what, {}});
      else if (!fused && *count > 1)
        problems.push_back({"--jobs", "is for a job array", "give --fused"});
      else if (*count > 0)
        set_jobs(static_cast<std::size_t>(*count), "jobs");
    }
    if (!flag || flag->value.empty() || flag->value.find(' ') != std::string::npos || values.size() < 2)
      continue;
    if (!fused) {
      const std::optional<std::string> together = as_one_text(*flag, values);
      problems.push_back({"--" + flag->name, "has " + std::to_string(values.size()) + " values",
                          may_differ(flag->name) ? "give --fused to train a job with each, as one array"
                          : together             ? "put commas between: --" + flag->name + " " + *together
                                                 : "give one"});
      continue;
    }
    if (!may_differ(flag->name)) {
      problems.push_back({"--" + flag->name, "cannot differ between the jobs of an array",
                          "give one value, and run jobs that differ in it apart"});
      continue;
    }
    set_jobs(values.size(), flag->name);
    const auto is_it = [&](const Group& other) {
      return other.has_flag && flag_of(spec, name_of(other.words[0])) == flag;
    };
    if (!result.has(flag->name) && std::ranges::count_if(groups, is_it) > 1)
      problems.push_back({"--" + flag->name, "is given twice", "give it once, with the value of each job"});
    result.lists.emplace_back(flag->name, values);
  }
  if (jobs && *jobs > kMostJobs)
    problems.push_back(
        {"--fused",
         "has " + std::to_string(*jobs) + " jobs, at most " + std::to_string(kMostJobs) + " are one array",
         {}});
  if (!problems.empty()) return problems;
  for (std::size_t job = 0; job < jobs.value_or(1); ++job) {
    auto& own = result.args.emplace_back();
    for (const Group& group : groups) {
      const Flag* flag = group.has_flag ? flag_of(spec, name_of(group.words[0])) : nullptr;
      if (!flag || !result.has(flag->name)) {
        own.insert(own.end(), group.words.begin(), group.words.end());
        continue;
      }
      own.push_back("--" + flag->name + "=" + group.values()[job]);
    }
  }
  return result;
}

}  // namespace millrace
