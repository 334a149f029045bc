#include "experiments/io/trace/timeline_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "experiments/drawing/canvas.h"
#include "experiments/io/trace/civil_time.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

constexpr double kWide = 1080, kNarrow = 540;  // points: 15 and 7.5 inches
constexpr double kMarginLeft = 74, kMarginTop = 30, kMarginBottom = 34;
constexpr double kSampleHeight = 88, kLaneHeight = 22, kGap = 16, kPhaseHeight = 26;
constexpr double kColumnsPerPoint = 2;  // at 150 dpi a column is a pixel

struct TypeStyle {
  const char* name;
  const char* colour;
  int lane;  ///< 0: block I/O, 1: calls into the file system, 2: opens
  int half;  ///< 0: upper half of the lane, 1: lower
};
constexpr TypeStyle kTypes[] = {{"block read", "#1f6fb4", 0, 0},
                                {"block write", "#d62728", 0, 1},
                                {"open", "#7b3fa0", 2, 0},
                                {"read", "#2c9c3f", 1, 0},
                                {"write", "#e07b00", 1, 1}};
constexpr const char* kLaneNames[] = {"BIO", "VFS", "OPEN"};
constexpr const char* kPhaseColours[] = {"#4c78d8", "#e6b800", "#8a4fd0", "#d43f9c"};

struct Curve {
  std::string column, name, colour;
};

double width_of(const PlotOptions& options) {
  return options.narrow ? kNarrow : kWide;
}

/// Room for the legend; in a paper only for the memory's scale.
double right_margin(const PlotOptions& options) {
  return options.paper ? 36 : 118;
}

/// "MB/s" axes end at a round value above the data.
double round_up(double value) {
  const std::vector<double> ticks = ticks_between(0, std::max(value, 1e-9) * 1.15, 4);
  return std::max(ticks.back(), value);
}

class TimelinePainter {
 public:
  TimelinePainter(const TimelinePicture& picture, const PlotOptions& options)
      : p_(picture), o_(options), width_(width_of(options)) {}

  double height() const {
    double total = kMarginTop + kMarginBottom + kPhaseHeight + kGap;
    for (const SampleTable* table : {cpu(), gpu(), disk()}) total += table ? kSampleHeight + kGap : 0;
    return total + static_cast<double>(p_.groups.size()) * (3 * kLaneHeight + kGap);
  }
  double width() const { return width_; }

  void paint(Canvas& canvas) {
    canvas_ = &canvas;
    canvas.text(kMarginLeft, 18, title(), {.size = 12.5, .bold = true});
    y_ = kMarginTop;
    if (cpu())
      samples(*cpu(), "CPU %", 100,
              {{"user", "user", "#2c9c3f"},
               {"system", "system", "#d62728"},
               {"I/O wait", "I/O wait", "#1f6fb4"},
               {"stolen", "stolen", "#7b3fa0"},
               {"idle", "idle", "#9a9a9a"}});
    if (gpu()) paint_gpu();
    if (disk())
      samples(*disk(), "disk MB/s", 0,
              {{"read MB/s", "read", "#1f6fb4"}, {"written MB/s", "written", "#d62728"}});
    for (const GroupColumns& group : p_.groups) paint_group(group);
    paint_phases();
    paint_axis();
  }

 private:
  const SampleTable* cpu() const { return !o_.paper && p_.timeline->cpu ? &*p_.timeline->cpu : nullptr; }
  const SampleTable* gpu() const { return p_.timeline->gpu ? &*p_.timeline->gpu : nullptr; }
  const SampleTable* disk() const { return !o_.paper && p_.timeline->disk ? &*p_.timeline->disk : nullptr; }
  double right() const { return width_ - right_margin(o_); }
  double plot_width() const { return right() - kMarginLeft; }

  double x_of(std::int64_t time) const {
    const double share =
        static_cast<double>(time - p_.window.from) / static_cast<double>(p_.window.to - p_.window.from);
    return kMarginLeft + share * plot_width();
  }
  double seconds(std::int64_t time) const { return static_cast<double>(time - p_.extent.first) / 1e9; }

  std::string title() const {
    std::string text = o_.title;
    if (!p_.window.name.empty()) {
      text += (text.empty() ? "" : ", ") + p_.window.name +
              printed(": %.3f s to %.3f s", seconds(p_.window.from), seconds(p_.window.to));
    }
    return text;
  }

