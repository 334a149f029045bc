#include "driver/launch/emulate_command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "driver/cli/command_support.h"
#include "driver/flags/train_flags.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/console.h"
#include "driver/launch/launch_command.h"
#include "runtime/base/error.h"
#include "runtime/base/option_names.h"
#include "runtime/device/compute_device.h"

namespace millrace {
namespace {

struct EmulateFlags {
  std::vector<std::string> profiles;  ///< of all jobs, or one of each
  std::string cluster;                ///< empty: messages take no time
  EmulatedClock clock = EmulatedClock::Virtual;
  EmulatedPayload payload = EmulatedPayload::None;
  int devices = 0;         ///< that the ranks of a job share; 0: each rank has its own
  std::string share;       ///< empty: no other process uses the devices
  std::string jitter;      ///< empty: times do not vary
  std::string stragglers;  ///< empty: none
  std::vector<std::string> sets;
  std::string output_dir;
  bool overwrite = false;
};

CommandSpec spec_of(EmulateFlags& f) {
  CommandSpec spec;
  spec.command = "emulate";
  spec.summary =
      "Run a job on devices that are not there: layers take the times of a profile, messages those of a "
      "cluster file. Nothing is computed, so there are no losses. Several jobs run in one virtual time and "
      "share "
      "the devices: rank r of each uses device r.";
  spec.positionals = {"JOB.yaml..."};
  spec.flags = {
      {.name = "device-profile",
       .value = "FILE",
       .help = "The profile whose times the layers take: of `millrace profile`, measured on the device. With "
               "several "
               "jobs, one for all or one for each.",
       .required = true,
       .repeatable = true,
       .target = into::texts(f.profiles)},
      flag("", "cluster", "FILE",
           "cluster.yaml: links of the devices, their memory and speed (default: messages take no time).",
           into::text(f.cluster)),
      flag("", "clock", "NAME",
           "virtual: time jumps from event to event, and reading data takes none. wall: a step takes as long "
           "as on the devices, and data is read beside it.",
           into::choice(f.clock, "clock")),
      flag("", "payload", "NAME",
           "With --clock wall, what messages carry. none: a time stamp. bytes: as many bytes as the real "
           "ones.",
           into::choice(f.payload, "payload")),
      flag("", "emulated-devices", "N",
           "The ranks of a job share N devices: rank r uses device r modulo N. With --clock wall it needs "
           "--share-devices. 0: each rank has a device of its own.",
           into::integer(f.devices, 0, 1 << 20)),
      flag("", "share-devices", "DIR",
           "With --clock wall: jobs that name the same folder use the same devices, by rank. A device works "
           "3 ms for each of them in turn.",
           into::text(f.share)),
      flag(
          "", "jitter", "none|profile|SIGMA",
          "Times of work are drawn. profile: they vary as much as the passes of the profile did. SIGMA: by a "
          "log-normal factor of mean 1 (default: none).",
          into::text(f.jitter)),
      flag("", "straggler", "profile|RANK:FACTOR,...",
           "The work of this rank takes FACTOR times as long. profile: ranks differ as they did in the "
           "profile, which was measured with as many.",
           into::text(f.stragglers)),
      {.name = "set",
       .value = "KEY=VALUE",
       .help = "Set a key of the job file.",
       .repeatable = true,
       .target = into::texts(f.sets)},
      flag("", "output-dir", "DIR", "Logs and results go here (default: the job's folder with -emulated).",
           into::text(f.output_dir), 'o'),
      flag("", "overwrite",
           "Delete an earlier run in the output folder; without it a folder that holds one is refused.",
           into::on(f.overwrite))};
  spec.examples = {"millrace emulate job.yaml --device-profile profile.json --cluster cluster.yaml",
                   "millrace emulate job.yaml --device-profile profile.json --clock wall",
                   "millrace emulate a.yaml b.yaml --device-profile a.json --device-profile b.json"};
  return spec;
}

/// Takes out of the job what asks for values, and where its ranks run. Says what it leaves out.
void keep_what_is_emulated(JobSpec& job) {
  const std::vector<Flag> flags = train_spec().flags;
  const auto asks_for_values = [&](const auto& setting) {
    return std::ranges::any_of(flags, [&](const Flag& flag) {
      return flag.emulated == Emulated::LeftOut && setting.first == flag.name;
    });
  };
  for (const auto& setting : job.train)
    if (asks_for_values(setting))
      std::fprintf(stderr, "note: %s: %s is left out: emulated devices compute no values\n",
                   job.source.c_str(), setting.first.c_str());
  std::erase_if(job.train, asks_for_values);
  if (!job.hosts.on.empty() || !job.hosts.list.empty())
    std::fprintf(stderr, "note: %s: its hosts are left out: all ranks run here\n", job.source.c_str());
  job.hosts = {};
  job.restarts = {};
}

/// Returns `text`, with a number behind it if it is in `taken` already. Adds it there.
std::string unlike_others(const std::string& text, std::map<std::string, int>& taken) {
  const int before = taken[text]++;
  return before == 0 ? text : text + "-" + std::to_string(before + 1);
}

/// Becomes the worker: all ranks of all jobs are threads of it.
int become_worker(const std::vector<JobSpec>& jobs, const std::string& worker) {
  ::setenv("OMP_NUM_THREADS", "1", 0);
  std::vector<std::string> words{worker};
  std::map<std::string, int> names;
  for (const JobSpec& job : jobs) {
    for (const auto& [name, value] : job.environment) ::setenv(name.c_str(), value.c_str(), 1);
    const std::vector<std::string> own = train_arguments(job);
    if (words.size() == 1) words.push_back(own.front());  // the command
    if (jobs.size() > 1) words.insert(words.end(), {kBeside, unlike_others(job.name, names)});
    words.insert(words.end(), own.begin() + 1, own.end());
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  ::execv(worker.c_str(), argv.data());
  std::fprintf(stderr, "millrace emulate: cannot start %s: %s. Hint: %s\n", worker.c_str(),
               std::strerror(errno), worker_hint(ComputeDevice::Emulated).c_str());
  return static_cast<int>(ExitCode::Usage);
}

/// Returns the job of `file` as it is emulated. `profile`: the one that it takes.
Result<JobSpec> emulated_job(const EmulateFlags& flags, const std::string& file, const std::string& profile,
                             std::vector<JobOverride> overrides) {
  const auto set = [&](const char* key, std::string value) {
    overrides.push_back({key, std::move(value), long_name(key)});
  };
  set("device", to_string(ComputeDevice::Emulated));
  set("device-profile", profile);
  set("clock", to_string(flags.clock));
  set("payload", to_string(flags.payload));
  if (flags.devices > 0) set("emulated-devices", std::to_string(flags.devices));
  if (!flags.share.empty()) set("share-devices", flags.share);
  if (!flags.jitter.empty()) set("jitter", flags.jitter);
  if (!flags.stragglers.empty()) set("straggler", flags.stragglers);
  if (!flags.cluster.empty()) set("emulate-links", flags.cluster);
  if (flags.overwrite) set("overwrite", "true");
  Result<JobSpec> job = load_job(file, overrides);
  if (!job) return job;
  for (const std::string& note : job->notes)
    std::fprintf(stderr, "note: %s: %s\n", job->source.c_str(), note.c_str());
  keep_what_is_emulated(*job);
  return job;
}

void put_into(JobSpec& job, const std::string& folder) {
  job.output_dir = folder;
  const auto found = std::ranges::find(job.train, "output-dir", [](const auto& s) { return s.first; });
  if (found != job.train.end())
    found->second = folder;
  else
    job.train.emplace_back("output-dir", folder);
}

/// Gives each job a folder of its own.
void choose_folders(const EmulateFlags& flags, std::vector<JobSpec>& jobs) {
  std::map<std::string, int> taken;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::string folder = flags.output_dir.empty()
                                   ? jobs[i].output_dir + "-emulated"
                                   : flags.output_dir + (jobs.size() > 1 ? "/job" + std::to_string(i) : "");
    put_into(jobs[i], unlike_others(folder, taken));
  }
}

int emulate(const EmulateFlags& flags, const std::vector<std::string>& files, Problems problems) {
  std::vector<JobOverride> overrides;
  for (const std::string& text : flags.sets) {
    if (const Result<JobOverride> one = parse_override(text))
      overrides.push_back(*one);
    else
      append(problems, one.problems());
  }
  if (flags.profiles.size() > 1 && flags.profiles.size() != files.size())
    problems.push_back(
        {"--device-profile",
         std::to_string(flags.profiles.size()) + " profiles for " + std::to_string(files.size()) + " jobs",
         "give one for all jobs, or one for each in their order"});
  if (files.size() > 1 && flags.clock == EmulatedClock::Wall)
    problems.push_back({"--clock wall", "several jobs have one virtual time",
                        "start each by itself, with --clock wall --share-devices DIR"});
  if (files.size() > 1 && !flags.share.empty())
    problems.push_back({"--share-devices", "jobs of one command share their devices anyway", "leave it out"});
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  std::vector<JobSpec> jobs;
  for (std::size_t i = 0; i < files.size(); ++i) {
    Result<JobSpec> job =
        emulated_job(flags, files[i], flags.profiles[flags.profiles.size() > 1 ? i : 0], overrides);
    if (!job)
      append(problems, job.problems());
    else
      jobs.push_back(*std::move(job));
  }
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  choose_folders(flags, jobs);
  const std::string worker = worker_of(jobs.front());
  for (const JobSpec& job : jobs) append(problems, check_job(job, worker));
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  if (flags.clock == EmulatedClock::Virtual) return become_worker(jobs, worker);
  const Result<JobEnd> end = run_job(jobs.front(), worker, "");
  if (!end) return exit_with(ExitCode::Usage, end.problems());
  print_without_waiting(STDERR_FILENO, end->message);
  return end->outcome.exit_code();
}

}  // namespace

CommandSpec emulate_spec() {
  return without_targets<EmulateFlags>(spec_of);
}

int emulate_command(const std::vector<std::string>& args) {
  EmulateFlags flags;
  return run_command(spec_of(flags), args, [&](const Arguments& given, Problems problems) {
    return emulate(flags, given.positionals(), std::move(problems));
  });
}

}  // namespace millrace
