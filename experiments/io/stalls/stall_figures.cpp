#include "experiments/io/stalls/stall_figures.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "experiments/drawing/canvas.h"
#include "runtime/base/files.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

// ---- measuring

FigurePoint point_of(StallJob job, const StepTime& step) {
  const double step_s = step.compute_s + step.copy_s;
  job.computation = {.a = step_s};
  const TimedPhases times = time_phases(job);
  const double copy_share = step_s > 0 ? step.copy_s / step_s : 0;
  FigurePoint point{.model = step.model,
                    .cache = job.cache_fraction,
                    .policy = job.policy,
                    .threads = job.decode_threads,
                    .samples = static_cast<std::int64_t>(job.source.files.size()),
                    .hit_ratio = times.hit_ratio,
                    .miss_bytes = times.miss_bytes};
  const auto samples = static_cast<double>(point.samples);
  const std::vector<EpochSplit>& all = times.repeats;
  point.epoch_s = estimate_over(all, [](const EpochSplit& s) { return s.total(); });
  point.speed = estimate_over(all, [&](const EpochSplit& s) { return samples / s.total(); });
  point.compute_s = estimate_over(all, [&](const EpochSplit& s) { return s.compute_s * (1 - copy_share); });
  point.copy_s = estimate_over(all, [&](const EpochSplit& s) { return s.compute_s * copy_share; });
  point.preparation_s = estimate_over(all, [](const EpochSplit& s) { return s.preparation_s; });
  point.fetch_s = estimate_over(all, [](const EpochSplit& s) { return s.fetch_s; });
  point.preparation_share =
      estimate_over(all, [](const EpochSplit& s) { return s.preparation_s / s.total(); });
  point.fetch_share = estimate_over(all, [](const EpochSplit& s) { return s.fetch_s / s.total(); });
  return point;
}

// ---- drawing

constexpr double kHeight = 300, kLeft = 62, kRight = 16, kTop = 40, kBottom = 76;
constexpr const char* kColours[] = {"#4269d0", "#efb118", "#ff725c", "#6cc5b0",
                                    "#3ca951", "#a463f2", "#9c6b4e", "#9498a0"};

struct Stack {
  std::string label;
  std::vector<double> parts;
  double half = 0;  ///< of the whole
};
struct Dots {
  std::string name;
  std::vector<std::pair<double, Estimate>> points;  ///< x: of stacks their place, from 0
  bool joined = true;
};
struct Picture {
  std::string title, x_label, y_label;
  std::vector<std::string> parts;  ///< names, from below
  std::vector<Stack> stacks;
  std::vector<Dots> dots;
};

double width_of(const Picture& picture) {
  return std::max(460.0, kLeft + kRight + 62 * static_cast<double>(picture.stacks.size()));
}

constexpr double kLegendLine = 13, kLegendMark = 11;

struct LegendEntry {
  std::string name;
  LegendPlace place;
};

/// Returns the entries of the picture's legend. A picture of one thing has none.
std::vector<LegendEntry> legend_of(const Picture& picture) {
  std::vector<LegendEntry> entries;
  for (const std::string& part : picture.parts) entries.push_back({part, {}});
  for (const Dots& dots : picture.dots) entries.push_back({dots.name, {}});
  if (entries.size() < 2) return {};
  std::vector<double> widths;
  for (LegendEntry& entry : entries) {
    entry.name = clipped(entry.name, 70);
    widths.push_back(kLegendMark + 4.6 * static_cast<double>(entry.name.size()));
  }
  const std::vector<LegendPlace> places = legend_places(widths, kLeft, width_of(picture) - 4, 9);
  for (std::size_t i = 0; i < entries.size(); ++i) entries[i].place = places[i];
  return entries;
}

/// Lines of the legend after the first come below the picture's usual height.
double height_of(const Picture& picture) {
  const std::vector<LegendEntry> legend = legend_of(picture);
  return kHeight + (legend.empty() ? 0 : kLegendLine * legend.back().place.line);
}

