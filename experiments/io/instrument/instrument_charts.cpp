#include "experiments/io/instrument/instrument_charts.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <set>

#include "experiments/drawing/canvas.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                    "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};
constexpr double kPanelWidth = 300, kPanelHeight = 230;
constexpr double kLeft = 58, kRight = 12, kTop = 30, kBottom = 42, kLegendLine = 14;

struct Panel {
  std::string metric, title, unit;
  bool band = true;
};

/// Maps values to a frame and draws its axes.
class PanelFrame {
 public:
  PanelFrame(Canvas& canvas, double x, double y) : canvas_(canvas), x_(x + kLeft), y_(y + kTop) {}
  static constexpr double width() { return kPanelWidth - kLeft - kRight; }
  static constexpr double height() { return kPanelHeight - kTop - kBottom; }
  void set_range(double x_low, double x_high, double y_low, double y_high) {
    x_low_ = x_low, x_high_ = x_high > x_low ? x_high : x_low + 1;
    y_low_ = y_low, y_high_ = y_high > y_low ? y_high : y_low + 1;
  }
  std::pair<double, double> at(double x, double y) const {
    return {x_ + (x - x_low_) / (x_high_ - x_low_) * width(),
            y_ + height() - (y - y_low_) / (y_high_ - y_low_) * height()};
  }
  void axes(const std::string& title, const std::string& x_label, const std::string& y_label,
            const std::vector<std::pair<double, std::string>>& x_ticks) {
    const Ink grey = ink("#dddddd"), dark = ink("#444444");
    for (double tick : ticks_between(y_low_, y_high_, 5)) {
      const double y = at(x_low_, tick).second;
      canvas_.line(x_, y, x_ + width(), y, grey, 0.6);
      canvas_.text(x_ - 5, y + 3, short_number(tick), {.size = 8.5, .anchor = Anchor::End});
    }
    for (const auto& [value, text] : x_ticks) {
      const double x = at(value, y_low_).first;
      canvas_.line(x, y_ + height(), x, y_ + height() + 3, dark, 0.8);
      canvas_.text(x, y_ + height() + 13, text, {.size = 8.5, .anchor = Anchor::Middle});
    }
    canvas_.line(x_, y_, x_, y_ + height(), dark, 0.8);
    canvas_.line(x_, y_ + height(), x_ + width(), y_ + height(), dark, 0.8);
    canvas_.text(x_ + width() / 2, y_ - 10, title, {.size = 11, .anchor = Anchor::Middle, .bold = true});
    canvas_.text(x_ + width() / 2, y_ + height() + 28, x_label, {.size = 9.5, .anchor = Anchor::Middle});
    canvas_.text(x_ - 44, y_ + height() / 2, y_label,
                 {.size = 9.5, .anchor = Anchor::Middle, .upwards = true});
  }

 private:
  Canvas& canvas_;
  double x_, y_;
  double x_low_ = 0, x_high_ = 1, y_low_ = 0, y_high_ = 1;
};

std::string batch_label(int batch) {
  if (batch >= 1 << 20 && batch % (1 << 20) == 0) return std::to_string(batch >> 20) + "M";
  if (batch >= 1024 && batch % 1024 == 0) return std::to_string(batch >> 10) + "k";
  return std::to_string(batch);
}

class ChartMaker {
 public:
  ChartMaker(const StepData& data, const ChartOptions& options) : data_(data), o_(options) {
    for (const auto& [configuration, metrics] : data.by_configuration) {
      ranks_.insert(configuration.ranks);
      batches_.insert(configuration.batch);
    }
  }

  Result<std::vector<std::string>> run() {
    if (wants(Figure::Breakdown))
      lines("step_breakdown", {{"step_end", "Step", "seconds"},
                               {"load_batch_mem", "Waiting for the batch", "seconds", o_.label != "UNET3D"},
                               {"all_compute", "Compute", "seconds"}});
    if (wants(Figure::Throughputs))
      lines("throughputs", {{"from_disk_throughput", "Files (VFS)", "samples/s"},
                            {"data_loading_throughput", "Data loading", "samples/s"},
                            {"data_proc_throughput", "Compute", "samples/s"}});
    if (wants(Figure::Latencies)) {
      const std::string unit = has("sample_load") ? "sample" : "batch";
      lines("latencies", {{"load_batch_mem", "Waiting for the batch", "seconds"},
                          {unit + "_load", "Reading a " + unit + " (VFS)", "seconds"},
                          {unit + "_preproc", "Preprocessing a " + unit, "seconds"}});
    }
    if (wants(Figure::Histograms)) histograms();
    if (!problems_.empty()) return problems_;
    return std::move(written_);
  }

