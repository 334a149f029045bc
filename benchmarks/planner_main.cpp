// CPU time of PipeDream mode beside the recorded CPU time of the original planner, record by record.
// scripts/benchmark planner
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/thread_seconds.h"
#include "optimizer/pipedream/pipedream_planner.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

struct Run {
  std::string profile;
  std::string graph_file;
  PipeDreamOptions options;
  std::string settings;
  double original_s = 0;
  double pipeline_time_s = 0;
  std::vector<double> plan_s;   // seconds of plan_pipedream in each repetition
  std::vector<double> whole_s;  // seconds of plan_pipedream and of reading the file
};

PipeDreamOptions options_of(const Json& settings) {
  PipeDreamOptions options;
  for (const Json& m : settings.find("all_num_machines")->items())
    options.machines.push_back(static_cast<int>(m.as_int()));
  for (const Json& b : settings.find("network_bandwidths_Bps")->items())
    options.bandwidths.push_back(b.as_double());
  options.straight = settings.find("straight_pipeline")->as_bool();
  options.use_fewer_machines = settings.find("use_fewer_machines")->as_bool();
  if (settings.find("use_memory_constraint")->as_bool())
    options.memory_bytes = settings.find("memory_size_bytes")->as_double();
  const Json& compression = *settings.find("activation_compression_ratio");
  if (!compression.is_null()) options.activation_compression = compression.as_double();
  return options;
}

std::string text_of(const PipeDreamOptions& options) {
  std::string text;
  for (std::size_t i = 0; i < options.machines.size(); ++i) {
    char level[64];
    std::snprintf(level, sizeof level, "%s%d@%g", i == 0 ? "" : ",", options.machines[i],
                  options.bandwidths[i]);
    text += level;
  }
  if (options.straight) text += " straight";
  if (options.use_fewer_machines) text += " fewer";
  if (options.memory_bytes) text += " memory";
  if (options.activation_compression) text += " activations";
  return text;
}

/// The machine's other work only adds to a CPU time (shared caches, shared cores).
double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

bool measure(Run& run) {
  const double begin = thread_seconds();
  const Result<PipeDreamGraph> graph = read_pipedream_graph(run.graph_file);
  if (!graph) return false;
  const double read = thread_seconds();
  const Result<PipeDreamAnswer> answer = plan_pipedream(*graph, run.options);
  const double end = thread_seconds();
  run.plan_s.push_back(end - read);
  run.whole_s.push_back(end - begin);
  return answer && std::abs(answer->pipeline_time_s - run.pipeline_time_s) <= 1e-9 * run.pipeline_time_s;
}

std::vector<Run> load(const std::filesystem::path& folder) {
  const Result<Json> file = read_json((folder / "expected_plans.json").string());
  std::vector<Run> runs;
  if (!file) {
    std::fprintf(stderr, "%s\n", to_string(file.problems()).c_str());
    return runs;
  }
  for (const Json& record : file->find("records")->items()) {
    Run& run = runs.emplace_back();
    run.profile = record.find("profile")->as_string();
    run.graph_file = (folder / run.profile / "graph.txt").string();
    run.options = options_of(*record.find("settings"));
    run.settings = text_of(run.options);
    run.original_s = record.find("optimizer_cpu_s")->as_double();
    run.pipeline_time_s = record.find("pipeline_time_s")->as_double();
  }
  return runs;
}

struct Sum {
  int records = 0;
  int slow = 0;  // recorded above 0.1 s
  double original_s = 0;
  double plan_s = 0;
  double whole_s = 0;
  double slowest_s = 0;
  double least_plan_ratio = HUGE_VAL;
  double least_whole_ratio = HUGE_VAL;
};

void add(Sum& sum, const Run& run) {
  const double plan = least(run.plan_s);
  const double whole = least(run.whole_s);
  ++sum.records;
  sum.original_s += run.original_s;
  sum.plan_s += plan;
  sum.whole_s += whole;
  sum.slowest_s = std::max(sum.slowest_s, plan);
  if (run.original_s <= 0.1) return;
  ++sum.slow;
  sum.least_plan_ratio = std::min(sum.least_plan_ratio, run.original_s / plan);
  sum.least_whole_ratio = std::min(sum.least_whole_ratio, run.original_s / whole);
}

