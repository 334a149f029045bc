#include <cstdio>
#include <filesystem>

#include "data/files/data_kinds.h"
#include "data/files/storage_names.h"
#include "driver/cli/command_support.h"
#include "driver/launch/job_spec.h"
#include "experiments/io/job_stalls/job_stalls.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

struct JobFlags {
  JobStallOptions options{.storage = *storage_from("disk"), .out = "job-stalls"};
  double cache = 0.35;
  CachePolicy policy = CachePolicy::MinIo;
  OutputFormat format = OutputFormat::Text;
};

CommandSpec job_flags(JobFlags& f) {
  CommandSpec spec;
  spec.command = "stalls job";
  spec.summary =
      "Split the step of a training job, pipelines included, into computation, preparation stall and fetch "
      "stall. It runs on emulated devices in three phases: with made-up data, with its own data in the "
      "kernel's "
      "cache, and with the data read from storage.";
  spec.positionals = {"JOB.yaml"};
  spec.flags = {
      {.name = "device-profile",
       .value = "FILE",
       .help = "The profile whose times the layers take: of `millrace profile` or `device-profile`.",
       .required = true,
       .target = into::text(f.options.device_profile)},
      flag("", "cluster", "FILE",
           "cluster.yaml: links and memory of the devices (default: messages take no time).",
           into::text(f.options.cluster)),
      {.name = "set",
       .value = "KEY=VALUE",
       .help = "Set a key of the job file.",
       .repeatable = true,
       .target = into::texts(f.options.sets)},
      flag("", "storage", "NAME|LATENCY,BANDWIDTH[,DEPTH]",
           "Where the data of the third phase comes from. disk: this machine's, past the kernel's cache. "
           "Presets: " +
               storage_presets() + ".",
           into::parsed(f.options.storage, storage_from, "disk")),
      flag("", "cache", "F",
           "With another --storage than disk: size of the cache of each rank that reads, as a share of the "
           "data's bytes.",
           into::number(f.cache, 0, 1)),
      flag("", "policy", "none|random|lru|fifo|minio", "What that cache keeps.",
           into::choice(f.policy, "policy")),
      flag("", "steps", "N",
           "Steps of each run (default: the job's). More than an epoch read files that the run has cached.",
           into::integer(f.options.steps, 2, 1'000'000'000)),
      flag("", "repeats", "N", "Run each phase so often, in turn; more give narrower intervals.",
           into::integer(f.options.repeats, 1, 1000)),
      flag("", "timeout", "SECONDS", "Longest time of one run.", into::duration(f.options.timeout, 1, 1e6)),
      flag("", "out", "DIR", "Folder of job-stalls.json, and of the runs and their logs.",
           into::text(f.options.out), 'o'),
      flag("", "format", "text|json", "How to print the result.", into::choice(f.format, "format")),
  };
  spec.interrupted = "its runs are in the output folder, without a result";
  spec.examples = {"millrace stalls job job.yaml --device-profile v100.json --steps 50",
                   "millrace stalls job job.yaml --device-profile v100.json --storage hdd --cache 0.35"};
  return spec;
}

/// All files below the files and folders that the job's data names.
Result<std::vector<std::string>> files_of_data(const JobSpec& job) {
  const std::string* data = job.find("data");
  if (!data || rest_of(*data, kSyntheticData))
    return Problem{job.source, "its data is made up: no files are read", "name a data set: data: FOLDER"};
  const WorkingLine working("looks for the files of the data");
  std::vector<std::string> files;
  for (const std::string& path : paths_of_data(*data)) {
    if (fs::is_regular_file(path)) files.push_back(path);
    if (!fs::is_directory(path)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  return files;
}

void print_job(const JobFlags& flags, const JobStalls& stalls) {
  const auto line = [&](const char* name, const Estimate& part) {
    std::printf("  %-18s %22s ms  %5.1f %%\n", name,
                interval({part.mean * 1e3, part.half * 1e3}, "%.3f").c_str(),
                100 * part.mean / stalls.step_s.mean);
  };
  std::printf("A step: %s ms",
              interval({stalls.step_s.mean * 1e3, stalls.step_s.half * 1e3}, "%.3f").c_str());
  if (stalls.steps_per_epoch > 0)
    std::printf(", an epoch of %lld steps: %.3f s", static_cast<long long>(stalls.steps_per_epoch),
                stalls.step_s.mean * static_cast<double>(stalls.steps_per_epoch));
  std::printf("\n");
  line("computation", stalls.compute_s);
  line("preparation stall", stalls.preparation_s);
  line("fetch stall", stalls.fetch_s);
  if (stalls.hit_ratio >= 0)
    std::printf("\nStorage %s, %s cache of %.0f %% of the data: hit ratio %.1f %%\n",
                flags.options.storage.name.c_str(), to_string(flags.policy).c_str(), 100 * flags.cache,
                100 * stalls.hit_ratio);
  std::printf("\nWaits for batches, in a step:\n");
  std::vector<std::vector<std::string>> lines{{"RANK", "CACHED MS", "FROM STORAGE MS"}};
  for (const RankData& one : stalls.ranks)
    lines.push_back(
        {std::to_string(one.rank), printed("%.3f", one.cached_s * 1e3), printed("%.3f", one.cold_s * 1e3)});
  print_columns(lines);
}

int run_job_stalls(JobFlags& flags, const Arguments& given, Problems problems) {
  flags.options.job = given.positionals().front();
  flags.options.cache = shortest_text(flags.cache);
  flags.options.policy = to_string(flags.policy);
  std::vector<JobOverride> overrides;
  for (const std::string& text : flags.options.sets) {
    if (const Result<JobOverride> one = parse_override(text))
      overrides.push_back(*one);
    else
      append(problems, one.problems());
  }
  const Result<JobSpec> job = load_job(flags.options.job, overrides);
  if (!job) append(problems, job.problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  try {
    const Result<std::vector<std::string>> files = files_of_data(*job);
    if (!files) return exit_with(ExitCode::Usage, files.problems());
    flags.options.files = *files;
    if (const Status made = make_writable_folder(flags.options.out); !made)
      return exit_with(ExitCode::Usage, made.problems());
    SteadyClock clock;
    ProgressLine progress(clock, "stalls", 0, "first run");
    const JobStalls stalls = analyze_job(
        flags.options, [&](std::int64_t done, std::int64_t total) { progress.show(done, total, "runs"); });
    progress.clear();
    const std::string text = job_stalls_json(stalls).dump(1) + "\n";
    if (const Status written = write_file_atomically(fs::path(flags.options.out) / "job-stalls.json", text);
        !written)
      return exit_with(ExitCode::RunFailed, written.problems());
    if (flags.format == OutputFormat::Json)
      std::printf("%s", text.c_str());
    else
      print_job(flags, stalls);
    return 0;
  } catch (const Error& error) {
    return exit_with(error.code(), {{"millrace stalls job", error.what(), error.hint()}});
  } catch (const fs::filesystem_error& error) {
    return exit_with(ExitCode::InputData, {{error.path1().string(), error.code().message(), ""}});
  }
}

}  // namespace

CommandSpec job_stalls_spec() {
  return without_targets<JobFlags>(job_flags);
}

int job_stalls_command(const std::vector<std::string>& args) {
  JobFlags flags;
  return run_command(job_flags(flags), args, [&](const Arguments& given, Problems problems) {
    return run_job_stalls(flags, given, std::move(problems));
  });
}

}  // namespace millrace
