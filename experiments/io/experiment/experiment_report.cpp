#include "experiments/io/experiment/experiment_report.h"

#include <algorithm>
#include <map>

#include "experiments/drawing/figures.h"
#include "experiments/drawing/html_page.h"
#include "experiments/drawing/svg_chart.h"
#include "experiments/io/instrument/statistics.h"
#include "experiments/report/time_bars.h"
#include "runtime/base/text.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

const TimePart kParts[] = {{"batch wait", "#c9a227"}, {"forward", "#6aa3e0"}, {"backward", "#3b76c4"},
                           {"send", "#e8a06a"},       {"receive", "#d1742f"}, {"reduce", "#b0486c"},
                           {"update", "#3f9a63"},     {"other", "#b8c0ca"}};
constexpr std::size_t kCurvePoints = 400;  // points of a distribution's curve

const char* colour_of(RunVariant variant) {
  switch (variant) {
    case RunVariant::Original:
      return "#3b76c4";
    case RunVariant::Instrumented:
      return "#3f9a63";
    case RunVariant::Sleep:
      return "#d1742f";
    case RunVariant::Generated:
      return "#7a62b8";
  }
  return "#66727f";
}

std::string grid_row(const std::vector<std::string>& texts) {
  std::string html = "<tr>";
  for (const std::string& text : texts) html += "<td>" + escape_xml(text) + "</td>";
  return html + "</tr>";
}

std::string grid_table(const std::vector<std::string>& heads, const std::string& rows) {
  std::string html = "<div class=\"scroll\"><table><tr>";
  for (const std::string& head : heads) html += "<th>" + escape_xml(head) + "</th>";
  return html + "</tr>" + rows + "</table></div>";
}

std::string csv_link(const char* name) {
  return std::string("<p class=\"lead\">The numbers: <a href=\"") + name + "\">" + name + "</a></p>";
}

class ExperimentPage {
 public:
  ExperimentPage(const ExperimentSpec& spec, const ExperimentResults& results)
      : spec_(spec), results_(results) {
    for (const CellResult& one : results.cells) {
      if (one.exit_code != 0) continue;
      const ExperimentCell& cell = spec.cells[one.cell];
      const std::string group = spec.group_of(cell);
      if (std::ranges::find(groups_, group) == groups_.end()) groups_.push_back(group);
      of_[{group, cell.variant}].push_back(&one);
    }
  }

  std::string html() const {
    return html_page(
        {.title = spec_.name,
         .body = header() + tiles() + comparison_card() + breakdown_card() + phases_card() + beside_card() +
                 distributions_card() + captured_card() + cells_card() + failures_card(),
         .footer = "Written by millrace experiment. First steps are left out of means, medians and "
                   "distributions, and counted in runs.",
         .data = {}});
  }

 private:
  static std::vector<RunVariant> variants() {
    return {RunVariant::Original, RunVariant::Instrumented, RunVariant::Sleep, RunVariant::Generated};
  }
  const std::vector<const CellResult*>* runs(const std::string& group, RunVariant variant) const {
    const auto found = of_.find({group, variant});
    return found == of_.end() ? nullptr : &found->second;
  }
  std::vector<double> steps_of(const std::vector<const CellResult*>& runs) const {
    std::vector<double> all;
    for (const CellResult* one : runs) all.insert(all.end(), one->step_s.begin(), one->step_s.end());
    std::ranges::sort(all);
    return all;
  }

  std::string header() const {
    return "<header><h1>" + escape_xml(spec_.name) + "</h1><p>" + escape_xml(spec_.output_dir) +
           "</p></header>";
  }

  std::string tiles() const {
    const auto done = std::ranges::count(results_.cells, 0, &CellResult::exit_code);
    double wall = 0;
    for (const CellResult& one : results_.cells) wall += one.wall_s;
    std::string html = "<div class=\"tiles\">" +
                       html_tile("Cells", std::to_string(done) + " of " + std::to_string(spec_.cells.size()),
                                 "came to their end") +
                       html_tile("Time", duration_figure(wall), "of all runs");
    if (const int failed = results_.num_failed(); failed > 0)
      html += html_tile("Failed", std::to_string(failed), "below");
    return html + "</div>";
  }

  std::string comparison_card() const {
    std::string rows;
    for (const Comparison& one : results_.comparisons)
      rows += grid_row(
          {one.group, one.variant, one.beside, one.what, printed("%+.2f %%", (one.mean - 1) * 100),
           one.ratios.size() < 2 ? "–"
                                 : printed("%+.2f to %+.2f %%", (one.least - 1) * 100, (one.most - 1) * 100),
           std::to_string(one.ratios.size())});
    if (rows.empty()) return "";
    return html_card(
        "Variants beside each other",
        "Each variant over the original of the same repeat, and sleep over the instrumented run whose times "
        "it has. run: steps, evaluations and checkpoints together; step: the median; compute: forwards, "
        "backwards and updates of all ranks; cpu: processor time of the whole job.",
        grid_table({"Group", "Variant", "Beside", "Of", "Mean", "Least to most", "Repeats"}, rows) +
            csv_link("comparisons.csv"));
  }

