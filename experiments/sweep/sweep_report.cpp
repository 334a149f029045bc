#include "experiments/sweep/sweep_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "experiments/drawing/figures.h"
#include "experiments/drawing/html_page.h"
#include "experiments/drawing/svg_chart.h"
#include "experiments/sweep/job_outcome.h"
#include "runtime/base/median.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

constexpr int kMostCurves = 8;  // jobs in the picture of losses
const char* const kColours[] = {"#3b76c4", "#d1742f", "#3f9a63", "#b0486c",
                                "#7a62b8", "#a08a1f", "#2a9aa5", "#8a6d5b"};

const char* colour_of(const std::string& mode) {
  if (mode == "fused") return "#d1742f";
  return mode == "concurrent" ? "#3f9a63" : "#3b76c4";
}

std::string cell(const std::string& text, const char* css = "") {
  return std::string("<td") + (*css ? std::string(" class=\"") + css + "\"" : "") + ">" + escape_xml(text) +
         "</td>";
}

std::string mebibytes(std::int64_t bytes) {
  return bytes > 0 ? figure(static_cast<double>(bytes) / static_cast<double>(kMiB)) + " MiB" : "–";
}

std::string table(const std::vector<std::string>& heads, const std::string& rows) {
  std::string html = "<div class=\"scroll\"><table><tr>";
  for (const std::string& head : heads) html += "<th>" + escape_xml(head) + "</th>";
  return html + "</tr>" + rows + "</table></div>";
}

class SweepPage {
 public:
  SweepPage(const SweepSpec& spec, const SweepResults& results)
      : spec_(spec), results_(results), curves_(curves_of(results, precision_of(spec))) {}

  std::string html() const {
    return html_page(
        {.title = spec_.name,
         .body = header() + tiles() + plan_card() + speedup_card() + partial_card() + losses_card() +
                 kernels_card() + counters_card() + jobs_card() + failures_card(),
         .footer = "Written by millrace sweep. Throughput: samples of all processes after the "
                   "warm-up epochs over the time from the earliest kept start to the latest stop.",
         .data = {}});
  }

 private:
  std::string header() const {
    return "<header><h1>" + escape_xml(spec_.name) + "</h1><p>" + escape_xml(spec_.output_dir) +
           "</p></header>";
  }

  std::string plan_card() const {
    if (!spec_.plan) return "";
    return html_card("Planned", "How the fused jobs are divided into arrays and rounds, and why (plan.json).",
                     "<pre>" + escape_xml(spec_.plan->reasons) + "</pre>");
  }

  std::string tiles() const {
    std::string html = "<div class=\"tiles\">";
    std::string modes;
    for (SweepMode mode : spec_.modes) modes += (modes.empty() ? "" : ", ") + to_string(mode);
    html += html_tile("Jobs", std::to_string(spec_.num_jobs), modes);
    const JobResult* best = nullptr;
    for (const JobResult& r : results_.jobs) {
      if (r.exit_code == 0 && std::isfinite(r.final_loss) && (!best || r.final_loss < best->final_loss))
        best = &r;
    }
    if (best)
      html += html_tile("Least loss", printed("%.4g", best->final_loss),
                        "job " + std::to_string(best->job) + ": " + settings_text(spec_.settings(best->job)));
    for (const ModeCurves& mode : curves_.modes) {
      if (mode.mode == "serial" || curves_.serial <= 0) continue;
      int at = 1;
      for (int jobs = 1; jobs <= curves_.most; ++jobs) {
        if (band_at(mode, jobs).mean > band_at(mode, at).mean) at = jobs;
      }
      html += html_tile("Best, " + mode.mode, printed("%.2f×", band_at(mode, at).mean / curves_.serial),
                        "of serial, at B = " + std::to_string(at));
    }
    if (const int failed = results_.num_failed(); failed > 0)
      html += html_tile("Failed", std::to_string(failed), "below");
    return html + "</div>";
  }

