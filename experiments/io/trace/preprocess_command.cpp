#include "experiments/io/trace/preprocess_command.h"

#include <chrono>
#include <cstdio>

#include "driver/cli/command_support.h"
#include "experiments/io/trace/preprocess.h"
#include "runtime/base/clock.h"
#include "runtime/base/progress_line.h"

namespace millrace {
namespace {

void print_dropped(const Dropped& dropped) {
  for (const auto& [why, count] : dropped)
    std::printf("    %lld %s\n", static_cast<long long>(count), why.c_str());
}

void print_report(const PreprocessReport& report, double seconds) {
  std::int64_t rows = 0;
  for (std::size_t k = 0; k < report.traces.size() && !report.zone.empty(); ++k) {
    const TraceCounts& counts = report.traces[k];
    rows += counts.rows;
    std::printf("trace_%s.out: %lld rows, %lld kept\n", kTraceNames[k], static_cast<long long>(counts.rows),
                static_cast<long long>(counts.kept));
    print_dropped(counts.dropped);
  }
  for (const auto& [name, dropped] : report.dropped) {
    std::printf("%s, left out:\n", name.c_str());
    print_dropped(dropped);
  }
  if (!report.zone.empty()) {
    std::printf("timeline: %lld events of %zu workers and %zu loaders\n",
                static_cast<long long>(report.events), report.processes.parents.size(),
                report.processes.loaders.size());
    print_dropped(report.events_dropped);
    for (const auto& [pid, why] : report.processes.foreign)
      std::printf("    process %u %s\n", pid, why.c_str());
    std::printf("clock of the traced machine: %s, aligned to %.3f ms\n", report.zone.c_str(),
                static_cast<double>(report.reference.gap_ns) / 2e6);
    std::printf("%lld rows in %.2f s (%.2f M rows/s)\n", static_cast<long long>(rows), seconds,
                static_cast<double>(rows) / seconds / 1e6);
  }
  std::printf("written to %s\n", report.folder.c_str());
}

struct PreprocessFlags {
  PreprocessOptions options;
  OutputFormat format = OutputFormat::Text;
};

CommandSpec spec_of(PreprocessFlags& f) {
  PreprocessOptions& o = f.options;
  CommandSpec spec;
  spec.command = "trace preprocess";
  spec.summary = "The I/O kit's raw runs to its CSVs: aligned traces, timelines, GPU, CPU and disk samples.";
  spec.positionals = {"DIR"};
  spec.flags = {
      {.name = "workload",
       .short_name = 'w',
       .value = "unet3d|bert|dlrm|dlio|any",
       .help = "What was traced; any: a command that `trace capture` ran.",
       .required = true,
       .target = into::choice(o.workload, "workload")},
      flag("", "out", "OUT", "Results go to OUT/<name of DIR> (default: DIR/processed).", into::text(o.out),
           'o'),
      flag("", "kit-timezone", "ZONE",
           "Clock of the traced machine: a name of the tz database, an offset (-05:00) or UTC. Default: "
           "America/Montreal if the program's log, which is in UTC, agrees; else the offset with which it "
           "agrees.",
           into::parsed(o.zone, time_zone_from)),
      flag("", "app-log", "FILE",
           "The program's own log (default: unet3d.log, app.log or bert.log, dlrm_tera.log, dlio.log in DIR "
           "or below).",
           into::text(o.app_log)),
      flag("", "app-log-only", "Only the log: its events as JSON, and the phases (the kit's -ml).",
           into::on(o.app_log_only)),
      flag("", "ignore-pids", "LIST", "Processes that are not the run's, comma-separated.",
           into::integers(o.ignore_pids, 0, UINT32_MAX)),
      flag("", "threads", "N", "Threads that parse.", into::integer(o.threads, 1, 256)),
      flag("", "format", "text|json", "What to print: counts, what was left out and why.",
           into::choice(f.format, "format")),
  };
  spec.interrupted = "files that are finished stay";
  spec.examples = {
      "millrace trace preprocess runs/unet3d_8g4b --workload unet3d --out processed",
      "millrace trace preprocess runs/dlrm --workload dlrm --kit-timezone Europe/Zurich --format json"};
  return spec;
}

int run(PreprocessFlags& flags) {
  PreprocessOptions& options = flags.options;
  SteadyClock clock;
  ProgressLine line(clock, "preprocess");
  options.progress = [&](std::int64_t done, std::int64_t total) { line.show(done, total, "bytes"); };
  const auto start = std::chrono::steady_clock::now();
  const Result<PreprocessReport> report = preprocess(options);
  line.clear();
  if (!report) return exit_with(ExitCode::InputData, report.problems());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const std::string& note : report->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  if (flags.format == OutputFormat::Json) {
    Json json = report->json();
    json["seconds"] = seconds;
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    print_report(*report, seconds);
  }
  return 0;
}

}  // namespace

CommandSpec preprocess_spec() {
  return without_targets<PreprocessFlags>(spec_of);
}

int preprocess_command(const std::vector<std::string>& args) {
  PreprocessFlags flags;
  return run_command(spec_of(flags), args, [&](const Arguments& given, const Problems& problems) {
    flags.options.folder = given.positionals()[0];
    return problems.empty() ? run(flags) : exit_with(ExitCode::Usage, problems);
  });
}

}  // namespace millrace
