#include "experiments/report/report_command.h"

#include <cstdio>
#include <filesystem>

#include "driver/cli/command_support.h"
#include "experiments/report/error_split.h"
#include "experiments/report/report.h"
#include "runtime/base/files.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/run_files.h"

namespace millrace {
namespace {

struct ReportFlags {
  std::string run;
  std::optional<std::string> out, chrome_trace;
  OutputFormat format = OutputFormat::Text;
};

CommandSpec spec_of(ReportFlags& f) {
  CommandSpec spec;
  spec.command = "report";
  spec.summary = "Draw a run as one HTML file: plan, predicted and measured times, schedules, curves.";
  spec.flags = {
      {.name = "run",
       .short_name = 'r',
       .value = "DIR",
       .help = "Output folder of `millrace train` or `millrace launch`.",
       .required = true,
       .target = into::text(f.run)},
      flag("", "out", "FILE", "Where to write the page (default: DIR/report.html).", into::text(f.out), 'o'),
      flag("", "format", "text|json", "What to print: the page's place and the step times.",
           into::choice(f.format, "format")),
      {.name = "chrome-trace",
       .value = "FILE",
       .help = "Also write the traced steps of all ranks for chrome://tracing or Perfetto.",
       .target = into::text(f.chrome_trace)},
  };
  spec.interrupted = "nothing was written";
  spec.examples = {"millrace report --run out", "millrace report --run out --chrome-trace trace.json",
                   "millrace report --run out --out page.html --format json"};
  return spec;
}

int write_report(const ReportFlags& flags) {
  std::optional<WorkingLine> working("reads the run");
  const Result<RunData> run = read_run(flags.run);
  if (!run) return exit_with(ExitCode::InputData, run.problems());
  working.emplace("draws the run");
  const std::string out =
      flags.out.value_or((std::filesystem::path(flags.run) / run_files::kReport).string());
  if (const Status written = write_file_atomically(out, report_html(*run)); !written)
    return exit_with(ExitCode::Usage, written.problems());
  if (flags.chrome_trace) {
    std::vector<std::vector<Span>> spans;
    for (const auto& rank : run->ranks) spans.push_back(rank.spans);
    const Status written = write_file_atomically(*flags.chrome_trace, to_chrome_trace(spans));
    if (!written) return exit_with(ExitCode::Usage, written.problems());
  }
  const Comparison comparison = compare(*run);
  const Result<ErrorSplit> split = split_error(*run);
  working.reset();
  if (flags.format == OutputFormat::Json) {
    Json notes = Json::array();
    for (const std::string& note : run->notes) notes.push_back(note);
    Json json = Json::object({{"report", out},
                              {"end", to_string(run->end.state)},
                              {"cause", run->end.cause},
                              {"predicted_step_s", comparison.predicted_step_s},
                              {"measured_step_s", comparison.measured_step_s},
                              {"notes", notes}});
    if (split) {
      json["error"] = Json::object({{"predicted_s", split->predicted_s},
                                    {"simulated_s", split->simulated_s},
                                    {"replayed_s", split->replayed_s},
                                    {"traced_s", split->traced_s},
                                    {"measured_s", split->measured_s},
                                    {"steps", split->steps},
                                    {"of_times", split->of_times()},
                                    {"of_jitter", split->of_jitter()},
                                    {"of_model", split->of_model()},
                                    {"of_steps", split->of_steps()}});
    }
    std::printf("%s\n", json.dump(2).c_str());
    return 0;
  }
  std::printf("%s\n", out.c_str());
  if (const std::string end = end_text(*run); !end.empty()) std::printf("%s\n", end.c_str());
  if (split) std::printf("%s\n", error_split_text(*split).c_str());
  for (const std::string& note : run->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  return 0;
}

}  // namespace

CommandSpec report_spec() {
  return without_targets<ReportFlags>(spec_of);
}

int report_command(const std::vector<std::string>& args) {
  ReportFlags flags;
  return run_command(spec_of(flags), args, [&](const Arguments&, const Problems& problems) {
    return problems.empty() ? write_report(flags) : exit_with(ExitCode::Usage, problems);
  });
}

}  // namespace millrace