 private:
  bool wants(Figure figure) const { return std::ranges::find(o_.figures, figure) != o_.figures.end(); }

  bool has(const std::string& metric) const {
    return std::any_of(data_.by_configuration.begin(), data_.by_configuration.end(),
                       [&](const auto& entry) { return find_metric(entry.second, metric) != nullptr; });
  }

  double place(int batch) const { return o_.log_batches ? std::log2(batch) : batch; }

  /// Draws the same into a file of each format.
  void draw(const std::string& name, double width, double height, const std::function<void(Canvas&)>& paint) {
    for (const ChartFormat format : o_.formats) {
      const std::string path =
          (std::filesystem::path(o_.out) / (o_.label + "_" + name + "." + to_string(format))).string();
      Result<std::unique_ptr<Canvas>> canvas = make_canvas(path, width, height);
      if (!canvas) {
        append(problems_, canvas.problems());
        return;
      }
      paint(**canvas);
      if (const Status done = (*canvas)->finish(); !done) return append(problems_, done.problems());
      written_.push_back(path);
    }
  }

  void lines(const std::string& name, std::vector<Panel> panels) {
    std::erase_if(panels, [&](const Panel& panel) { return !has(panel.metric); });
    if (panels.empty()) return;
    const double width = kPanelWidth * static_cast<double>(panels.size());
    const std::vector<LegendPlace> legend =
        legend_places(std::vector<double>(ranks_.size(), 69), kLeft, width, 9);
    const double height = kPanelHeight + 46 + kLegendLine * legend.back().line;
    draw(name, width, height, [&](Canvas& canvas) {
      canvas.text(width / 2, 18, o_.title.empty() ? o_.label : o_.title,
                  {.size = 13, .anchor = Anchor::Middle, .bold = true});
      for (std::size_t p = 0; p < panels.size(); ++p)
        panel(canvas, panels[p], kPanelWidth * static_cast<double>(p));
      draw_legend(canvas, legend);
    });
  }

  void panel(Canvas& canvas, const Panel& panel, double x) {
    PanelFrame frame(canvas, x, 20);
    double high = 0;
    std::map<int, std::vector<std::pair<double, Summary>>> curves;
    for (const auto& [configuration, metrics] : data_.by_configuration) {
      const std::vector<double>* values = find_metric(metrics, panel.metric);
      if (!values) continue;
      const Summary s = summary_of(*values);
      curves[configuration.ranks].emplace_back(place(configuration.batch), s);
      high = std::max(high, panel.band ? s.q3 : s.median);
    }
    const double low_x = place(*batches_.begin()), high_x = place(*batches_.rbegin());
    const double pad = std::max(0.4, (high_x - low_x) * 0.06);
    frame.set_range(low_x - pad, high_x + pad, 0, high * 1.08);
    std::vector<std::pair<double, std::string>> ticks;
    for (int batch : batches_) ticks.emplace_back(place(batch), batch_label(batch));
    frame.axes(panel.title, "batch size", panel.unit, ticks);
    std::size_t k = 0;
    for (const auto& [ranks, points] : curves) {
      const Ink colour = ink(kColours[k++ % std::size(kColours)]);
      std::vector<std::pair<double, double>> line, band;
      for (const auto& [batch, s] : points) line.push_back(frame.at(batch, s.median));
      for (const auto& [batch, s] : points) band.push_back(frame.at(batch, s.q3));
      for (auto point = points.rbegin(); point != points.rend(); ++point)
        band.push_back(frame.at(point->first, point->second.q1));
      Ink faint = colour;
      faint.opacity = 0.18;
      if (panel.band && points.size() > 1) canvas.polygon(band, faint);
      canvas.polyline(line, colour, 1.6);
      for (const auto& [px, py] : line) canvas.rectangle(px - 1.8, py - 1.8, 3.6, 3.6, colour);
    }
  }