  void frame(double height) {
    const Ink grey = ink("#bbbbbb");
    for (double y : {y_, y_ + height}) canvas_->line(kMarginLeft, y, right(), y, grey, 0.6);
    for (double x : {kMarginLeft, right()}) canvas_->line(x, y_, x, y_ + height, grey, 0.6);
  }

  void scale(double top, double height, bool at_right) {
    for (double tick : ticks_between(0, top, 4)) {
      const double y = y_ + height - tick / top * height;
      if (!at_right) canvas_->line(kMarginLeft, y, right(), y, ink("#eeeeee"), 0.6);
      canvas_->text(at_right ? right() + 4 : kMarginLeft - 5, y + 3, short_number(tick),
                    {.size = 8.5, .anchor = at_right ? Anchor::Start : Anchor::End});
    }
  }

  /// Lines between samples, cut at the frame; a gap where a value is missing.
  void curve(const SampleTable& table, const std::vector<double>& values, double top, double height,
             Ink colour, double divisor = 1) {
    std::vector<std::pair<double, double>> line;
    const auto flush = [&] {
      if (line.size() == 1) line.push_back(line[0]);
      canvas_->polyline(line, colour, 1.1);
      line.clear();
    };
    const auto y_of = [&](double value) {
      return y_ + height - std::clamp(value / divisor / top, 0.0, 1.0) * height;
    };
    // A column of many samples shows the least and the greatest: two points at most.
    const double grain = 1 / kColumnsPerPoint;
    const auto add = [&](double x, double y) {
      if (line.size() > 1 && x - line[line.size() - 2].first < grain) {
        const bool greatest = line.size() % 2 == 0;
        line.back() = {x, greatest ? std::min(line.back().second, y) : std::max(line.back().second, y)};
      } else {
        line.emplace_back(x, y);
      }
    };
    std::pair<double, double> before{0, 0};
    bool has_before = false;
    for (std::size_t i = 0; i < table.times.size(); ++i) {
      if (!std::isfinite(values[i])) {
        flush();
        has_before = false;
        continue;
      }
      const std::pair<double, double> here{x_of(table.times[i]), y_of(values[i])};
      const auto crossing = [&](double x) {
        const double share = (x - before.first) / (here.first - before.first);
        add(x, before.second + share * (here.second - before.second));
      };
      const bool rises = has_before && here.first > before.first;
      if (rises && before.first < kMarginLeft && here.first > kMarginLeft) crossing(kMarginLeft);
      if (here.first >= kMarginLeft && here.first <= right()) add(here.first, here.second);
      if (rises && before.first < right() && here.first > right()) crossing(right());
      before = here;
      has_before = true;
    }
    flush();
  }

  void legend(const std::vector<Curve>& curves, double offset) {
    if (o_.paper) return;
    double y = y_ + 9;
    for (const Curve& c : curves) {
      canvas_->rectangle(right() + offset, y - 5, 10, 3, ink(c.colour));
      canvas_->text(right() + offset + 14, y - 1, c.name, {.size = 8.5});
      y += 12;
    }
  }

  void samples(const SampleTable& table, const std::string& label, double top,
               const std::vector<Curve>& curves) {
    if (top <= 0) {
      for (const Curve& c : curves) {
        const std::vector<double>* values = table.column(c.column);
        for (std::size_t i = 0; values && i < values->size(); ++i) {
          const bool shown = table.times[i] >= p_.window.from && table.times[i] <= p_.window.to;
          if (shown && std::isfinite((*values)[i])) top = std::max(top, (*values)[i]);
        }
      }
      top = round_up(top);
    }
    scale(top, kSampleHeight, false);
    for (const Curve& c : curves) {
      if (const std::vector<double>* values = table.column(c.column))
        curve(table, *values, top, kSampleHeight, ink(c.colour));
    }
    end_panel(label, kSampleHeight, curves, 10);
  }

  void paint_gpu() {
    const SampleTable& table = *gpu();
    scale(100, kSampleHeight, false);
    double memory = 32;  // GB: the kit's GPUs; more where a GPU has more
    if (const auto* fb = table.column("fb")) {
      for (double value : *fb) {
        if (std::isfinite(value) && value / 1000 > memory) memory = round_up(value / 1000);
      }
    }
    scale(memory, kSampleHeight, true);
    const std::vector<Curve> curves{
        {"sm", "SM %", "#2c9c3f"}, {"mem", "memory %", "#e07b00"}, {"fb", "GB used", "#7b3fa0"}};
    for (const Curve& c : curves) {
      const std::vector<double>* values = table.column(c.column);
      const bool megabytes = c.column == "fb";
      if (values)
        curve(table, *values, megabytes ? memory : 100, kSampleHeight, ink(c.colour), megabytes ? 1000 : 1);
    }
    end_panel("GPU %", kSampleHeight, curves, 28);
  }