class Painter {
 public:
  Painter(const Picture& picture, Canvas& canvas) : p_(picture), canvas_(canvas), width_(width_of(picture)) {}

  void paint() {
    find_ranges();
    axes();
    for (std::size_t i = 0; i < p_.stacks.size(); ++i) stack(p_.stacks[i], static_cast<double>(i));
    for (std::size_t i = 0; i < p_.dots.size(); ++i) dots(p_.dots[i], colour(p_.parts.size() + i));
    legend();
  }

 private:
  static Ink colour(std::size_t i) { return ink(kColours[i % std::size(kColours)]); }
  double x_of(double x) const { return kLeft + (x - low_) / (high_ - low_) * (width_ - kLeft - kRight); }
  double y_of(double y) const { return kHeight - kBottom - y / top_ * (kHeight - kTop - kBottom); }

  void find_ranges() {
    low_ = -0.6, high_ = static_cast<double>(p_.stacks.size()) - 0.4;
    double most = 0;
    for (const Stack& stack : p_.stacks) {
      double sum = stack.half;
      for (const double part : stack.parts) sum += part;
      most = std::max(most, sum);
    }
    double last = 0;
    for (const Dots& dots : p_.dots)
      for (const auto& [x, y] : dots.points) most = std::max(most, y.mean + y.half), last = std::max(last, x);
    if (p_.stacks.empty()) low_ = 0, high_ = std::max(1.0, last * 1.04);
    top_ = most > 0 ? most * 1.05 : 1;
  }

  void axes() {
    const Ink grey = ink("#dddddd"), dark = ink("#444444");
    for (const double tick : ticks_between(0, top_, 5)) {
      canvas_.line(kLeft, y_of(tick), width_ - kRight, y_of(tick), grey, 0.6);
      canvas_.text(kLeft - 5, y_of(tick) + 3, short_number(tick), {.size = 8.5, .anchor = Anchor::End});
    }
    const auto mark = [&](double x, const std::string& text, double lower = 0) {
      canvas_.text(x_of(x), kHeight - kBottom + 13 + lower, text, {.size = 8.5, .anchor = Anchor::Middle});
    };
    // Long names stand in two rows.
    for (std::size_t i = 0; i < p_.stacks.size(); ++i) {
      const std::string& label = p_.stacks[i].label;
      mark(static_cast<double>(i), label, i % 2 == 1 && label.size() > 6 ? 11 : 0);
    }
    if (p_.stacks.empty()) {
      std::set<double> places;
      for (const Dots& dots : p_.dots)
        for (const auto& [x, y] : dots.points) places.insert(x);
      for (const double x : places) mark(x, short_number(x));
    }
    canvas_.line(kLeft, kTop, kLeft, kHeight - kBottom, dark, 0.8);
    canvas_.line(kLeft, kHeight - kBottom, width_ - kRight, kHeight - kBottom, dark, 0.8);
    canvas_.text(width_ / 2, 20, p_.title, {.size = 11.5, .anchor = Anchor::Middle, .bold = true});
    canvas_.text((kLeft + width_ - kRight) / 2, kHeight - kBottom + 40, p_.x_label,
                 {.size = 9.5, .anchor = Anchor::Middle});
    canvas_.text(16, (kTop + kHeight - kBottom) / 2, p_.y_label,
                 {.size = 9.5, .anchor = Anchor::Middle, .upwards = true});
  }

  void whisker(double x, const Estimate& value) {
    if (value.half <= 0) return;
    const Ink dark = ink("#222222");
    const double low = y_of(std::max(0.0, value.mean - value.half)), high = y_of(value.mean + value.half);
    canvas_.line(x, low, x, high, dark, 1);
    canvas_.line(x - 3, low, x + 3, low, dark, 1);
    canvas_.line(x - 3, high, x + 3, high, dark, 1);
  }