  void draw_legend(Canvas& canvas, const std::vector<LegendPlace>& places) {
    std::size_t k = 0;
    for (int ranks : ranks_) {
      const double x = places[k].x, y = kPanelHeight + 36 + kLegendLine * places[k].line;
      const Ink colour = ink(kColours[k++ % std::size(kColours)]);
      canvas.rectangle(x, y - 7, 14, 4, colour);
      canvas.text(x + 18, y - 2, std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"), {.size = 9.5});
    }
  }

  void histograms() {
    if (!has("all_compute")) return;
    const double width = kPanelWidth * static_cast<double>(ranks_.size());
    const double height = kPanelHeight * static_cast<double>(batches_.size()) + 28;
    draw("compute_time_distributions", width, height, [&](Canvas& canvas) {
      canvas.text(width / 2, 18,
                  (o_.title.empty() ? o_.label : o_.title) + ": compute time, 1st to 99th percentile",
                  {.size = 13, .anchor = Anchor::Middle, .bold = true});
      double y = 24;
      for (int batch : batches_) {
        double x = 0;
        for (int ranks : ranks_) {
          const auto found = data_.by_configuration.find({ranks, batch});
          if (found != data_.by_configuration.end()) histogram(canvas, found->first, found->second, x, y);
          x += kPanelWidth;
        }
        y += kPanelHeight;
      }
    });
  }

  static void histogram(Canvas& canvas, const Configuration& configuration, const Metrics& metrics, double x,
                        double y) {
    const std::vector<double>* all = find_metric(metrics, "all_compute");
    if (!all || all->empty()) return;
    const std::vector<double> values = trimmed(*all);
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    const double low = *least, span = std::max(*most - *least, 1e-9);
    // The kit has 200; with few values that is a comb.
    const std::size_t bins = std::clamp<std::size_t>(values.size() / 4, 8, 200);
    std::vector<double> density(bins);
    for (double value : values) {
      const auto bin =
          std::min(bins - 1, static_cast<std::size_t>((value - low) / span * static_cast<double>(bins)));
      density[bin] += static_cast<double>(bins) / (span * static_cast<double>(values.size()));
    }
    const double mu = mean_of(values), std = std::max(population_std(values), 1e-12);
    const auto normal = [&](double t) {
      return std::exp(-0.5 * (t - mu) * (t - mu) / (std * std)) / (std * 2.5066282746310002);
    };
    const double top = std::max(*std::max_element(density.begin(), density.end()), normal(mu)) * 1.1;
    PanelFrame frame(canvas, x, y);
    frame.set_range(low, low + span, 0, top);
    std::vector<std::pair<double, std::string>> ticks;
    for (double tick : ticks_between(low, low + span, 4)) ticks.emplace_back(tick, short_number(tick));
    frame.axes(std::to_string(configuration.ranks) + (configuration.ranks == 1 ? " rank" : " ranks") +
                   ", batch " + batch_label(configuration.batch),
               "seconds", "density", ticks);
    for (std::size_t b = 0; b < bins; ++b) {
      const double t = low + span * static_cast<double>(b) / static_cast<double>(bins);
      const auto [left, up] = frame.at(t, density[b]);
      const auto [right, down] = frame.at(t + span / static_cast<double>(bins), 0);
      if (density[b] > 0)
        canvas.rectangle(left, up, std::max(0.3, right - left - 0.2), down - up, ink("#8fb8de"));
    }
    std::vector<std::pair<double, double>> curve;
    for (int i = 0; i <= 80; ++i) curve.push_back(frame.at(low + span * i / 80, normal(low + span * i / 80)));
    canvas.polyline(curve, ink("#d62728"), 1.4);
    const auto [text_x, text_y] = frame.at(low + span, top);
    const std::string lines[] = {"mu " + short_number(mu), "std " + short_number(std),
                                 "N " + std::to_string(values.size())};
    for (std::size_t i = 0; i < std::size(lines); ++i)
      canvas.text(text_x - 2, text_y + 12 + 11 * static_cast<double>(i), lines[i],
                  {.size = 8.5, .anchor = Anchor::End});
  }

  const StepData& data_;
  const ChartOptions& o_;
  std::set<int> ranks_, batches_;
  std::vector<std::string> written_;
  Problems problems_;
};

}  // namespace

Result<std::vector<std::string>> draw_charts(const StepData& data, const ChartOptions& options) {
  return ChartMaker(data, options).run();
}

}  // namespace millrace
