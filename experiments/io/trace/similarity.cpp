#include "experiments/io/trace/similarity.h"

#include <algorithm>
#include <cmath>

#include "experiments/io/trace/civil_time.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

/// The line on which the intervals of a phase lie one behind the other.
class PhaseLine {
 public:
  void add(std::int64_t start, std::int64_t end) { spans_.push_back({start, end, 0}); }
  /// Overlapping intervals become one.
  void close() {
    std::sort(spans_.begin(), spans_.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
    std::vector<Span> joined;
    for (const Span& span : spans_) {
      if (!joined.empty() && span.start <= joined.back().end) {
        joined.back().end = std::max(joined.back().end, span.end);
      } else {
        joined.push_back(span);
      }
    }
    spans_ = std::move(joined);
    for (Span& span : spans_) {
      span.before = length_;
      length_ += span.end - span.start;
    }
  }
  std::int64_t length() const { return length_; }
  /// Nothing if the moment is in none of them.
  std::optional<std::int64_t> place(std::int64_t at) const {
    const auto after = std::upper_bound(spans_.begin(), spans_.end(), at,
                                        [](std::int64_t t, const Span& span) { return t < span.start; });
    if (after == spans_.begin()) return std::nullopt;
    const Span& span = *std::prev(after);
    if (at >= span.end && !(at == span.start && span.start == span.end)) return std::nullopt;
    return span.before + (at - span.start);
  }
  /// The end of the interval that holds `at`, as a place: events are clipped there.
  std::int64_t end_of(std::int64_t at) const {
    const auto after = std::upper_bound(spans_.begin(), spans_.end(), at,
                                        [](std::int64_t t, const Span& span) { return t < span.start; });
    const Span& span = *std::prev(after);
    return span.before + (span.end - span.start);
  }

 private:
  struct Span {
    std::int64_t start, end, before;
  };
  std::vector<Span> spans_;
  std::int64_t length_ = 0;
};

double lesser_over_greater(double a, double b) {
  return std::max(a, b) > 0 ? std::min(a, b) / std::max(a, b) : 1;
}

ClassScore score_class(const ClassProfile& a, const ClassProfile& b) {
  ClassScore s;
  s.events_a = a.count;
  s.events_b = b.count;
  s.compared = a.count > 0 || b.count > 0;
  if (a.count == 0 || b.count == 0) return s;
  s.count = lesser_over_greater(static_cast<double>(a.count), static_cast<double>(b.count));
  for (std::size_t i = 0; i < kShapeBins; ++i) {
    s.shape += std::min(static_cast<double>(a.starts[i]) / static_cast<double>(a.count),
                        static_cast<double>(b.starts[i]) / static_cast<double>(b.count));
  }
  s.shape = std::min(1.0, s.shape);
  s.latency = ks_similarity(a.durations, b.durations);
  s.busy = 1 - std::abs(a.busy - b.busy);
  s.score = std::pow(s.count * s.shape * s.latency * s.busy, 0.25);
  // Sums of shares round: the same run is 1.
  if (s.score > 1 - 1e-12) s.score = 1;
  return s;
}

PhaseScore score_phase(const PhaseProfile& a, const PhaseProfile& b) {
  PhaseScore s;
  s.compared = a.seconds > 0 || b.seconds > 0;
  if (!(a.seconds > 0) || !(b.seconds > 0)) return s;
  double weights = 0, sum = 0;
  for (std::size_t c = 0; c < s.classes.size(); ++c) {
    s.classes[c] = score_class(a.classes[c], b.classes[c]);
    const auto events = static_cast<double>(s.classes[c].events_a + s.classes[c].events_b);
    weights += events;
    sum += events * s.classes[c].score;
  }
  s.score = weights > 0 ? sum / weights : 1;
  return s;
}

}  // namespace

Result<RunProfile> profile_run(const Timeline& timeline) {
  const std::vector<TimelineGroup>* groups = timeline.layout("all_combined");
  if (!groups)
    return Problem{timeline.folder, "has no events (pid/all_combined)", "preprocess the run again"};
  RunProfile run;
  std::array<PhaseLine, kPhaseNames.size()> lines;
  for (const PhaseSpan& span : timeline.phases)
    lines[static_cast<std::size_t>(span.phase)].add(span.start, span.end);
  for (std::size_t p = 0; p < lines.size(); ++p) {
    lines[p].close();
    run.phases[p].seconds = static_cast<double>(lines[p].length()) / static_cast<double>(kSecond);
    run.seconds += run.phases[p].seconds;
  }
  // Events come by their start, so the time that is covered so far grows.
  std::array<std::array<std::int64_t, kEventNames.size()>, kPhaseNames.size()> covered{}, busy{};
  const auto take = [&](const TraceEvent& event) {
    bool placed = false;
    for (std::size_t p = 0; p < lines.size(); ++p) {
      const std::optional<std::int64_t> at = lines[p].place(event.start);
      if (!at) continue;
      placed = true;
      ClassProfile& profile = run.phases[p].classes[event.type];
      ++profile.count;
      const auto bin =
          static_cast<std::size_t>(static_cast<long double>(*at) * kShapeBins /
                                   static_cast<long double>(std::max<std::int64_t>(1, lines[p].length())));
      ++profile.starts[std::min(bin, kShapeBins - 1)];
      profile.durations.push_back(static_cast<double>(event.end - event.start) / 1e9);
      const std::int64_t end = std::min(*at + (event.end - event.start), lines[p].end_of(event.start));
      std::int64_t& until = covered[p][event.type];
      busy[p][event.type] += std::max<std::int64_t>(0, end - std::max(until, *at));
      until = std::max(until, end);
    }
    ++(placed ? run.events : run.outside);
  };
  for (const TimelineGroup& group : *groups) {
    const Result<EventCounts> counts = for_each_event(group.file, take);
    if (!counts) return counts.problems();
  }
  if (run.events == 0)
    return Problem{timeline.folder, "has no event in any phase: there is nothing to compare",
                   std::to_string(run.outside) + " events lie outside; is it one run?"};
  for (std::size_t p = 0; p < lines.size(); ++p) {
    for (std::size_t c = 0; c < kEventNames.size(); ++c) {
      ClassProfile& profile = run.phases[p].classes[c];
      std::sort(profile.durations.begin(), profile.durations.end());
      if (lines[p].length() > 0)
        profile.busy = static_cast<double>(busy[p][c]) / static_cast<double>(lines[p].length());
    }
  }
  return run;
}