  std::string speedup_card() const {
    if (curves_.modes.empty() || curves_.serial <= 0) return "";
    std::vector<Series> series;
    std::string rows;
    for (const ModeCurves& mode : curves_.modes) {
      Series line{.name = mode.mode, .colour = colour_of(mode.mode)};
      std::set<int> measured;
      for (const RateCurve& curve : mode.repeats)
        for (const auto& [jobs, rate] : curve) measured.insert(jobs);
      for (int jobs = 1; jobs <= curves_.most; ++jobs) {
        const Band band = band_at(mode, jobs);
        line.points.emplace_back(jobs, band.mean / curves_.serial);
        line.band.push_back({double(jobs), band.low / curves_.serial, band.high / curves_.serial});
      }
      Series dots{.colour = line.colour, .style = Series::Style::Dots};
      for (int jobs : measured) {
        const Band band = band_at(mode, jobs);
        dots.points.emplace_back(jobs, band.mean / curves_.serial);
        rows += "<tr>" + cell(mode.mode) + cell(std::to_string(jobs)) + cell(figure(band.mean)) +
                cell(figure(band.low) + " – " + figure(band.high)) +
                cell(printed("%.2f×", band.mean / curves_.serial)) + "</tr>";
      }
      series.push_back(std::move(line));
      series.push_back(std::move(dots));
    }
    return html_card("Speed-up over the number of jobs",
                     "Samples per second of B jobs together, over one serial job. Bands: least and most of " +
                         std::to_string(spec_.measure.repeats) + " repeats; dots: B that were measured.",
                     line_chart_svg({.title = "Throughput",
                                     .x_label = "jobs B",
                                     .y_label = "times serial",
                                     .width = 1096,
                                     .height = 320,
                                     .y_from_zero = true},
                                    series) +
                         table({"Mode", "B", "Samples/s", "Least – most", "Of serial"}, rows));
  }

  std::string partial_card() const {
    const bool any = std::ranges::any_of(results_.measurements, [](const auto& m) { return m.unfused > 0; });
    if (!any || curves_.serial <= 0) return "";
    Series line{.name = "partially fused", .colour = colour_of("fused")};
    Series serial{.name = "serial", .colour = colour_of("serial"), .style = Series::Style::Dashed};
    std::string layers;
    for (int k = 0; k <= static_cast<int>(spec_.unfused.size()); ++k) {
      const Band band = band_at(curves_.partial, k);
      line.points.emplace_back(k, band.mean / curves_.serial);
      line.band.push_back({double(k), band.low / curves_.serial, band.high / curves_.serial});
      serial.points.emplace_back(k, 1);
    }
    for (const std::string& layer : spec_.unfused) layers += (layers.empty() ? "" : ", ") + layer;
    return html_card("Partial fusion", "Layers left unfused, in this order: " + escape_xml(layers) + ".",
                     line_chart_svg({.title = "Throughput",
                                     .x_label = "unfused layers",
                                     .y_label = "times serial",
                                     .width = 1096,
                                     .y_from_zero = true},
                                    {line, serial}));
  }

  /// Serial as lines, fused dashed over them, concurrent as dots where there is no serial.
  std::string losses_card() const {
    std::vector<Series> series;
    int num_jobs = 0;
    for (int job = 0; job < std::min(spec_.num_jobs, kMostCurves); ++job) {
      const std::string colour = kColours[job];
      bool named = false;
      for (const JobResult& r : results_.jobs) {
        if (r.job != job || r.exit_code != 0 ||
            (r.mode == SweepMode::Concurrent && spec_.has(SweepMode::Serial)))
          continue;
        Series line{.colour = r.mode == SweepMode::Fused ? "var(--line)" : colour,
                    .points = losses_of(r.folder, r.member),
                    .style = r.mode == SweepMode::Fused ? Series::Style::Dashed : Series::Style::Line};
        if (line.points.empty()) continue;
        if (!named) line.name = "job " + std::to_string(job);
        named = true;
        series.push_back(std::move(line));
      }
      num_jobs += named;
    }
    if (series.empty()) return "";
    std::string lead = "Training loss by step.";
    if (spec_.has(SweepMode::Fused)) lead += " Lines: serial; dashed over them: the same job in the array.";
    const int shown = std::min(spec_.num_jobs, kMostCurves);
    if (shown < spec_.num_jobs)
      lead += " The first " + std::to_string(shown) + " of " + std::to_string(spec_.num_jobs) + " jobs.";
    if (num_jobs < shown) lead += " Jobs that failed are left out.";
    return html_card(
        "Loss", lead,
        line_chart_svg({.title = "Training loss", .x_label = "step", .width = 1096, .height = 340}, series));
  }