  void end_panel(const std::string& label, double height, const std::vector<Curve>& curves, double offset) {
    frame(height);
    canvas_->text(20, y_ + height / 2, label, {.size = 10, .anchor = Anchor::Middle, .upwards = true});
    legend(curves, offset);
    y_ += height + kGap;
  }

  void paint_group(const GroupColumns& group) {
    for (std::size_t t = 0; t < std::size(kTypes); ++t) {
      const TypeStyle& style = kTypes[t];
      const bool whole = style.lane == 2;
      const double y = y_ + style.lane * kLaneHeight + (whole ? 1 : 1 + style.half * (kLaneHeight / 2 - 1));
      bars(group.busy[t], y, whole ? kLaneHeight - 2 : kLaneHeight / 2 - 1, ink(style.colour));
    }
    for (int lane = 0; lane < 3; ++lane) {
      const double y = y_ + lane * kLaneHeight;
      if (lane > 0) canvas_->line(kMarginLeft, y, right(), y, ink("#dddddd"), 0.6);
      canvas_->text(kMarginLeft - 5, y + kLaneHeight / 2 + 3, kLaneNames[lane],
                    {.size = 8.5, .anchor = Anchor::End});
    }
    std::vector<Curve> curves;
    for (const TypeStyle& style : kTypes) curves.push_back({"", style.name, style.colour});
    end_panel(group.title, 3 * kLaneHeight, curves, 10);
  }

  /// A column's height is the share of its time that calls cover, at least a hair: little is seen as little.
  /// Columns of the same height become one bar.
  void bars(const std::vector<float>& busy, double y, double height, const Ink& colour) {
    constexpr int kSteps = 24;
    constexpr double kHair = 1.3;  // a lonely call stays visible
    const double column = plot_width() / static_cast<double>(busy.size());
    const auto level_of = [&](float share) {
      return share <= 0 ? 0 : std::clamp(static_cast<int>(std::lround(share * kSteps)), 1, kSteps);
    };
    for (std::size_t c = 0; c < busy.size();) {
      const int level = level_of(busy[c]);
      std::size_t end = c + 1;
      while (end < busy.size() && level_of(busy[end]) == level) ++end;
      if (level > 0) {
        const double high = std::max(kHair, height * level / kSteps);
        canvas_->rectangle(kMarginLeft + column * static_cast<double>(c), y + height - high,
                           std::max(kHair, column * static_cast<double>(end - c)), high, colour);
      }
      c = end;
    }
  }

  /// Phases that share a column share its height. Ticks where phases start stand above the strip, and only
  /// where they stand apart: many would hide what they point at.
  void paint_phases() {
    constexpr double kTicksApart = 4;
    const std::size_t columns = plot_columns(o_);
    const double column = plot_width() / static_cast<double>(columns);
    std::vector<std::array<double, std::size(kPhaseColours)>> shares(columns);
    double last_tick = -INFINITY;
    for (const PhaseSpan& span : p_.timeline->phases) {
      if (span.end < p_.window.from || span.start > p_.window.to) continue;
      const auto place = [&](std::int64_t time) {
        return (x_of(std::clamp(time, p_.window.from, p_.window.to)) - kMarginLeft) / column;
      };
      const double from = place(span.start), to = place(span.end);
      for (auto c = static_cast<std::size_t>(from); c < columns && static_cast<double>(c) < to; ++c) {
        const auto left = static_cast<double>(c);
        shares[c][static_cast<std::size_t>(span.phase)] += std::min(to, left + 1) - std::max(from, left);
      }
      const double x = kMarginLeft + from * column;
      if (span.start < p_.window.from || x - last_tick < kTicksApart) continue;
      canvas_->line(x, y_ - 5, x, y_, ink("#222222"), 0.8);
      last_tick = x;
    }
    for (std::size_t c = 0; c < columns;) {
      std::size_t end = c + 1;
      while (end < columns && shares[end] == shares[c]) ++end;
      double y = y_ + kPhaseHeight;
      for (std::size_t p = 0; p < shares[c].size(); ++p) {
        const double high = std::min(shares[c][p], 1.0) * kPhaseHeight;
        if (!(high > 0)) continue;
        y -= high;
        canvas_->rectangle(kMarginLeft + column * static_cast<double>(c), y,
                           column * static_cast<double>(end - c), high, ink(kPhaseColours[p]));
      }
      c = end;
    }
    for (const PhaseSpan& span : p_.timeline->phases) {
      if (span.end < p_.window.from || span.start > p_.window.to) continue;
      const double x1 = x_of(std::max(span.start, p_.window.from)),
                   x2 = x_of(std::min(span.end, p_.window.to));
      const std::string name = kPhaseNames[static_cast<std::size_t>(span.phase)];
      if (x2 - x1 > 6.2 * static_cast<double>(name.size()))
        canvas_->text((x1 + x2) / 2, y_ + kPhaseHeight / 2 + 3, name,
                      {.size = 8.5, .anchor = Anchor::Middle, .colour = {255, 255, 255, 1}, .bold = true});
    }
    if (!o_.paper) {
      double y = y_ + 4;
      for (std::size_t p = 0; p < std::size(kPhaseColours); ++p, y += 10) {
        canvas_->rectangle(right() + 10, y - 4, 10, 5, ink(kPhaseColours[p]));
        canvas_->text(right() + 24, y + 1, kPhaseNames[p], {.size = 8});
      }
    }
    frame(kPhaseHeight);
    canvas_->text(20, y_ + kPhaseHeight / 2, "phase",
                  {.size = 10, .anchor = Anchor::Middle, .upwards = true});
    y_ += kPhaseHeight;
  }