std::string ratio(double value) {
  if (std::isinf(value)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.0f", value);
  return text;
}

void print(const std::string& profile, const std::string& levels, const Sum& sum) {
  std::printf("| %s | %s | %d | %.2f | %.5f | %.3f | %.0f | %d | %s | %s |\n", profile.c_str(),
              levels.c_str(), sum.records, sum.original_s, sum.plan_s, sum.slowest_s * 1e3,
              sum.original_s / sum.plan_s, sum.slow, ratio(sum.least_plan_ratio).c_str(),
              ratio(sum.least_whole_ratio).c_str());
}

void report(std::vector<Run>& runs) {
  std::map<std::pair<std::string, std::size_t>, Sum> sums;
  Sum total;
  for (const Run& run : runs) {
    add(sums[{run.profile, run.options.machines.size()}], run);
    add(total, run);
  }
  std::printf(
      "| profile | levels | records | original, s | ours, s | slowest, ms | ratio | above 0.1 s | "
      "least ratio | with reading |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const auto& [key, sum] : sums) print(key.first, std::to_string(key.second), sum);
  print("all", "", total);
  std::erase_if(runs, [](const Run& run) { return run.original_s <= 0.1; });
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return a.original_s / least(a.whole_s) < b.original_s / least(b.whole_s);
  });
  std::printf("\nleast ratios, reading included:\n");
  for (std::size_t i = 0; i < std::min<std::size_t>(runs.size(), 12); ++i) {
    std::printf("%8.0f  %-10s %-40s original %.4f s, plan %.4f ms, with reading %.4f ms\n",
                runs[i].original_s / least(runs[i].whole_s), runs[i].profile.c_str(),
                runs[i].settings.c_str(), runs[i].original_s, least(runs[i].plan_s) * 1e3,
                least(runs[i].whole_s) * 1e3);
  }
}

// ---- the whole command
// ----------------------------------------------------------------------------------------

std::vector<std::string> command_of(const std::string& millrace, const Run& run) {
  std::string machines, bandwidths;
  for (std::size_t i = 0; i < run.options.machines.size(); ++i) {
    machines += (i == 0 ? "" : ",") + std::to_string(run.options.machines[i]);
    bandwidths += (i == 0 ? "" : ",") + std::to_string(run.options.bandwidths[i]);
  }
  std::vector<std::string> words{millrace,       "plan",       "--pipedream", "--profile",
                                 run.graph_file, "--machines", machines,      "--bandwidth",
                                 bandwidths,     "--format",   "json"};
  if (run.options.straight) words.push_back("--straight");
  if (run.options.use_fewer_machines) words.push_back("--use-fewer-machines");
  if (run.options.memory_bytes) {
    words.push_back("--memory");
    words.push_back(std::to_string(static_cast<long long>(*run.options.memory_bytes)) + "B");
  }
  if (run.options.activation_compression) {
    words.push_back("--activation-compression");
    words.push_back(std::to_string(*run.options.activation_compression));
  }
  return words;
}

/// User and system CPU seconds of a process from its start to its end; below 0 if it fails.
double process_cpu_seconds(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int failed = posix_spawn(&child, arguments[0], &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  int status = 0;
  rusage used{};
  if (failed != 0 || wait4(child, &status, 0, &used) != child || status != 0) return -1;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// Records above 10 s, process start included.
int report_commands(const std::vector<Run>& runs, const std::string& millrace, int repetitions) {
  std::printf("\nwhole command, start included, where the original took more than 10 s:\n");
  for (const Run& run : runs) {
    if (run.original_s <= 10) continue;
    std::vector<double> seconds;
    for (int r = 0; r < repetitions; ++r) seconds.push_back(process_cpu_seconds(command_of(millrace, run)));
    if (least(seconds) < 0) {
      std::fprintf(stderr, "%s failed\n", millrace.c_str());
      return 1;
    }
    std::printf("%8.0f  %-10s %-40s original %.2f s, command %.2f ms\n", run.original_s / least(seconds),
                run.profile.c_str(), run.settings.c_str(), run.original_s, least(seconds) * 1e3);
  }
  return 0;
}

}  // namespace

int main_of(int count, char** arguments) {
  if (count < 2 || count > 4) {
    std::fprintf(stderr,
                 "usage: benchmark_planner FOLDER [REPETITIONS [MILLRACE]]\n"
                 "FOLDER holds expected_plans.json and PROFILE/graph.txt; MILLRACE is the program\n");
    return 64;
  }
  const int repetitions = count >= 3 ? std::max(1, std::atoi(arguments[2])) : 15;
  std::vector<Run> runs = load(arguments[1]);
  if (runs.empty()) return 65;
  int wrong = 0;
  for (int r = 0; r < repetitions;
       ++r) {  // one after the other, so that no record gets all the quiet moments
    for (Run& run : runs) wrong += measure(run) ? 0 : 1;
  }
  std::printf("%zu records, the least of %d runs, CPU time; %d answers differ by more than 1e-9\n\n",
              runs.size(), repetitions, wrong);
  report(runs);
  if (count == 4 && report_commands(runs, arguments[3], repetitions) != 0) return 1;
  return wrong == 0 ? 0 : 1;
}

}  // namespace millrace

int main(int count, char** arguments) {
  return millrace::main_of(count, arguments);
}
