#include "experiments/trace/plot_command.h"

#include <cstdio>
#include <filesystem>

#include "driver/cli/command_support.h"
#include "experiments/trace/progress_line.h"
#include "experiments/trace/timeline_plot.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

struct PlotRequest {
  std::string folder, out;
  std::vector<std::string> layouts;  ///< empty: all
  std::vector<std::string> zooms;
  std::vector<std::string> formats;
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
    ProgressLine line("plot");
    std::int64_t done = 0;
    for (const std::string& name : wanted) {
      line.show(done++, static_cast<std::int64_t>(wanted.size()));
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
    const fs::path folder = fs::path(r_.out) / (r_.options.paper ? "plots_paper" : "plots") / name;
    if (const Status made = make_writable_folder(folder); !made) return append(problems_, made.problems());
    for (const TimeWindow& window : windows(*extent)) {
      Result<std::vector<GroupColumns>> columns = group_columns(groups, window, plot_columns(r_.options));
      if (!columns) return append(problems_, columns.problems());
      const TimelinePicture picture{&timeline_, *extent, window, std::move(*columns)};
      for (const std::string& format : r_.formats) {
        if (format == "html") continue;
        const std::string path = (folder / (file_name(window) + "." + format)).string();
        if (const Status drawn = draw_timeline(picture, r_.options, path); !drawn)
          return append(problems_, drawn.problems());
        written_.push_back(path);
      }
    }
    if (std::find(r_.formats.begin(), r_.formats.end(), "html") == r_.formats.end()) return;
    const Result<std::string> page = timeline_page(timeline_, groups, *extent, r_.options.title);
    if (!page) return append(problems_, page.problems());
    const std::string path = (folder / "timeline.html").string();
    if (const Status done = write_file_atomically(path, *page); !done)
      return append(problems_, done.problems());
    written_.push_back(path);
  }

  /// What was asked for; with --all-zooms those of the kit's list that the run has.
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

}  // namespace

CommandSpec trace_plot_spec() {
  CommandSpec spec;
  spec.command = "trace plot";
  spec.summary = "Timelines of a processed run: CPU, GPU, disk, the calls of each process group, phases.";
  spec.positionals = {"DIR"};
  spec.flags = {
      {.name = "out",
       .short_name = 'o',
       .value = "OUT",
       .help = "Pictures go to OUT/plots/<layout>/ (default: DIR)."},
      {.name = "layout",
       .value = "LIST",
       .help = "Some of all_combined, each_parent, parents_combined_loaders_combined, "
               "each_parent_and_their_loaders, comma-separated (default: all there are)."},
      {.name = "zoom",
       .value = "WINDOW",
       .help =
           "FROM..TO in seconds since the start or as UTC times, or init, first-5min, first-training, "
           "first-epoch, first-eval, first-checkpoint, last-2min, last-5s (5 s more on each side). May be "
           "given several times.",
       .repeatable = true},
      {.name = "all-zooms", .short_name = 'a', .help = "The whole run and every named window it has."},
      {.name = "formats",
       .value = "LIST",
       .help = "Some of svg, png, pdf, html, comma-separated.",
       .fallback = "svg"},
      {.name = "title", .short_name = 't', .value = "TEXT", .help = "Above the picture."},
      {.name = "paper", .help = "For a paper: GPU, all processes together, phases; no legend."},
      {.name = "narrow", .short_name = 's', .help = "Half as wide."},
  };
  spec.examples = {
      "millrace trace plot processed/unet3d_8g4b --formats svg,png,html",
      "millrace trace plot processed/unet3d_8g4b --zoom first-epoch --zoom 120..135 --layout all_combined"};
  return spec;
}

int trace_plot_command(const std::vector<std::string>& args) {
  const CommandSpec spec = trace_plot_spec();
  Result<Arguments> arguments = parse_arguments(spec, args);
  if (!arguments) return exit_with(ExitCode::Usage, arguments.problems());
  if (arguments->wants_help()) return std::fputs(help_text(spec).c_str(), stdout), 0;
  Problems problems;
  PlotRequest request;
  request.folder = arguments->positionals()[0];
  request.out = arguments->has("out") ? arguments->string("out") : request.folder;
  request.layouts = words_of(arguments->string("layout"), ',');
  if (arguments->has("zoom")) request.zooms = arguments->strings("zoom");
  request.all_zooms = arguments->boolean("all-zooms");
  request.formats = words_of(arguments->string("formats"), ',');
  request.options = {.title = arguments->string("title"),
                     .paper = arguments->boolean("paper"),
                     .narrow = arguments->boolean("narrow")};
  for (const std::string& format : request.formats) {
    if (format != "svg" && format != "png" && format != "pdf" && format != "html")
      problems.push_back({"--formats", "unknown format '" + format + "'", "svg, png, pdf or html"});
  }
  if (request.formats.empty()) problems.push_back({"--formats", "is empty", "svg, png, pdf or html"});
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
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

}  // namespace millrace