  void stack(const Stack& stack, double place) {
    const double left = x_of(place - 0.3), width = x_of(place + 0.3) - left;
    double sum = 0;
    for (std::size_t i = 0; i < stack.parts.size(); ++i) {
      const double from = sum;
      sum += stack.parts[i];
      if (stack.parts[i] > 0) canvas_.rectangle(left, y_of(sum), width, y_of(from) - y_of(sum), colour(i));
    }
    whisker(x_of(place), {sum, stack.half});
  }

  void dots(const Dots& dots, Ink ink) {
    std::vector<std::pair<double, double>> line;
    for (const auto& [x, y] : dots.points) line.emplace_back(x_of(x), y_of(y.mean));
    if (dots.joined && line.size() > 1) canvas_.polyline(line, ink, 1.4);
    for (const auto& [x, y] : dots.points) {
      whisker(x_of(x), y);
      canvas_.rectangle(x_of(x) - 2.5, y_of(y.mean) - 2.5, 5, 5, ink);
    }
  }

  void legend() {
    const std::vector<LegendEntry> entries = legend_of(p_);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const double x = entries[i].place.x, y = kHeight - 18 + kLegendLine * entries[i].place.line;
      canvas_.rectangle(x, y, 8, 8, colour(i));
      canvas_.text(x + kLegendMark, y + 7.5, entries[i].name, {.size = 8.5});
    }
  }

  const Picture& p_;
  Canvas& canvas_;
  double width_;
  double low_ = 0, high_ = 1, top_ = 1;
};

std::string percent(double share) {
  return printed("%.0f", 100 * share);
}

Estimate scaled(const Estimate& value, double factor) {
  return {value.mean * factor, value.half * factor};
}

Picture picture_of(const FigurePlan& plan, const std::vector<FigurePoint>& points) {
  const std::string where = plan.job.storage.name;
  Picture picture;
  switch (plan.figure) {
    case StallFigure::FetchByModel:
    case StallFigure::PreparationByModel: {
      const bool fetch = plan.figure == StallFigure::FetchByModel;
      picture.title =
          fetch ? "Fetch stall, " + percent(points.front().cache) + " % of the data cached (" + where + ")"
                : "Preparation stall, all data cached, " + std::to_string(points.front().threads) +
                      " decoding threads";
      picture.x_label = "model", picture.y_label = "% of the epoch";
      picture.parts = {fetch ? "fetch stall" : "preparation stall"};
      for (const FigurePoint& point : points) {
        const Estimate share = scaled(fetch ? point.fetch_share : point.preparation_share, 100);
        picture.stacks.push_back({point.model, {share.mean}, share.half});
      }
      break;
    }
    case StallFigure::EpochByCache:
    case StallFigure::EpochAndIdeal: {
      const CachePolicy policy = plan.job.policy;
      picture.title =
          "An epoch of " + points.front().model + " (" + where + ", " + to_string(policy) + " cache)";
      picture.x_label = "cached % of the data", picture.y_label = "seconds";
      picture.parts = {"computation", "copy to the device", "preparation stall", "fetch stall"};
      Dots ideal{.name = "epoch, MinIO", .points = {}, .joined = false};
      for (const FigurePoint& point : points) {
        if (point.policy != policy) {
          ideal.points.emplace_back(static_cast<double>(ideal.points.size()), point.epoch_s);
          continue;
        }
        picture.stacks.push_back(
            {percent(point.cache),
             {point.compute_s.mean, point.copy_s.mean, point.preparation_s.mean, point.fetch_s.mean},
             point.epoch_s.half});
      }
      if (!ideal.points.empty()) picture.dots.push_back(std::move(ideal));
      break;
    }
    case StallFigure::SpeedByThreads:
      picture.title = "Speed by decoding threads, all data cached";
      picture.x_label = "decoding threads", picture.y_label = "samples / s";
      for (const FigurePoint& point : points) {
        if (picture.dots.empty() || picture.dots.back().name != point.model)
          picture.dots.push_back({point.model, {}});
        picture.dots.back().points.emplace_back(point.threads, point.speed);
      }
      break;
  }
  return picture;
}

