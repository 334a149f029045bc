#include "experiments/io/job_stalls/job_stalls.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>

#include "driver/hosts/program_paths.h"
#include "experiments/io/stalls/stall_files.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// Runs `millrace` with `words`; its output goes to the file `log`. Returns its exit code, -1 if it was
/// ended because it ran too long.
int run_millrace(const std::vector<std::string>& words, const std::string& log,
                 std::chrono::milliseconds timeout) {
  std::vector<std::string> all{program_beside("millrace")};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) throw DataError(std::string("no process can be started: ") + std::strerror(errno));
  // The progress has a thread, so the child may only start the other program.
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);
    const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file >= 0) ::dup2(file, STDOUT_FILENO), ::dup2(file, STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  const auto until = std::chrono::steady_clock::now() + timeout;
  bool told = false;
  for (int status = 0;;) {
    if (::waitpid(child, &status, WNOHANG) == child)
      return told ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    const auto over = std::chrono::steady_clock::now() - until;
    if (over > std::chrono::seconds(10)) ::kill(child, SIGKILL);
    if (over > std::chrono::seconds(0) && !std::exchange(told, true)) ::kill(child, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

/// Prints the last lines of a run's output to stderr.
void print_end_of(const fs::path& log) {
  constexpr std::size_t kLines = 12;
  const Result<std::string> text = read_file(log, kGiB);
  if (!text) return;
  std::vector<std::string> lines = split(*text, '\n');
  std::erase(lines, "");
  for (std::size_t i = lines.size() - std::min(lines.size(), kLines); i < lines.size(); ++i)
    std::fprintf(stderr, "    | %s\n", lines[i].c_str());
}

struct RunSteps {
  double step_s = 0;               ///< mean of the slowest rank, the first step aside
  std::map<int, double> data_s{};  ///< by rank: mean
};

RunSteps read_steps(const fs::path& folder) {
  RunSteps run;
  for (int rank = 0;; ++rank) {
    const fs::path file = folder / ("steps.rank" + std::to_string(rank) + ".jsonl");
    if (!fs::exists(file)) break;
    const Result<std::string> text = read_file(file, kGiB);
    if (!text) throw DataError(to_string(text.problems()));
    double sum = 0, data = 0;
    int steps = 0;
    for (const std::string& line : split(*text, '\n')) {
      const Result<Json> json = parse_json(line, file.string());
      const Json* seconds = json && json->is_object() ? json->find("step_s") : nullptr;
      if (!seconds || steps++ == 0) continue;
      sum += seconds->as_double();
      if (const Json* waited = json->find("data_s")) data += waited->as_double();
    }
    if (steps < 2) throw DataError(file.string() + ": has fewer than two steps", "give --steps 2 or more");
    run.step_s = std::max(run.step_s, sum / (steps - 1));
    run.data_s[rank] = data / (steps - 1);
  }
  if (run.data_s.empty()) throw DataError(folder.string() + ": has no logs of steps");
  return run;
}

/// Drops the files from the kernel's cache: only clean pages go, and no rights are needed.
void drop_from_cache(const std::vector<std::string>& files) {
  for (const std::string& path : files) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;  // the run says what is wrong with it
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

}  // namespace

JobStalls analyze_job(const JobStallOptions& options,
                      const std::function<void(std::int64_t done, std::int64_t total)>& tell) {
  std::int64_t done = 0;
  // A repeat has three runs; before them one brings the files into memory.
  const std::int64_t total = 1 + 3LL * options.repeats;
  const auto run = [&](const std::string& phase, const std::vector<std::string>& more) {
    const fs::path folder = fs::path(options.out) / phase, log = fs::path(options.out) / (phase + ".log");
    std::vector<std::string> words{"emulate",      options.job, "--device-profile", options.device_profile,
                                   "--clock",      "wall",      "--overwrite",      "--output-dir",
                                   folder.string()};
    if (!options.cluster.empty()) words.insert(words.end(), {"--cluster", options.cluster});
    for (const std::string& set : options.sets) words.insert(words.end(), {"--set", set});
    if (options.steps > 0) words.insert(words.end(), {"--set", "steps=" + std::to_string(options.steps)});
    words.insert(words.end(), more.begin(), more.end());
    const int code = run_millrace(words, log.string(), options.timeout);
    if (code != 0) {
      print_end_of(log);
      throw DataError(
          "the run of phase " + phase +
              (code < 0 ? " took longer than --timeout" : " ended with code " + std::to_string(code)),
          "all of its output is in " + log.string());
    }
    tell(++done, total);
    return read_steps(folder);
  };
  JobStalls stalls;
  for (const std::string& file : options.files) {
    std::error_code error;
    const auto size = fs::file_size(file, error);
    if (!error) stalls.file_bytes += static_cast<Bytes>(size);
  }
  std::vector<std::string> of_storage;
  if (!options.storage.is_real)
    for (const auto& [key, value] : {std::pair<const char*, std::string>{"storage", options.storage.name},
                                     {"storage-cache", options.cache},
                                     {"storage-policy", options.policy}})
      of_storage.insert(of_storage.end(), {"--set", std::string(key) + "=" + value});
  run("cached", {});
  std::map<int, RankData> ranks;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    const RunSteps ingestion = run("ingestion", {"--set", "data=synthetic"});
    const RunSteps cached = run("cached", {});
    if (options.storage.is_real) drop_from_cache(options.files);
    const RunSteps cold = run("cold", of_storage);
    stalls.steps.push_back(split_epoch(ingestion.step_s, cached.step_s, cold.step_s));
    for (const auto& [rank, seconds] : cached.data_s) {
      RankData& data = ranks[rank];
      data.rank = rank;
      data.cached_s += seconds / options.repeats;
      data.cold_s += cold.data_s.at(rank) / options.repeats;
    }
  }
  for (const auto& [rank, data] : ranks) stalls.ranks.push_back(data);
  stalls.step_s = estimate_over(stalls.steps, [](const EpochSplit& s) { return s.total(); });
  stalls.compute_s = estimate_over(stalls.steps, [](const EpochSplit& s) { return s.compute_s; });
  stalls.preparation_s = estimate_over(stalls.steps, [](const EpochSplit& s) { return s.preparation_s; });
  stalls.fetch_s = estimate_over(stalls.steps, [](const EpochSplit& s) { return s.fetch_s; });
  if (const Result<Json> summary = read_json((fs::path(options.out) / "cold" / "summary.json").string());
      summary) {
    if (const Json* steps = summary->find("steps_per_epoch"); steps && steps->is_number())
      stalls.steps_per_epoch = static_cast<std::int64_t>(steps->as_double());
    const Json* data = summary->find("data_files");
    const Json* storage = data && data->is_object() ? data->find("storage") : nullptr;
    if (const Json* hits = storage ? storage->find("hit_ratio") : nullptr)
      stalls.hit_ratio = hits->as_double();
  }
  return stalls;
}

Json job_stalls_json(const JobStalls& stalls) {
  Json ranks = Json::array(), steps = Json::array();
  for (const RankData& one : stalls.ranks)
    ranks.push_back(Json::object(
        {{"rank", one.rank}, {"data_wait_cached_s", one.cached_s}, {"data_wait_cold_s", one.cold_s}}));
  for (const EpochSplit& one : stalls.steps)
    steps.push_back(Json::object({{"step_s", one.total()},
                                  {"compute_s", one.compute_s},
                                  {"preparation_stall_s", one.preparation_s},
                                  {"fetch_stall_s", one.fetch_s}}));
  const auto of_epoch = [&](const Estimate& step) {
    return step.mean * static_cast<double>(stalls.steps_per_epoch);
  };
  Json made = Json::object({{"format", kJobStallsFormat},
                            {"step_s", to_json(stalls.step_s)},
                            {"compute_s", to_json(stalls.compute_s)},
                            {"preparation_stall_s", to_json(stalls.preparation_s)},
                            {"fetch_stall_s", to_json(stalls.fetch_s)},
                            {"steps_per_epoch", stalls.steps_per_epoch},
                            {"epoch", Json::object({{"epoch_s", of_epoch(stalls.step_s)},
                                                    {"compute_s", of_epoch(stalls.compute_s)},
                                                    {"preparation_stall_s", of_epoch(stalls.preparation_s)},
                                                    {"fetch_stall_s", of_epoch(stalls.fetch_s)}})},
                            {"file_bytes", stalls.file_bytes},
                            {"repeats", std::move(steps)},
                            {"ranks", std::move(ranks)}});
  if (stalls.hit_ratio >= 0) made["hit_ratio"] = stalls.hit_ratio;
  return made;
}

}  // namespace millrace