  void paint_axis() {
    const double from = seconds(p_.window.from), to = seconds(p_.window.to);
    for (double tick : ticks_between(from, to, o_.narrow ? 6 : 12)) {
      const double x = kMarginLeft + (tick - from) / (to - from) * plot_width();
      canvas_->line(x, y_, x, y_ + 4, ink("#444444"), 0.8);
      canvas_->text(x, y_ + 14, short_number(tick), {.size = 9, .anchor = Anchor::Middle});
    }
    canvas_->text((kMarginLeft + right()) / 2, y_ + 28,
                  "seconds since " + iso_text(p_.extent.first, 0) + " UTC",
                  {.size = 9.5, .anchor = Anchor::Middle});
  }

  const TimelinePicture& p_;
  const PlotOptions& o_;
  double width_;
  Canvas* canvas_ = nullptr;
  double y_ = 0;
};

std::optional<TimeWindow> phase_window(const Timeline& timeline, Phase phase) {
  const PhaseSpan* first = nullptr;
  for (const PhaseSpan& span : timeline.phases) {
    if (span.phase == phase && (!first || span.start < first->start)) first = &span;
  }
  if (!first) return std::nullopt;
  return TimeWindow{"", first->start, first->end};
}

/// A moment of --zoom: seconds since the start, or ISO text.
std::optional<std::int64_t> moment_of(std::string_view text, const TimeExtent& extent) {
  if (const auto iso = parse_iso(text)) return iso;
  const std::optional<double> seconds = number_of<double>(text);
  if (!seconds || !std::isfinite(*seconds) || std::abs(*seconds) > 1e9) return std::nullopt;
  return extent.first + static_cast<std::int64_t>(*seconds * 1e9);
}

}  // namespace

std::size_t plot_columns(const PlotOptions& options) {
  return static_cast<std::size_t>((width_of(options) - kMarginLeft - right_margin(options)) *
                                  kColumnsPerPoint);
}

const std::vector<std::string>& zoom_names() {
  static const std::vector<std::string> names{"init",        "first-5min", "first-training",
                                              "first-epoch", "first-eval", "first-checkpoint",
                                              "last-2min",   "last-5s"};
  return names;
}

Result<TimeExtent> extent_of(const Timeline& timeline, const std::vector<TimelineGroup>& groups) {
  TimeExtent extent{INT64_MAX, INT64_MIN};
  const auto take = [&](std::int64_t time) {
    extent.first = std::min(extent.first, time);
    extent.last = std::max(extent.last, time);
  };
  for (const auto* table : {&timeline.cpu, &timeline.gpu}) {
    for (std::int64_t time : *table ? (*table)->times : std::vector<std::int64_t>{}) take(time);
  }
  for (const PhaseSpan& span : timeline.phases) take(span.start), take(span.end);
  for (const TimelineGroup& group : groups) {
    const Result<EventCounts> counts = for_each_event(group.file, [&](const TraceEvent& event) {
      take(event.start);
      take(event.end);
    });
    if (!counts) return counts.problems();
  }
  if (extent.last <= extent.first)
    return Problem{timeline.folder, "has no stretch of time to draw", "was the run preprocessed whole?"};
  return extent;
}

