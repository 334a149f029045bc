// `millrace fuse` and `millrace split`: checkpoints of jobs to one of a job array, and back.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <optional>

#include "driver/cli/command_support.h"
#include "driver/worker/worker_options.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/checkpoint/job_checkpoints.h"
#include "runtime/comm/communicator.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr std::chrono::minutes kDeadline{60};

/// "DIR", or "DIR@0,2" of an array.
struct Chosen {
  std::string path;
  std::vector<std::size_t> jobs;  ///< empty: all
};

Result<Chosen> chosen_from(const std::string& text) {
  const std::size_t at = text.rfind('@');
  std::error_code ignored;
  if (at == std::string::npos || fs::exists(text, ignored)) return Chosen{text, {}};
  Chosen chosen{text.substr(0, at), {}};
  const Result<std::vector<double>> jobs = numbers_from(text.substr(at + 1));
  if (!jobs || jobs->empty()) return Problem{text, "names no jobs after the @", "for example array@0,2"};
  for (double job : *jobs) {
    if (job < 0 || job != static_cast<double>(static_cast<std::size_t>(job)))
      return Problem{text, "jobs are whole numbers from 0", "for example array@0,2"};
    chosen.jobs.push_back(static_cast<std::size_t>(job));
  }
  return chosen;
}

/// The jobs of a checkpoint that are chosen.
Result<std::vector<JobSource>> sources_of(const Checkpoint& checkpoint, const Chosen& chosen) {
  const std::size_t count = jobs_in(checkpoint);
  std::vector<JobSource> sources;
  if (chosen.jobs.empty()) {
    for (std::size_t job = 0; job < count; ++job) sources.push_back({&checkpoint, job});
  }
  for (std::size_t job : chosen.jobs) {
    if (job >= count)
      return Problem{chosen.path, "has no job " + std::to_string(job) + ": it is of " + std::to_string(count),
                     "jobs count from 0"};
    sources.push_back({&checkpoint, job});
  }
  return sources;
}

/// "at step 9", "at steps 9, 3 and 0"
std::string steps_text(const CheckpointInfo& info) {
  if (at_one_step(info.jobs)) return "at step " + std::to_string(info.step);
  std::string text;
  for (std::size_t job = 0; job < info.jobs.size(); ++job)
    text += (job == 0                     ? ""
             : job + 1 < info.jobs.size() ? ", "
                                          : " and ") +
            std::to_string(info.jobs[job].step);
  return "at steps " + text;
}

/// A new run's folder with that checkpoint alone, of `jobs` and of `num_new` that have not begun.
Status save_in(const std::string& folder, const std::vector<JobSource>& jobs, bool overwrite,
               std::size_t num_new = 0) {
  if (overwrite) {
    if (Status removed = remove_earlier_run(folder); !removed) return removed;
  } else if (Status unused = check_unused(folder); !unused) {
    return unused;
  }
  std::optional<WorkingLine> working("writes the checkpoint");
  Result<JoinedCheckpoint> joined = join_jobs(jobs, num_new);
  if (!joined) return joined.problems();
  const CheckpointInfo& first = jobs.front().checkpoint->info;
  joined->info.run = new_run_id();
  joined->info.parent = first.run + " step " + std::to_string(first.step);
  if (Status made = make_writable_folder(folder); !made) return made;
  const auto alone = make_local_communicators(1, kDeadline);
  const auto problem = save_checkpoint(*alone.front(), (fs::path(folder) / run_files::kCheckpoints).string(),
                                       joined->info, 1, {{0, joined->tensors}}, {.deadline = kDeadline});
  if (problem) return Problem{folder, to_string(*problem), {}};
  working.reset();
  const std::size_t count = jobs.size() + num_new;
  std::printf("%s: %zu job%s %s\n", folder.c_str(), count, count == 1 ? "" : "s",
              steps_text(joined->info).c_str());
  return Ok{};
}

int parse(const CommandSpec& spec, const std::vector<std::string>& args, std::vector<std::string>& folders) {
  const Result<Arguments> parsed = parse_arguments(spec, args);
  if (!parsed) return report_problems(parsed.problems(), ExitCode::Usage);
  if (parsed->wants_help()) return print_help(spec, *parsed);
  if (!parsed->problems().empty()) return report_problems(parsed->problems(), ExitCode::Usage);
  folders = parsed->positionals();
  return -1;
}

}  // namespace

int fuse_command(const std::vector<std::string>& args) {
  return guarded([&]() -> int {
    JobFilesFlags flags;
    std::vector<std::string> folders;
    if (const int code = parse(fuse_spec(flags), args, folders); code >= 0) return code;
    std::deque<Checkpoint> checkpoints;  // what the jobs point into
    std::vector<JobSource> jobs;
    for (const std::string& folder : folders) {
      const Result<Chosen> chosen = chosen_from(folder);
      if (!chosen) return report_problems(chosen.problems(), ExitCode::Usage);
      Result<Checkpoint> opened = open_checkpoint(chosen->path);
      if (!opened) return report_problems(opened.problems(), ExitCode::Checkpoint);
      checkpoints.push_back(*std::move(opened));
      const auto sources = sources_of(checkpoints.back(), *chosen);
      if (!sources) return report_problems(sources.problems(), ExitCode::Usage);
      jobs.insert(jobs.end(), sources->begin(), sources->end());
    }
    const Status saved = save_in(flags.out, jobs, flags.overwrite, static_cast<std::size_t>(flags.new_jobs));
    return saved ? 0 : report_problems(saved.problems(), ExitCode::Checkpoint);
  });
}

int split_command(const std::vector<std::string>& args) {
  return guarded([&]() -> int {
    JobFilesFlags flags;
    std::vector<std::string> folders;
    if (const int code = parse(split_spec(flags), args, folders); code >= 0) return code;
    const Result<Checkpoint> opened = open_checkpoint(folders.front());
    if (!opened) return report_problems(opened.problems(), ExitCode::Checkpoint);
    const std::size_t count = jobs_in(*opened);
    if (count == 1) {
      return report_problems(
          {{folders.front(), "is a checkpoint of a single job", "there is nothing to split"}},
          ExitCode::Checkpoint);
    }
    const std::vector<JobProgress> progress = progress_of(*opened);
    for (std::size_t job = 0; job < count; ++job) {
      if (progress[job].is_new) {
        log_warning("job " + std::to_string(job) + " has not begun: there is nothing of it to write");
        continue;
      }
      const fs::path folder = fs::path(flags.out) / ("job" + std::to_string(job));
      if (const Status saved = save_in(folder.string(), {{&*opened, job}}, flags.overwrite); !saved)
        return report_problems(saved.problems(), ExitCode::Checkpoint);
    }
    return 0;
  });
}

}  // namespace millrace