std::string csv_of(const FigurePlan& plan, const std::vector<FigurePoint>& points) {
  std::string text =
      "figure,model,cache_fraction,policy,storage,decode_threads,batch,samples,repeats,epoch_s,epoch_half_95,"
      "samples_per_s,samples_per_s_half_95,compute_s,copy_s,preparation_s,preparation_half_95,fetch_s,"
      "fetch_half_95,preparation_share,preparation_share_half_95,fetch_share,fetch_share_half_95,hit_ratio,"
      "miss_bytes\n";
  for (const FigurePoint& p : points)
    text += printed(
        "%s,%s,%g,%s,\"%s\",%d,%lld,%lld,%d,%.6g,%.3g,%.6g,%.3g,%.6g,%.6g,%.6g,%.3g,%.6g,%.3g,%.6f,"
        "%.6f,%.6f,%.6f,%.6f,%lld\n",
        to_string(plan.figure).c_str(), p.model.c_str(), p.cache, to_string(p.policy).c_str(),
        plan.job.storage.name.c_str(), p.threads, static_cast<long long>(plan.job.batch),
        static_cast<long long>(p.samples), plan.job.repeats, p.epoch_s.mean, p.epoch_s.half, p.speed.mean,
        p.speed.half, p.compute_s.mean, p.copy_s.mean, p.preparation_s.mean, p.preparation_s.half,
        p.fetch_s.mean, p.fetch_s.half, p.preparation_share.mean, p.preparation_share.half,
        p.fetch_share.mean, p.fetch_share.half, p.hit_ratio, static_cast<long long>(p.miss_bytes));
  return text;
}

}  // namespace

std::vector<FigurePoint> measure_figure(
    const FigurePlan& plan, const std::function<void(std::int64_t done, std::int64_t total)>& tell) {
  struct One {
    StepTime step;
    StallJob job;
  };
  std::vector<One> all;
  const auto add = [&](const StepTime& step, double cache, CachePolicy policy, int threads) {
    all.push_back({step, plan.job});
    StallJob& job = all.back().job;
    job.cache_fraction = cache, job.policy = policy, job.decode_threads = threads;
  };
  for (const StepTime& step : plan.models) {
    switch (plan.figure) {
      case StallFigure::FetchByModel:
        add(step, plan.caches.front(), plan.job.policy, plan.threads.front());
        break;
      case StallFigure::PreparationByModel:
        add(step, 1, plan.job.policy, plan.threads.front());
        break;
      case StallFigure::SpeedByThreads:
        for (const int threads : plan.threads) add(step, 1, plan.job.policy, threads);
        break;
      case StallFigure::EpochByCache:
      case StallFigure::EpochAndIdeal:
        for (const double cache : plan.caches) {
          add(step, cache, plan.job.policy, plan.threads.front());
          if (plan.figure == StallFigure::EpochAndIdeal)
            add(step, cache, CachePolicy::MinIo, plan.threads.front());
        }
        break;
    }
  }
  std::vector<FigurePoint> points;
  for (const One& one : all) {
    points.push_back(point_of(one.job, one.step));
    tell(static_cast<std::int64_t>(points.size()), static_cast<std::int64_t>(all.size()));
  }
  return points;
}

Result<std::vector<std::string>> write_figure(const std::string& folder, const FigurePlan& plan,
                                              const std::vector<FigurePoint>& points) {
  const std::string base = (std::filesystem::path(folder) / ("figure" + to_string(plan.figure))).string();
  std::vector<std::string> files{base + ".csv"};
  if (const Status written = write_file_atomically(files[0], csv_of(plan, points)); !written)
    return written.problems();
  const Picture picture = picture_of(plan, points);
  for (const char* ending : {".svg", ".png"}) {
    files.push_back(base + ending);
    Result<std::unique_ptr<Canvas>> canvas = make_canvas(files.back(), width_of(picture), height_of(picture));
    if (!canvas) return canvas.problems();
    Painter(picture, **canvas).paint();
    if (const Status done = (*canvas)->finish(); !done) return done.problems();
  }
  return files;
}

}  // namespace millrace
