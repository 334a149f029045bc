#include "driver/queues/job.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <limits>

#include "data/files/data_kinds.h"
#include "driver/flags/compute_specs.h"

namespace millrace {

namespace fs = std::filesystem;

const NamedTexts& JobHosts::options_of(const std::string& engine) const {
  static const NamedTexts none;
  const auto found = options.find(engine);
  return found == options.end() ? none : found->second;
}

const std::string* JobSpec::find(std::string_view flag) const {
  const auto found =
      std::find_if(train.begin(), train.end(), [&](const auto& entry) { return entry.first == flag; });
  return found == train.end() ? nullptr : &found->second;
}

std::vector<std::string> train_arguments(const JobSpec& job) {
  std::vector<std::string> arguments{"train"};  // switches have no value; all else has, a model's options too
  const std::vector<Flag> flags = train_spec().flags;
  for (const auto& [name, value] : job.train) {
    const auto flag =
        std::find_if(flags.begin(), flags.end(), [&n = name](const Flag& f) { return f.name == n; });
    const auto list = std::find_if(job.lists.begin(), job.lists.end(),
                                   [&n = name](const auto& entry) { return entry.first == n; });
    if (list != job.lists.end()) {
      arguments.push_back("--" + name);
      arguments.insert(arguments.end(), list->second.begin(), list->second.end());
    } else if (flag != flags.end() && flag->value.empty()) {
      arguments.push_back("--" + name);
    } else {
      // One word: a value may start with a dash.
      arguments.push_back("--" + name + "=" + value);
    }
  }
  return arguments;
}

std::vector<AgentInput> inputs_of(const std::vector<std::string>& argv, const std::string& output_dir) {
  std::vector<AgentInput> inputs;
  const auto add = [&](const std::string& path, Bytes most = std::numeric_limits<Bytes>::max()) {
    std::error_code error;
    const bool file = fs::is_regular_file(path, error);
    const bool known = file && static_cast<Bytes>(fs::file_size(path, error)) <= most;
    if (path == output_dir || (!file && !fs::is_directory(path, error))) return;
    AgentInput input = file && known ? input_file(path) : AgentInput{path};
    if (std::ranges::find(inputs, input) == inputs.end()) inputs.push_back(std::move(input));
  };
  for (const std::string& word : argv) {
    const std::size_t equals = word.find('=');
    const std::string value = equals == std::string::npos ? word : word.substr(equals + 1);
    const std::string flag = word.substr(0, equals == std::string::npos ? 0 : equals);
    if (flag == "--data") {
      for (const std::string& path : paths_of_data(value)) add(path, kMostDataBytes);
    } else if (flag != "--output-dir" && flag != "--resume" && flag != "--save-weights") {
      add(value);
    }
  }
  return inputs;
}

bool is_secret(std::string name) {
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return std::ranges::any_of(std::initializer_list<const char*>{"TOKEN", "KEY", "SECRET", "PASSWORD"},
                             [&](const char* part) { return name.find(part) != std::string::npos; });
}

std::vector<std::string> printed_command(const JobSpec& job) {
  std::vector<std::string> words = train_arguments(job);
  words.insert(words.begin(), job.worker.empty() ? (job.find("device") && *job.find("device") == "cuda"
                                                        ? "millrace-worker-cuda"
                                                        : "millrace-worker")
                                                 : job.worker);
  return words;
}

NamedTexts printed_variables(const JobSpec& job) {
  NamedTexts variables = job.environment;
  const std::string* threads = job.find("threads");
  if (std::ranges::none_of(variables, [](const auto& v) { return v.first == "OMP_NUM_THREADS"; }))
    variables.emplace_back("OMP_NUM_THREADS", threads ? *threads : "1");
  return variables;
}

JobHosts printed_hosts(const JobSpec& job) {
  JobHosts hosts = job.hosts;
  if (hosts.entries.empty()) {
    hosts.entries = {{.user = "", .name = "localhost", .slots = job.ranks}};
    hosts.ranks = {job.ranks};
  }
  return hosts;
}

}  // namespace millrace
