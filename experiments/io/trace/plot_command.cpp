#include "experiments/io/trace/plot_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "driver/cli/command_support.h"
#include "experiments/io/trace/timeline_plot.h"
#include "runtime/base/choices.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/progress_line.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

enum class TimelineFormat { Svg, Png, Pdf, Html };
constexpr auto names_of(TimelineFormat) {
  return std::to_array<std::string_view>({"svg", "png", "pdf", "html"});
}

struct PlotRequest {
  std::string folder;
  std::optional<std::string> out;    ///< nothing: the folder
  std::vector<std::string> layouts;  ///< empty: all
  std::vector<std::string> zooms;
  std::vector<TimelineFormat> formats{TimelineFormat::Svg};
  bool all_zooms = false;
  PlotOptions options;
};

/// "12..30" stays a name of a file everywhere.
std::string file_name(const TimeWindow& window) {
  std::string name = "timeline";
  if (!window.name.empty()) name += "_" + window.name;
  for (char& c : name) {
    if (c == ':' || c == '/') c = '-';
  }
  return name;
}

class Plotter {
 public:
  Plotter(const PlotRequest& request, const Timeline& timeline) : r_(request), timeline_(timeline) {}

  Result<std::vector<std::string>> run() {
    std::vector<std::string> wanted = r_.layouts;
    if (wanted.empty()) {
      for (const auto& [name, groups] : timeline_.layouts) {
        if (!r_.options.paper || name == "all_combined") wanted.push_back(name);
      }
    }
    SteadyClock clock;
    ProgressLine line(clock, "plot");
    std::int64_t done = 0;
    for (const std::string& name : wanted) {
      line.show(done++, static_cast<std::int64_t>(wanted.size()), "layouts");
      if (const std::vector<TimelineGroup>* groups = timeline_.layout(name)) {
        plot_layout(name, *groups);
      } else {
        problems_.push_back({"--layout", "the run has no layout '" + name + "'", "it has " + layout_names()});
      }
    }
    line.clear();
    if (!problems_.empty()) return problems_;
    return std::move(written_);
  }

 private:
  std::string layout_names() const {
    std::string names;
    for (const auto& [name, groups] : timeline_.layouts) names += (names.empty() ? "" : ", ") + name;
    return names.empty() ? "none" : names;
  }

  void plot_layout(const std::string& name, const std::vector<TimelineGroup>& groups) {
    const Result<TimeExtent> extent = extent_of(timeline_, groups);
    if (!extent) return append(problems_, extent.problems());
    const fs::path folder =
        fs::path(r_.out.value_or(r_.folder)) / (r_.options.paper ? "plots_paper" : "plots") / name;
    if (const Status made = make_writable_folder(folder); !made) return append(problems_, made.problems());
    for (const TimeWindow& window : windows(*extent)) {
      Result<std::vector<GroupColumns>> columns = group_columns(groups, window, plot_columns(r_.options));
      if (!columns) return append(problems_, columns.problems());
      const TimelinePicture picture{&timeline_, *extent, window, std::move(*columns)};
      for (const TimelineFormat format : r_.formats) {
        if (format == TimelineFormat::Html) continue;
        const std::string path = (folder / (file_name(window) + "." + to_string(format))).string();
        if (const Status drawn = draw_timeline(picture, r_.options, path); !drawn)
          return append(problems_, drawn.problems());
        written_.push_back(path);
      }
    }
    if (std::ranges::find(r_.formats, TimelineFormat::Html) == r_.formats.end()) return;
    const Result<std::string> page = timeline_page(timeline_, groups, *extent, r_.options.title);
    if (!page) return append(problems_, page.problems());
    const std::string path = (folder / "timeline.html").string();
    if (const Status done = write_file_atomically(path, *page); !done)
      return append(problems_, done.problems());
    written_.push_back(path);
  }

