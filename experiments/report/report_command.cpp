#include "experiments/report/report_command.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <thread>
#include <utility>

#include "driver/cli/command_support.h"
#include "driver/launch/run_state.h"
#include "experiments/report/error_split.h"
#include "experiments/report/page_server.h"
#include "experiments/report/report.h"
#include "experiments/report/run_diagnosis.h"
#include "experiments/report/run_evidence.h"
#include "experiments/report/served_runs.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/run_files.h"
#include "runtime/base/unfinished_file.h"

namespace millrace {
namespace {

constexpr std::chrono::minutes kPatience{10};  // for a run to begin

struct ReportFlags {
  std::string run, index;
  std::optional<std::string> out, chrome_trace;
  std::vector<std::string> against;
  bool follow = false, serve = false;
  std::uint16_t port = 8765;
  std::chrono::milliseconds every{5000};
  OutputFormat format = OutputFormat::Text;
};

CommandSpec spec_of(ReportFlags& f) {
  CommandSpec spec;
  spec.command = "report";
  spec.summary =
      "Draw a run as one HTML file: plan, predicted and measured times, schedules, a timeline that zooms, "
      "what "
      "held the run up, curves.";
  spec.flags = {
      {.name = "run",
       .short_name = 'r',
       .value = "DIR",
       .help =
           "Output folder of `millrace train` or `millrace launch`; --run may be left out. Required, unless "
           "--index.",
       .target = into::text(f.run)},
      flag("", "out", "FILE", "Where to write the page (default: DIR/report.html).", into::text(f.out), 'o'),
      flag("", "index", "DIR",
           "Instead: DIR/index.html with a line for each run in DIR and below, and the page of each that has "
           "none or an old one.",
           into::text(f.index)),
      flag("", "against", "DIRS",
           "Runs to show beside it, with commas or blanks between: settings that differ, times, phases with "
           "intervals, results, curves.",
           into::list(f.against)),
      flag("", "follow",
           "Write the page again and again until the run has ended. The page reloads itself in a browser.",
           into::on(f.follow)),
      flag("", "serve",
           "Instead: answer a browser at http://127.0.0.1:PORT/ until Ctrl-C, with the run or, by --index, "
           "with all runs of a folder. Nothing is written, and pages of runs that go on reload themselves.",
           into::on(f.serve)),
      flag("", "port", "PORT", "With --serve; 0: a free one.", into::integer(f.port, 0, 65535)),
      flag("", "every", "SECONDS", "With --follow or --serve: from one page to the next.",
           into::duration(f.every, 1, 3600)),
      flag("", "format", "text|json", "What to print: the page's place and the step times.",
           into::choice(f.format, "format")),
      {.name = "chrome-trace",
       .value = "FILE",
       .help = "Also write the traced steps of all ranks for chrome://tracing or Perfetto.",
       .target = into::text(f.chrome_trace)},
  };
  spec.interrupted = "nothing was written";
  spec.examples = {"millrace report --run out",
                   "millrace report --run out --against before,after",
                   "millrace report --run out --follow",
                   "millrace report --index runs",
                   "millrace report --index runs --serve",
                   "millrace report --run out --chrome-trace trace.json",
                   "millrace report --run out --out page.html --format json"};
  return spec;
}

std::string page_path(const ReportFlags& flags) {
  return flags.out.value_or((std::filesystem::path(flags.run) / run_files::kReport).string());
}

Result<PageOptions> page_options(const ReportFlags& flags) {
  PageOptions page;
  for (const std::string& folder : flags.against) {
    Result<RunData> other = read_run(folder);
    if (!other) return other.problems();
    page.against.push_back(*std::move(other));
  }
  return page;
}

/// Writes the page every few seconds while the run goes on. A run that has not written anything yet is waited
/// for.
int follow(const ReportFlags& flags) {
  const std::string out = page_path(flags);
  bool said = false;
  const auto began = std::chrono::steady_clock::now();
  for (;;) {
    const RunState state = read_run_state(flags.run);
    const bool goes_on = state.phase == RunPhase::None || state.phase == RunPhase::Running;
    const Result<RunData> run = read_run(flags.run);
    if (run) {
      Result<PageOptions> page = page_options(flags);
      if (!page) return exit_with(ExitCode::InputData, page.problems());
      page->reload_s = goes_on ? std::max(1, static_cast<int>(flags.every.count() / 1000)) : 0;
      if (const Status written = write_file_atomically(out, report_html(*run, *page)); !written)
        return exit_with(ExitCode::Usage, written.problems());
      if (goes_on && !std::exchange(said, true))
        std::fprintf(stderr, "%s is written again every %lld s\n", out.c_str(),
                     static_cast<long long>(flags.every.count() / 1000));
    } else if (!goes_on) {
      return exit_with(ExitCode::InputData, run.problems());
    }
    if (!goes_on) return 0;
    if (!run && std::chrono::steady_clock::now() - began > kPatience)
      return exit_with(ExitCode::InputData,
                       {{flags.run, "no run has begun there in ten minutes", "is it the folder of a run?"}});
    std::this_thread::sleep_for(flags.every);
  }
}

int write_report(const ReportFlags& flags) {
  std::optional<WorkingLine> working("reads the run");
  const Result<RunData> run = read_run(flags.run);
  if (!run) return exit_with(ExitCode::InputData, run.problems());
  const Result<PageOptions> page = page_options(flags);
  if (!page) return exit_with(ExitCode::InputData, page.problems());
  working.emplace("draws the run");
  const std::string out = page_path(flags);
  if (const Status written = write_file_atomically(out, report_html(*run, *page)); !written)
    return exit_with(ExitCode::Usage, written.problems());
  if (flags.chrome_trace) {
    std::vector<std::vector<Span>> spans;
    for (const auto& rank : run->ranks) spans.push_back(rank.spans);
    const Status written = write_file_atomically(*flags.chrome_trace, to_chrome_trace(spans));
    if (!written) return exit_with(ExitCode::Usage, written.problems());
  }
  const PlanComparison comparison = compare(*run);
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
    json["findings"] = Json::array();
    for (const std::string& line : diagnosis_lines(*run)) json["findings"].push_back(line);
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
  if (const std::string profile = profile_text(*run); comparison.predicted_step_s > 0 && !profile.empty())
    std::printf("%s\n", profile.c_str());
  for (const std::string& line : diagnosis_lines(*run)) std::printf("%s\n", line.c_str());
  for (const std::string& note : run->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  return 0;
}

/// Whether the page is older than what the ranks wrote last.
bool is_old(const std::filesystem::path& page, const std::filesystem::path& run) {
  std::error_code error;
  const auto written = std::filesystem::last_write_time(page, error);
  return error || last_written(run) > written;
}

int serve(const ReportFlags& flags) {
  if (const Result<PageOptions> page = page_options(flags); !page)
    return exit_with(ExitCode::InputData, page.problems());
  const std::string& folder = flags.index.empty() ? flags.run : flags.index;
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    return exit_with(ExitCode::Usage, {{folder, "is not a folder", "give the folder of a run, or of runs"}});
  ServedRuns runs({.run = flags.run,
                   .index = flags.index,
                   .against = flags.against,
                   .reload_s = static_cast<int>(flags.every.count() / 1000)});
  const auto listening = [&](std::uint16_t port) {
    std::printf("http://127.0.0.1:%u/ shows %s until Ctrl-C\n", static_cast<unsigned>(port), folder.c_str());
    std::printf("from another machine: ssh -L %u:127.0.0.1:%u HOST, and the same address there\n",
                static_cast<unsigned>(port), static_cast<unsigned>(port));
    std::fflush(stdout);
    tell_when_interrupted("millrace report: " + folder + " is no longer shown");
  };
  const Status served = serve_pages({.port = flags.port, .listening = listening},
                                    [&](const std::string& path) { return runs.page(path); });
  return exit_with(ExitCode::Usage, served.problems());
}

int write_index(const ReportFlags& flags) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(flags.index, ignored))
    return exit_with(ExitCode::Usage, {{flags.index, "is not a folder", "give a folder with runs"}});
  const fs::path out = flags.out.value_or((fs::path(flags.index) / "index.html").string());
  const std::vector<fs::path> folders = runs_below(flags.index);
  SteadyClock clock;
  ProgressLine line(clock, "report");
  std::vector<RunData> runs;
  std::vector<std::string> links;
  for (std::size_t i = 0; i < folders.size(); ++i) {
    line.show(static_cast<std::int64_t>(i), std::ssize(folders), "runs");
    Result<RunData> run = read_run(folders[i].string());
    if (!run) continue;  // it has begun and written nothing yet
    const fs::path page = folders[i] / run_files::kReport;
    if (is_old(page, folders[i])) {
      if (const Status written = write_file_atomically(page, report_html(*run)); !written)
        return exit_with(ExitCode::Usage, written.problems());
    }
    links.push_back(fs::proximate(page, fs::absolute(out).parent_path(), ignored).string());
    runs.push_back(*std::move(run));
  }
  line.clear();
  std::vector<const RunData*> pointers;
  for (const RunData& run : runs) pointers.push_back(&run);
  if (const Status written = write_file_atomically(out, index_html(flags.index, pointers, links)); !written)
    return exit_with(ExitCode::Usage, written.problems());
  std::printf("%s: %zu runs\n", out.c_str(), runs.size());
  return 0;
}

/// Adds a problem for each flag that the way of showing does not have.
void refuse_idle_flags(const ReportFlags& flags, const Arguments& given, Problems& problems) {
  const auto refuse = [&](const char* with, std::initializer_list<const char*> names, const char* hint) {
    for (const char* name : names)
      if (given.has(name))
        problems.push_back({long_name(name), std::string("does nothing with ") + with, hint});
  };
  if (flags.serve)
    refuse("--serve", {"out", "follow", "format", "chrome-trace"},
           "leave it out: a served page is always new");
  if (!flags.serve && given.has("port")) problems.push_back({"--port", "is of --serve", "give --serve too"});
  if (!flags.index.empty()) {
    refuse("--index", {"against", "chrome-trace"}, "give it with --run");
    if (!flags.serve) refuse("--index", {"follow", "format"}, "--index DIR --serve shows runs that go on");
  }
}

/// Takes `--against B C` for `--against B,C`, where the run itself is named too.
std::vector<std::string> with_listed_runs(std::vector<std::string> args) {
  const auto is_flag = [](const std::string& word) { return word.starts_with('-'); };
  const auto names_run = [](const std::string& word) {
    return word == "--run" || word == "-r" || word.starts_with("--run=");
  };
  const auto against = std::ranges::find(args, "--against");
  const bool is_named = std::ranges::any_of(args, names_run) || (!args.empty() && !is_flag(args[0]));
  if (!is_named || args.end() - against < 3) return args;
  for (auto more = against + 2; more != args.end() && !is_flag(*more); more = args.erase(more))
    against[1] += "," + *more;
  return args;
}

}  // namespace

CommandSpec report_spec() {
  return without_targets<ReportFlags>(spec_of);
}

int report_command(const std::vector<std::string>& args) {
  ReportFlags flags;
  return run_command(spec_of(flags), with_listed_runs(args), [&](const Arguments& given, Problems problems) {
    if (flags.run.empty() == flags.index.empty())
      problems.push_back({"--run", "or --index is required, and not both", "for example --run out"});
    refuse_idle_flags(flags, given, problems);
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    if (flags.serve) return serve(flags);
    if (!flags.index.empty()) return write_index(flags);
    const int followed = flags.follow ? follow(flags) : 0;
    return followed != 0 ? followed : write_report(flags);
  });
}

}  // namespace millrace
