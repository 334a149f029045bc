#include "experiments/report/served_runs.h"

#include <algorithm>
#include <utility>

#include "experiments/drawing/html_page.h"
#include "experiments/report/report.h"
#include "experiments/report/run_evidence.h"
#include "runtime/base/run_files.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace fs = std::filesystem;

fs::file_time_type last_written(const fs::path& run) {
  fs::file_time_type newest = fs::file_time_type::min();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run, error)) {
    const fs::path name = entry.path().filename();
    if (run_files::kRounds.rank_of(name.string())) {
      newest = std::max(newest, last_written(entry.path()));
    } else if (name == run_files::kSummary || name.extension() == ".jsonl") {
      const auto written = entry.last_write_time(error);
      if (!error) newest = std::max(newest, written);
    }
  }
  return newest;
}

ServedRuns::Known& ServedRuns::known(const fs::path& folder) {
  const Stamp stamp{read_run_state(folder).phase, last_written(folder)};
  Known& known = known_[folder];
  if (known.run && known.stamp == stamp) return known;
  known = {.stamp = stamp};
  if (Result<RunData> run = read_run(folder.string())) known.run = *std::move(run);
  return known;
}

std::string ServedRuns::report(const fs::path& folder) {
  Known& of_run = known(folder);
  const RunPhase phase = of_run.stamp.phase;
  const bool goes_on = phase == RunPhase::None || phase == RunPhase::Running;
  const int reload_s = goes_on ? options_.reload_s : 0;
  if (!of_run.run) {
    return html_page(
        {.title = folder.string(),
         .body = html_card(
             escape_xml(folder.string()),
             goes_on ? "No run has written anything here yet." : "What is here cannot be read as a run.", ""),
         .reload_s = reload_s});
  }
  if (!of_run.page.empty() && options_.against.empty()) return of_run.page;
  PageOptions page{.reload_s = reload_s};
  for (const std::string& other : options_.against) {
    if (Result<RunData> run = read_run(other)) page.against.push_back(*std::move(run));
  }
  return of_run.page = report_html(*of_run.run, page);
}

std::string ServedRuns::index() {
  std::vector<const RunData*> runs;
  std::vector<std::string> links;
  for (const fs::path& folder : runs_below(options_.index)) {
    const Known& of_run = known(folder);
    if (!of_run.run) continue;
    runs.push_back(&*of_run.run);
    links.push_back(
        (folder.lexically_relative(options_.index) / run_files::kReport).lexically_normal().string());
  }
  return index_html(options_.index, runs, links, options_.reload_s);
}

std::optional<std::string> ServedRuns::page(const std::string& path) {
  if (options_.index.empty())
    return path == "/" || path == std::string("/") + run_files::kReport ? std::optional(report(options_.run))
                                                                        : std::nullopt;
  if (path == "/" || path == "/index.html") return index();
  for (const fs::path& folder : runs_below(options_.index)) {
    const fs::path page = (folder.lexically_relative(options_.index) / run_files::kReport).lexically_normal();
    if (path == "/" + page.string()) return report(folder);
  }
  return std::nullopt;
}

}  // namespace millrace