  /// Returns the windows that were asked for; with --all-zooms those of the kit's list that the run has.
  std::vector<TimeWindow> windows(const TimeExtent& extent) {
    std::vector<TimeWindow> result;
    if (r_.zooms.empty()) result.push_back({"", extent.first, extent.last});
    for (const std::string& zoom : r_.zooms) {
      if (const Result<TimeWindow> window = parse_zoom(zoom, timeline_, extent)) {
        result.push_back(*window);
      } else {
        append(problems_, window.problems());
      }
    }
    for (const std::string& zoom : r_.all_zooms ? zoom_names() : std::vector<std::string>{}) {
      if (zoom == "first-epoch") continue;  // the first training by another name
      if (const Result<TimeWindow> window = parse_zoom(zoom, timeline_, extent)) result.push_back(*window);
    }
    return result;
  }

  const PlotRequest& r_;
  const Timeline& timeline_;
  std::vector<std::string> written_;
  Problems problems_;
};

CommandSpec spec_of(PlotRequest& r) {
  CommandSpec spec;
  spec.command = "trace plot";
  spec.summary = "Timelines of a processed run: CPU, GPU, disk, the calls of each process group, phases.";
  spec.positionals = {"DIR"};
  spec.flags = {
      flag("", "out", "OUT", "Pictures go to OUT/plots/<layout>/ (default: DIR).", into::text(r.out), 'o'),
      flag("", "layout", "LIST",
           "Some of all_combined, each_parent, parents_combined_loaders_combined, "
           "each_parent_and_their_loaders, comma-separated (default: all there are).",
           into::list(r.layouts)),
      {.name = "zoom",
       .value = "WINDOW",
       .help =
           "FROM..TO in seconds since the start or as UTC times, or init, first-5min, first-training, "
           "first-epoch, first-eval, first-checkpoint, last-2min, last-5s (5 s more on each side). May be "
           "given several times.",
       .repeatable = true,
       .target = into::texts(r.zooms)},
      flag("", "all-zooms", "", "The whole run and every named window it has.", into::on(r.all_zooms), 'a'),
      flag("", "formats", "LIST", "Some of svg, png, pdf, html, comma-separated.",
           into::choices(r.formats, "format")),
      flag("", "title", "TEXT", "Above the picture.", into::text(r.options.title), 't'),
      flag("", "paper", "For a paper: GPU, all processes together, phases; no legend.",
           into::on(r.options.paper)),
      flag("", "narrow", "", "Half as wide.", into::on(r.options.narrow), 's'),
  };
  spec.interrupted = "files that are finished stay";
  spec.examples = {
      "millrace trace plot processed/unet3d_8g4b --formats svg,png,html",
      "millrace trace plot processed/unet3d_8g4b --zoom first-epoch --zoom 120..135 --layout all_combined"};
  return spec;
}

int plot(const PlotRequest& request) {
  const Result<Timeline> timeline = read_timeline(request.folder);
  if (!timeline) return exit_with(ExitCode::InputData, timeline.problems());
  for (const std::string& note : timeline->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  const Result<std::vector<std::string>> written = Plotter(request, *timeline).run();
  if (!written) return exit_with(ExitCode::InputData, written.problems());
  if (written->empty())
    return exit_with(ExitCode::InputData, {{request.folder, "has no layout of events (timeline/pid)",
                                            "preprocess the run again"}});
  for (const std::string& path : *written) std::printf("%s\n", path.c_str());
  return 0;
}

}  // namespace

CommandSpec trace_plot_spec() {
  return without_targets<PlotRequest>(spec_of);
}

int trace_plot_command(const std::vector<std::string>& args) {
  PlotRequest request;
  return run_command(spec_of(request), args, [&](const Arguments& given, const Problems& problems) {
    request.folder = given.positionals()[0];
    return problems.empty() ? plot(request) : exit_with(ExitCode::Usage, problems);
  });
}

}  // namespace millrace
