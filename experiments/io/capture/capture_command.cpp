#include "experiments/io/capture/capture_command.h"

#include <algorithm>
#include <cstdio>

#include "driver/cli/command_support.h"
#include "experiments/io/capture/capture.h"

namespace millrace {
namespace {

CommandSpec spec_of(CaptureOptions& options) {
  CommandSpec spec;
  spec.command = "trace capture";
  spec.summary =
      "Traces a command and all that it starts: reads, writes, opens, closes, with CPU, disks, GPUs and "
      "memory "
      "sampled once a second. The exit code is the command's.";
  spec.positionals = {"-- COMMAND..."};
  spec.flags = {
      flag("", "out", "DIR", "Folder for the trace, in the I/O kit's raw layouts.",
           into::text(options.folder), 'o'),
      flag("", "method", "auto|ptrace|bpftrace",
           "ptrace needs no root. bpftrace needs root, costs less for each call, and sees the disk's "
           "requests. auto: "
           "bpftrace where it works.",
           into::choice(options.method, "method")),
  };
  spec.examples = {"millrace trace capture --out run -- python3 train.py --epochs 1",
                   "millrace trace preprocess run --workload any --out processed",
                   "millrace trace plot processed/run --layout all_combined --formats png,html"};
  return spec;
}

void print(const CaptureReport& report, const CaptureOptions& options) {
  std::fprintf(stderr, "%.1f s under %s, %lld processes, exit code %d\n", report.seconds,
               report.method.c_str(), static_cast<long long>(report.processes), report.exit_code);
  if (!report.why_not_bpftrace.empty())
    std::fprintf(stderr, "not bpftrace: %s\n", report.why_not_bpftrace.c_str());
  for (const auto& [file, rows] : report.rows)
    std::fprintf(stderr, "%s: %lld rows\n", file.c_str(), static_cast<long long>(rows));
  std::fprintf(stderr, "%.1f MB read, %.1f MB written\n", static_cast<double>(report.bytes_read) / 1e6,
               static_cast<double>(report.bytes_written) / 1e6);
  for (const auto& [what, count] : report.left_out)
    std::fprintf(stderr, "left out: %lld %s\n", static_cast<long long>(count), what.c_str());
  for (const std::string& note : report.notes) std::fprintf(stderr, "%s\n", note.c_str());
  std::fprintf(stderr, "written to %s; next: millrace trace preprocess %s --workload any\n",
               options.folder.c_str(), options.folder.c_str());
}

}  // namespace

CommandSpec capture_spec() {
  return without_targets<CaptureOptions>([](CaptureOptions& options) {
    options.folder = "capture";
    return spec_of(options);
  });
}

int capture_command(const std::vector<std::string>& args) {
  CaptureOptions options;
  options.folder = "capture";
  const auto bar = std::find(args.begin(), args.end(), "--");
  if (bar != args.end()) options.command.assign(bar + 1, args.end());
  // The command's own flags are not ours to read: its first word stands for all of it.
  std::vector<std::string> ours(args.begin(), bar);
  if (!options.command.empty()) ours.push_back(options.command.front());
  return run_command(spec_of(options), ours, [&](const Arguments&, Problems problems) {
    if (options.command.empty())
      problems.push_back(
          {"trace capture", "no `--` stands before the command", "millrace trace capture -- COMMAND"});
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    const Result<CaptureReport> report = capture(options);
    if (!report) return exit_with(ExitCode::Usage, report.problems());
    print(*report, options);
    return report->exit_code;
  });
}

}  // namespace millrace