double ks_similarity(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    const double at = std::min(a[i], b[j]);
    while (i < a.size() && a[i] <= at) ++i;
    while (j < b.size() && b[j] <= at) ++j;
    most = std::max(most, std::abs(static_cast<double>(i) / static_cast<double>(a.size()) -
                                   static_cast<double>(j) / static_cast<double>(b.size())));
  }
  return 1 - most;
}

Similarity similarity(const RunProfile& a, const RunProfile& b) {
  Similarity result;
  double weights = 0;
  for (std::size_t p = 0; p < result.phases.size(); ++p) {
    PhaseScore& phase = result.phases[p];
    phase = score_phase(a.phases[p], b.phases[p]);
    const auto share = [&](const RunProfile& run) {
      return run.seconds > 0 ? run.phases[p].seconds / run.seconds : 0;
    };
    phase.weight = (share(a) + share(b)) / 2;
    weights += phase.weight;
    result.total += phase.weight * phase.score;
  }
  if (weights > 0) result.total /= weights;
  if (result.total > 1 - 1e-12) result.total = 1;
  return result;
}

std::optional<Interval> bootstrap_interval(const std::vector<std::vector<double>>& scores, bool within,
                                           std::uint64_t seed, int draws) {
  if (scores.empty() || scores[0].empty()) return std::nullopt;
  const std::size_t rows = scores.size(), columns = scores[0].size();
  if (within ? rows < 3 : rows * columns < 2) return std::nullopt;
  const auto mean_over = [&](const std::vector<std::size_t>& r, const std::vector<std::size_t>& c,
                             std::size_t& pairs) {
    double sum = 0;
    pairs = 0;
    for (std::size_t i : r) {
      for (std::size_t j : c) {
        if (within && i == j) continue;
        sum += scores[i][j];
        ++pairs;
      }
    }
    return pairs > 0 ? sum / static_cast<double>(pairs) : std::nan("");
  };
  std::vector<std::size_t> all_rows(rows), all_columns(columns);
  for (std::size_t i = 0; i < rows; ++i) all_rows[i] = i;
  for (std::size_t j = 0; j < columns; ++j) all_columns[j] = j;
  Interval interval;
  interval.mean = mean_over(all_rows, all_columns, interval.pairs);
  if (within) interval.pairs /= 2;
  RandomStream random(seed);
  std::vector<double> means;
  for (int d = 0; d < draws; ++d) {
    std::vector<std::size_t> r(rows), c(columns);
    for (std::size_t& i : r) i = random.below(rows);
    for (std::size_t& j : c) j = random.below(columns);
    if (within) c = r;
    std::size_t pairs = 0;
    if (const double mean = mean_over(r, c, pairs); pairs > 0) means.push_back(mean);
  }
  std::sort(means.begin(), means.end());
  const auto at = [&](double p) {
    return means[std::min(means.size() - 1, static_cast<std::size_t>(p * static_cast<double>(means.size())))];
  };
  interval.low = std::min(at(0.025), interval.mean);
  interval.high = std::max(at(0.975), interval.mean);
  return interval;
}

Json similarity_json(const Similarity& similarity) {
  Json phases = Json::object();
  for (std::size_t p = 0; p < similarity.phases.size(); ++p) {
    const PhaseScore& phase = similarity.phases[p];
    if (!phase.compared) continue;
    Json classes = Json::object();
    for (std::size_t c = 0; c < phase.classes.size(); ++c) {
      const ClassScore& s = phase.classes[c];
      if (!s.compared) continue;
      classes[kEventNames[c]] = Json::object({{"score", s.score},
                                              {"count", s.count},
                                              {"shape", s.shape},
                                              {"latency", s.latency},
                                              {"busy", s.busy},
                                              {"events_a", s.events_a},
                                              {"events_b", s.events_b}});
    }
    phases[kPhaseNames[p]] =
        Json::object({{"score", phase.score}, {"weight", phase.weight}, {"classes", std::move(classes)}});
  }
  return Json::object({{"metric", "tracesim/1"}, {"total", similarity.total}, {"phases", std::move(phases)}});
}

}  // namespace millrace