  /// Shows the kernels of the largest array that was measured, else of the first that was trained.
  std::string kernels_card() const {
    std::string folder;
    int most = 1;
    for (const Measurement& m : results_.measurements) {
      if (m.mode == SweepMode::Fused && m.unfused == 0 && m.exit_code == 0 && m.jobs > most) {
        most = m.jobs;
        folder = m.folder;
      }
    }
    for (const JobResult& r : results_.jobs) {
      if (folder.empty() && r.member >= 0 && r.exit_code == 0) folder = r.folder;
    }
    std::string rows;
    for (const KernelRow& k : kernels_of(folder)) {
      const bool timed = k.loop_s > 0 && k.fused_s > 0;
      rows += "<tr>" + cell(k.layer) + cell(k.kind) + cell(k.inputs) + cell(k.kernel) +
              cell(timed ? duration_figure(k.loop_s) : "–") + cell(timed ? duration_figure(k.fused_s) : "–") +
              cell(timed ? printed("%.2f×", k.loop_s / k.fused_s) : "–") + "</tr>";
    }
    if (rows.empty()) return "";
    return html_card(
        "Kernels",
        "What each layer of the array runs, and what both ways took when they were tried: "
        "job by job, and all jobs in one kernel.",
        table({"Layer", "Kind", "Inputs of a job", "Chosen", "Loop", "Fused", "Loop over fused"}, rows));
  }

  std::string counters_card() const {
    if (results_.measurements.empty()) return "";
    std::string rows;
    std::set<std::string> fields;
    for (const Measurement& m : results_.measurements)
      for (const auto& [field, value] : m.use.gpu) fields.insert(field);
    for (const Measurement& m : results_.measurements) {
      if (m.exit_code != 0) continue;
      rows += "<tr>" + cell(to_string(m.mode) + (m.unfused > 0 ? printed(", %d unfused", m.unfused) : "")) +
              cell(std::to_string(m.jobs)) + cell(std::to_string(m.repeat)) + cell(figure(m.samples_per_s)) +
              cell(duration_figure(m.cpu_s / m.jobs)) +
              cell(m.instructions ? printed("%.3g", static_cast<double>(*m.instructions) / m.jobs) : "–") +
              cell(printed("%.0f %%", m.use.cpu_percent)) + cell(mebibytes(m.use.memory_bytes)) +
              cell(mebibytes(m.use.memory_bytes / m.jobs)) + cell(mebibytes(m.use.available_memory_bytes));
      for (const std::string& field : fields) {
        const auto found = m.use.gpu.find(field);
        rows += cell(found == m.use.gpu.end() ? "–" : figure(found->second));
      }
      rows += "</tr>";
    }
    std::vector<std::string> heads{"Mode",
                                   "B",
                                   "Repeat",
                                   "Samples/s",
                                   "CPU per job",
                                   "Instructions per job",
                                   "CPU of the host",
                                   "Memory",
                                   "Memory per job",
                                   "Least available"};
    heads.insert(heads.end(), fields.begin(), fields.end());
    return html_card("Counters",
                     "CPU time and instructions (user mode, where perf is allowed) of all processes over B; "
                     "host: the middle 80 % of samples every 0.2 s. Memory is private and shared memory "
                     "together, mapped files not counted.",
                     counter_charts() + table(heads, rows));
  }