  std::string breakdown_card() const {
    std::string html;
    for (std::size_t w = 0; w < spec_.workloads.size(); ++w) {
      for (std::size_t d = 0; d < spec_.workloads[w].data.size(); ++d) {
        // There is a line over the batch for each cache, variant and number of ranks.
        std::map<std::string, Series> lines;
        for (const auto& [at, runs] : of_) {
          const ExperimentCell& cell = spec_.cells[runs.front()->cell];
          if (cell.workload != w || cell.data != d) continue;
          const std::vector<double> steps = steps_of(runs);
          if (steps.empty()) continue;
          const std::string name = to_string(cell.variant) + ", " + std::to_string(cell.ranks) +
                                   (cell.ranks == 1 ? " rank" : " ranks") +
                                   (cell.cache == CacheState::Cold ? ", cold" : "");
          Series& line = lines[name];
          line.name = name;
          line.colour = colour_of(cell.variant);
          if (cell.ranks > spec_.workloads[w].ranks.front()) line.style = Series::Style::Dashed;
          line.points.emplace_back(cell.batch, percentile(steps, 0.5) * 1e3);
          line.band.push_back(
              {double(cell.batch), percentile(steps, 0.25) * 1e3, percentile(steps, 0.75) * 1e3});
        }
        std::vector<Series> series;
        for (auto& [name, line] : lines) {
          std::ranges::sort(line.points);
          std::ranges::sort(line.band);
          series.push_back(std::move(line));
        }
        if (series.empty()) continue;
        html +=
            line_chart_svg({.title = spec_.workloads[w].name + ", data " + spec_.workloads[w].data[d].name,
                            .x_label = "samples of a microbatch",
                            .y_label = "ms a step",
                            .y_from_zero = true,
                            .whole_x = true},
                           series);
      }
    }
    if (html.empty()) return "";
    return html_card("Step time over batch and ranks", "Medians of all repeats; bands: quartiles.",
                     "<div class=\"pair\">" + html + "</div>" + csv_link("steps.csv"));
  }

  /// Means over the repeats.
  static PhaseTimes mean_phases(const std::vector<const CellResult*>& runs, std::size_t rank,
                                std::vector<PhaseTimes> CellResult::*of) {
    std::vector<std::pair<std::string, double>> sums;
    for (const CellResult* one : runs) {
      if (rank >= (one->*of).size()) continue;
      for (const auto& [name, seconds] : (one->*of)[rank]) {
        const auto found = std::ranges::find(sums, name, &std::pair<std::string, double>::first);
        if (found == sums.end())
          sums.emplace_back(name, seconds / double(runs.size()));
        else
          found->second += seconds / double(runs.size());
      }
    }
    return sums;
  }

  template <class Use>
  void each_rank(Use use) const {
    for (const std::string& group : groups_)
      for (const RunVariant variant : variants())
        if (const auto* found = runs(group, variant))
          for (std::size_t rank = 0; rank < found->front()->ranks.size(); ++rank)
            use(group, variant, *found, rank);
  }

  std::string phases_card() const {
    std::vector<TimeRow> rows;
    each_rank([&](const std::string& group, RunVariant variant, const std::vector<const CellResult*>& runs,
                  std::size_t rank) {
      TimeRow one{.label = group + ", " + to_string(variant) + ", rank " + std::to_string(rank),
                  .seconds = {}};
      const PhaseTimes phases = mean_phases(runs, rank, &CellResult::ranks);
      for (const TimePart& part : kParts) {
        const auto found = std::ranges::find(phases, part.name, &PhaseTimes::value_type::first);
        one.seconds.push_back(found == phases.end() ? 0 : found->second);
      }
      rows.push_back(std::move(one));
    });
    if (rows.empty()) return "";
    return html_card("Where a step's time goes", "Mean of the steps after the first, by rank.",
                     time_bars_html({std::begin(kParts), std::end(kParts)}, rows) + csv_link("phases.csv"));
  }

  std::string beside_card() const {
    std::string rows;
    each_rank([&](const std::string& group, RunVariant variant, const std::vector<const CellResult*>& runs,
                  std::size_t rank) {
      for (const auto& [name, seconds] : mean_phases(runs, rank, &CellResult::beside))
        rows += grid_row({group, to_string(variant), std::to_string(rank), name, duration_figure(seconds)});
    });
    if (rows.empty()) return "";
    return html_card(
        "Beside and between the steps",
        "Seconds for each step of the run. load and preprocess: the loader's threads; copy and loss: "
        "parts of a step; evaluation and checkpoint: between steps.",
        grid_table({"Group", "Variant", "Rank", "Phase", "A step"}, rows) + csv_link("phases.csv"));
  }