Result<TimeWindow> parse_zoom(const std::string& text, const Timeline& timeline, const TimeExtent& extent) {
  TimeWindow window{text, extent.first, extent.last};
  const std::size_t dots = text.find("..");
  if (dots != std::string::npos) {
    const auto from = moment_of(std::string_view(text).substr(0, dots), extent);
    const auto to = moment_of(std::string_view(text).substr(dots + 2), extent);
    if (!from || !to || *from >= *to)
      return Problem{"--zoom", "'" + text + "' is no stretch of time", "for example 12.5..30, in seconds"};
    if (*to <= extent.first || *from >= extent.last)
      return Problem{
          "--zoom", "'" + text + "' lies outside of the run",
          "it lasts " + short_number(static_cast<double>(extent.last - extent.first) / 1e9) + " s"};
    return TimeWindow{text, *from, *to};
  }
  const std::vector<std::string>& names = zoom_names();
  if (std::find(names.begin(), names.end(), text) == names.end()) {
    const std::optional<std::string> nearest = nearest_name(text, names);
    return Problem{
        "--zoom", "'" + text + "' is no stretch of time",
        nearest ? "did you mean " + *nearest + "?" : "FROM..TO in seconds, init, first-epoch, last-5s, ..."};
  }
  constexpr std::int64_t kMargin = 5 * kSecond;
  if (text == "first-5min") {
    window.to = extent.first + 300 * kSecond;
  } else if (text == "last-2min") {
    window.from = extent.last - 120 * kSecond;
  } else if (text == "last-5s") {
    window.from = extent.last - 5 * kSecond;
  } else {
    const Phase phase = text == "init"               ? Phase::Init
                        : text == "first-eval"       ? Phase::Eval
                        : text == "first-checkpoint" ? Phase::Checkpoint
                                                     : Phase::Training;
    const std::optional<TimeWindow> found = phase_window(timeline, phase);
    if (!found)
      return Problem{"--zoom", "the run has no " + std::string(kPhaseNames[static_cast<std::size_t>(phase)]),
                     ""};
    window.from = found->from;
    window.to = found->to;
  }
  window.from = std::max(extent.first, window.from - kMargin);
  window.to = std::min(extent.last, window.to + kMargin);
  return window;
}

Result<std::vector<GroupColumns>> group_columns(const std::vector<TimelineGroup>& groups,
                                                const TimeWindow& window, std::size_t columns) {
  std::vector<GroupColumns> all;
  const double column_ns = static_cast<double>(window.to - window.from) / static_cast<double>(columns);
  for (const TimelineGroup& group : groups) {
    GroupColumns one{group.title,
                     std::vector<std::vector<float>>(kEventNames.size(), std::vector<float>(columns)),
                     std::vector<std::int64_t>(kEventNames.size())};
    const Result<EventCounts> counts = for_each_event(group.file, [&](const TraceEvent& event) {
      if (event.end < window.from || event.start > window.to) return;
      ++one.events[event.type];
      const double from = static_cast<double>(std::max(event.start, window.from) - window.from) / column_ns;
      const double to = static_cast<double>(std::min(event.end, window.to) - window.from) / column_ns;
      const auto first = std::min(columns - 1, static_cast<std::size_t>(from));
      const auto last = std::min(columns - 1, static_cast<std::size_t>(to));
      std::vector<float>& busy = one.busy[event.type];
      if (first == last) {
        busy[first] += static_cast<float>(std::max(to - from, 1e-6));
        return;
      }
      busy[first] += static_cast<float>(static_cast<double>(first) + 1 - from);
      for (std::size_t c = first + 1; c < last; ++c) busy[c] += 1;
      busy[last] += static_cast<float>(to - static_cast<double>(last));
    });
    if (!counts) return counts.problems();
    all.push_back(std::move(one));
  }
  return all;
}

Status draw_timeline(const TimelinePicture& picture, const PlotOptions& options, const std::string& path) {
  TimelinePainter painter(picture, options);
  Result<std::unique_ptr<Canvas>> canvas = make_canvas(path, painter.width(), painter.height());
  if (!canvas) return canvas.problems();
  painter.paint(**canvas);
  return (*canvas)->finish();
}

}  // namespace millrace