  /// Shows what a job costs beside others, medians over the repeats.
  std::string counter_charts() const {
    const auto chart = [&](const char* title, const char* unit, auto value) {
      std::vector<Series> series;
      for (const ModeCurves& mode : curves_.modes) {
        std::map<int, std::vector<double>> by_size;
        for (const Measurement& m : results_.measurements) {
          if (to_string(m.mode) == mode.mode && m.exit_code == 0 && m.unfused == 0)
            by_size[m.jobs].push_back(value(m) / m.jobs);
        }
        Series line{.name = mode.mode, .colour = colour_of(mode.mode)};
        for (const auto& [jobs, values] : by_size) line.points.emplace_back(jobs, median(values));
        if (line.points.size() == 1) line.style = Series::Style::Dots;
        series.push_back(std::move(line));
      }
      return line_chart_svg({.title = title, .x_label = "jobs B", .y_label = unit, .y_from_zero = true},
                            series);
    };
    return "<div class=\"pair\">" +
           chart("CPU time of a job", "seconds", [](const Measurement& m) { return m.cpu_s; }) +
           chart("Memory of a job", "MiB",
                 [](const Measurement& m) { return double(m.use.memory_bytes) / double(kMiB); }) +
           "</div>";
  }

  std::string jobs_card() const {
    if (results_.jobs.empty()) return "";
    std::vector<std::string> heads{"Job", "Mode"}, metrics;
    for (const std::string& flag : spec_.varied.flags()) heads.push_back(flag);
    for (const JobResult& r : results_.jobs) {
      for (const auto& [name, value] : r.metrics) {
        if (std::ranges::find(metrics, name) == metrics.end()) metrics.push_back(name);
      }
    }
    heads.push_back("final loss");
    for (const std::string& name : metrics) heads.push_back("eval. " + name);
    heads.insert(heads.end(), {"Step", "samples/s", "updates", "samples", "Time", "CPU", "Memory"});
    const std::int64_t usual = usual_samples(results_.jobs);
    std::string rows;
    for (const JobResult& r : results_.jobs) {
      rows += "<tr>" + cell(std::to_string(r.job)) + cell(to_string(r.mode));
      for (const Setting& setting : spec_.settings(r.job)) rows += cell(setting.text);
      rows += r.exit_code != 0 ? cell("failed", "bad") : cell(printed("%.6g", r.final_loss));
      for (const std::string& name : metrics) {
        const auto found = std::ranges::find(r.metrics, name, &std::pair<std::string, double>::first);
        rows += cell(found == r.metrics.end() ? "–" : printed("%.4g", found->second));
      }
      rows += cell(duration_figure(r.work.step_s)) + cell(figure(r.work.samples_per_s)) +
              cell(std::to_string(r.work.updates)) +
              (r.work.samples == usual ? cell(std::to_string(r.work.samples))
                                       : cell(std::to_string(r.work.samples), "bad"));
      rows += cell(duration_figure(r.counters.seconds)) + cell(duration_figure(r.counters.cpu_s)) +
              cell(mebibytes(r.counters.peak_memory_bytes)) + "</tr>";
    }
    return html_card("Jobs",
                     "What each came to. Fused: time, CPU and memory are its share of the array's; a step is "
                     "one of all its jobs. A "
                     "marked number of samples is not that of most jobs, so times compare other work.",
                     table(heads, rows));
  }

  std::string failures_card() const {
    std::string list;
    for (const JobResult& r : results_.jobs) {
      if (r.exit_code != 0)
        list += "<li>" + to_string(r.mode) + " job " + std::to_string(r.job) + " (" +
                escape_xml(settings_text(spec_.settings(r.job))) + "): " + escape_xml(r.error) + " <small>" +
                escape_xml(r.folder) + "</small></li>";
    }
    for (const Measurement& m : results_.measurements) {
      if (m.exit_code != 0)
        list += "<li>measuring " + to_string(m.mode) + " B = " + std::to_string(m.jobs) + ": " +
                escape_xml(m.error) + "</li>";
    }
    return list.empty() ? ""
                        : html_card("Failed", "The others ran.", "<ul class=\"notes\">" + list + "</ul>");
  }

  const SweepSpec& spec_;
  const SweepResults& results_;
  Curves curves_;
};

}  // namespace

std::string sweep_report_html(const SweepSpec& spec, const SweepResults& results) {
  return SweepPage(spec, results).html();
}

}  // namespace millrace