  std::string distributions_card() const {
    std::string charts, rows;
    for (const std::string& group : groups_) {
      std::vector<Series> series;
      for (const RunVariant variant : variants()) {
        const auto* found = runs(group, variant);
        if (!found) continue;
        const std::vector<double> steps = steps_of(*found);
        if (steps.size() < 2) continue;
        Series line{.name = to_string(variant), .colour = colour_of(variant)};
        const std::size_t points = std::min(steps.size(), kCurvePoints);
        for (std::size_t i = 0; i < points; ++i) {
          const double share = double(i) / double(points - 1);
          line.points.emplace_back(percentile(steps, share) * 1e3, share * 100);
        }
        series.push_back(std::move(line));
        const Summary summary = summary_of(steps);
        const auto fit = best_fit(steps);
        rows +=
            grid_row({group, to_string(variant), std::to_string(steps.size()), duration_figure(summary.mean),
                      duration_figure(summary.std), duration_figure(summary.median),
                      fit ? to_string(fit->distribution.family) : "–", fit ? printed("%.3f", fit->ks) : "–"});
      }
      if (!series.empty())
        charts +=
            line_chart_svg({.title = group, .x_label = "ms a step", .y_label = "% of the steps"}, series);
    }
    if (charts.empty()) return "";
    return html_card(
        "Distributions of step times",
        "Share of the steps that took no longer, all repeats together. Fit: the family with the best BIC, "
        "and its "
        "Kolmogorov-Smirnov distance.",
        "<div class=\"pair\">" + charts + "</div>" +
            grid_table({"Group", "Variant", "Steps", "Mean", "Deviation", "Median", "Fit", "KS"}, rows) +
            csv_link("steps.csv") + csv_link("fits.csv"));
  }

  /// Shows the file calls of the variants, how alike they are, and the timelines of the first repeat.
  std::string captured_card() const {
    std::string rows, pictures;
    for (const CapturedRun& run : results_.captured) {
      if (!run.error.empty()) continue;
      const auto alike = std::ranges::find_if(results_.alike, [&](const IoSimilarity& one) {
        return one.group == run.group && one.variant == run.variant;
      });
      const bool first = run.repeat == 1;
      rows += grid_row({run.group, run.variant, std::to_string(run.repeat), std::to_string(run.reads),
                        printed("%.2f", double(run.read_bytes) * 1e-6), printed("%.0f", run.read_s * 1e3),
                        std::to_string(run.opens), printed("%.2f", double(run.written_bytes) * 1e-6),
                        duration_figure(run.wall_s),
                        !first || alike == results_.alike.end() ? ""
                        : alike->low < alike->high
                            ? printed("%.2f (%.2f to %.2f)", alike->score, alike->low, alike->high)
                            : printed("%.2f", alike->score)});
      if (!first) continue;
      if (const Result<std::string> picture = timeline_of(spec_, run))
        pictures += *picture +
                    csv_link((run.key + "/trace/processed/timeline/pid/all_combined/combined.log").c_str());
    }
    if (rows.empty()) return "";
    return html_card("File calls, and how alike they are",
                     "Runs under trace capture. Reads are those of the data set's files. dlio emulates the "
                     "job with as many "
                     "samples, and with the times of the instrumented run. tracesim/1: 1 is the same as the "
                     "originals; of the "
                     "original, its repeats beside each other. Intervals: 95 % over the repeats.",
                     grid_table({"Group", "Variant", "Repeat", "Reads", "MB", "ms in reads", "Opens",
                                 "MB written", "Run", "tracesim/1"},
                                rows) +
                         csv_link("calls.csv") + csv_link("similarity.csv") + pictures);
  }

  static std::string share(const std::optional<double>& value) {
    return value ? printed("%.0f %%", *value * 100) : "–";
  }

  std::string cells_card() const {
    std::string rows;
    for (const CellResult& one : results_.cells) {
      if (one.exit_code != 0) continue;
      rows += grid_row({spec_.key_of(spec_.cells[one.cell]), duration_figure(one.run_s),
                        duration_figure(one.wall_s), figure(one.samples_per_s),
                        one.drawn_s > 0 ? printed("%+.3f %%", (one.waited_s / one.drawn_s - 1) * 100) : "–",
                        share(one.cached_before), share(one.cached_after)});
    }
    if (rows.empty()) return "";
    return html_card(
        "Runs",
        "Waits: what a sleeping rank waited, beside what it drew. Cached: share of the data's pages in "
        "the kernel's cache before and after the run.",
        grid_table({"Folder", "Run", "With start", "Samples/s", "Waits", "Cached", "After"}, rows) +
            csv_link("cells.csv"));
  }

  std::string failures_card() const {
    std::string rows;
    for (const CellResult& one : results_.cells)
      if (one.exit_code != 0)
        rows += grid_row({spec_.key_of(spec_.cells[one.cell]), std::to_string(one.exit_code), one.error});
    for (const CapturedRun& one : results_.captured)
      if (!one.error.empty()) rows += grid_row({one.key, "1", one.error});
    if (rows.empty()) return "";
    return html_card("Failed", "--retry-failed tries them again.",
                     grid_table({"Folder", "Code", "Why"}, rows));
  }

  const ExperimentSpec& spec_;
  const ExperimentResults& results_;
  std::vector<std::string> groups_;
  std::map<std::pair<std::string, RunVariant>, std::vector<const CellResult*>> of_;
};

}  // namespace

std::string experiment_report_html(const ExperimentSpec& spec, const ExperimentResults& results) {
  return ExperimentPage(spec, results).html();
}

}  // namespace millrace
