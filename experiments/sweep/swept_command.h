// The common half of `millrace sweep` and `millrace tune`: flags, checks, the folder, what is written and
// said. LibTorch-free.
#pragma once

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "driver/cli/command_support.h"
#include "experiments/sweep/journal.h"
#include "experiments/sweep/run_sweep.h"
#include "experiments/sweep/sweep_folder.h"
#include "runtime/base/files.h"
#include "runtime/base/run_files.h"

namespace millrace {

struct SweptFlags {
  std::optional<std::string> output_dir;
  bool overwrite = false, retry_failed = false, dry_run = false;
  OutputFormat format = OutputFormat::Text;
};

/// `what`: "sweep" or "search".
std::vector<Flag> swept_flags(SweptFlags& flags, const std::string& what, const char* dry_run_help,
                              const char* format_help);

/// Whether the file is a job of `launch`.
bool is_job_file(const std::string& path);

/// A command by its parts.
template <class Spec, class Results>
struct SweptCommand {
  const char* name;            ///< "sweep"
  const char* journal_format;  ///< kSweepFormat
  Result<Spec> (*load)(const std::string& path);
  std::vector<JobSpec> (*jobs_to_check)(const Spec&);  ///< one of each kind that will be run
  void (*print_dry_run)(const Spec&);
  Results (*run)(const Spec&, Journal&, Failed, int& stopped);
  Status (*write_tables)(const Spec&, const Results&);
  std::string (*report_html)(const Spec&, const Results&);
  Json (*to_json)(const Spec&, const Results&);
  void (*print)(const Spec&, const Results&);
  std::string (*failure)(const Results&);  ///< what did not come to a result; empty: all is well
  const char* file;                        ///< a short file of this command, for `job.yaml`
};

/// Returns the exit code.
template <class Spec, class Results>
int run_swept(const SweptCommand<Spec, Results>& command, const Spec& spec, const SweptFlags& flags) {
  const Result<RunLock> lock =
      take_folder(spec.output_dir, command.journal_format, spec.identity, flags.overwrite);
  if (!lock) return exit_with(ExitCode::Usage, lock.problems());
  Result<Journal> journal = Journal::open(spec.output_dir, command.journal_format, spec.identity);
  if (!journal) return exit_with(ExitCode::Usage, journal.problems());
  int stopped = 0;
  const Results results =
      command.run(spec, *journal, flags.retry_failed ? Failed::Retry : Failed::Keep, stopped);
  if (const Status written = command.write_tables(spec, results); !written)
    return exit_with(ExitCode::RunFailed, written.problems());
  const std::filesystem::path report = std::filesystem::path(spec.output_dir) / run_files::kReport;
  if (const Status written = write_file_atomically(report, command.report_html(spec, results)); !written)
    return exit_with(ExitCode::RunFailed, written.problems());
  if (stopped != 0) {
    std::fprintf(stderr, "millrace %s: stopped; the same command goes on from here\n", command.name);
    return static_cast<int>(ExitCode::Requeue);
  }
  if (flags.format == OutputFormat::Json)
    std::printf("%s\n", command.to_json(spec, results).dump(1).c_str());
  else
    command.print(spec, results);
  std::fprintf(stderr, "report: %s\n", report.c_str());
  const std::string failure = command.failure(results);
  if (failure.empty()) return 0;
  std::fprintf(stderr, "millrace %s: %s\n", command.name, failure.c_str());
  return static_cast<int>(ExitCode::RunFailed);
}

/// Runs the command from its command line on. `line` describes the line, with `flags` for its targets.
template <class Spec, class Results>
int swept_command(const SweptCommand<Spec, Results>& command, const CommandSpec& line,
                  const SweptFlags& flags, const std::vector<std::string>& args) {
  return run_command(line, args, [&](const Arguments& given, Problems problems) {
    const std::string& file = given.positionals().front();
    Result<Spec> spec = command.load(file);
    if (!spec && is_job_file(file))
      return exit_with(
          ExitCode::Usage,
          {{file, std::string("is a job, and `millrace ") + command.name + "` takes a file about one",
            std::string("for example ") + command.file}});
    if (!spec) append(problems, spec.problems());
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    if (flags.output_dir) spec->output_dir = *flags.output_dir;
    try {
      if (const Problems found = problems_before_start(command.jobs_to_check(*spec), spec->output_dir);
          !found.empty())
        return exit_with(ExitCode::Usage, found);
      if (flags.dry_run) return command.print_dry_run(*spec), 0;
      return run_swept(command, *spec, flags);
    } catch (const Error& error) {
      return exit_with(error.code(), {{std::string("millrace ") + command.name, error.what(), error.hint()}});
    }
  });
}

}  // namespace millrace
