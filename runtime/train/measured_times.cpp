#include "runtime/train/measured_times.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace millrace {
namespace {

bool is_replaced(SpanKind kind) {
  return is_computation(kind) || kind == SpanKind::Update;
}

const char* name_of(RunPart part) {
  return part == RunPart::Evaluation ? "evaluation" : part == RunPart::Steps ? "training" : "the first step";
}

const char* const kHint = "give the output folder of a run with --variant instrumented";

/// A measured run, as one point of a table of ranks and samples.
struct Point {
  std::string folder;
  int ranks = 0, samples = 0;
};

Result<Plan> plan_in(const std::string& folder) {
  return Plan::load((std::filesystem::path(folder) / run_files::kPlan).string());
}

/// Returns an error if there is no finished run, or if it computed other layers in a stage.
Result<Point> point_of(const std::string& folder, const Plan& own, int microbatch, int jobs) {
  const Result<Json> summary = read_json((std::filesystem::path(folder) / run_files::kSummary).string());
  if (!summary) return Problem{folder, "is no finished run: " + summary.problems().front().what, kHint};
  const Result<Plan> measured = plan_in(folder);
  if (!measured) return measured.problems();
  const char* hint = "give the folder of an instrumented run of the same model and stages";
  if (own.model != measured->model)
    return Problem{folder, "its model is " + measured->model + ", this run's is " + own.model, hint};
  if (!std::ranges::equal(own.stages, measured->stages, {}, &PlanStage::layers, &PlanStage::layers))
    return Problem{folder,
                   "its " + std::to_string(measured->stages.size()) +
                       " stage(s) hold other layers than the " + std::to_string(own.stages.size()) +
                       " of this run",
                   hint};
  const Json* of_jobs = summary->find("jobs");
  const std::int64_t measured_jobs = of_jobs ? std::int64_t(of_jobs->items().size()) : 1;
  if (measured_jobs != jobs || measured->arrays != own.arrays)
    return Problem{folder,
                   "it trained " + std::to_string(measured_jobs) + " job(s) in " +
                       std::to_string(measured->arrays) + " array(s), this run has " + std::to_string(jobs) +
                       " in " + std::to_string(own.arrays),
                   "give as many jobs, and --arrays " + std::to_string(measured->arrays)};
  const Json* samples = summary->find("microbatch");
  const bool known = samples && samples->kind() == Json::Kind::Int && samples->as_int() > 0;
  return Point{folder, measured->num_ranks(), known ? static_cast<int>(samples->as_int()) : microbatch};
}

/// The two measured values around `wanted`: equal if it was measured, or if only one side has any.
struct Around {
  int low = 0, high = 0;
  bool outside = false;
  double share(int wanted) const {
    return high > low ? static_cast<double>(wanted - low) / static_cast<double>(high - low) : 0;
  }
};

Around around(int wanted, const std::vector<Point>& points, int Point::*member) {
  Around found;
  for (const Point& point : points) {
    const int value = point.*member;
    if (value <= wanted && (found.low == 0 || value > found.low)) found.low = value;
    if (value >= wanted && (found.high == 0 || value < found.high)) found.high = value;
  }
  found.outside = found.low == 0 || found.high == 0;
  if (found.low == 0) found.low = found.high;
  if (found.high == 0) found.high = found.low;
  return found;
}

std::string list_of(const std::vector<Point>& points) {
  std::string text;
  for (const Point& point : points)
    text += (text.empty() ? "" : ", ") + std::to_string(point.ranks) + " rank(s) with " +
            std::to_string(point.samples);
  return text;
}

/// Linear between neighbours: value i is the quantile (i + 1/2) / n. `sorted` is not empty.
double quantile_of(const std::vector<double>& sorted, double at) {
  const auto last = static_cast<double>(sorted.size() - 1);
  const double place = std::clamp(at * static_cast<double>(sorted.size()) - 0.5, 0.0, last);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return sorted[below] * (1 - part) + sorted[above] * part;
}

/// Returns each time of `nearer` replaced by the weighted mean of both at its quantile.
std::vector<double> mixed(const std::vector<double>& nearer, const std::vector<double>& other,
                          double share_of_other) {
  std::vector<std::size_t> order(nearer.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return nearer[i]; });
  std::vector<double> sorted = other;
  std::ranges::sort(sorted);
  std::vector<double> result(nearer.size());
  for (std::size_t place = 0; place < order.size(); ++place) {
    const double at = (static_cast<double>(place) + 0.5) / static_cast<double>(nearer.size());
    result[order[place]] =
        nearer[order[place]] * (1 - share_of_other) + quantile_of(sorted, at) * share_of_other;
  }
  return result;
}

}  // namespace

Result<MeasuredTimes> MeasuredTimes::of_one(const std::string& folder, const Plan& plan) {
  MeasuredTimes times;
  times.source_ = folder;
  for (int rank = 0; rank < plan.num_ranks(); ++rank) {
    const std::string name = (std::filesystem::path(folder) / run_files::kTrace.of(rank)).string();
    const Result<std::string> text = read_regular_file(name, 16 * kGiB);
    if (!text) return Problem{name, "cannot be read: " + text.problems().front().what, kHint};
    Result<std::vector<Span>> spans = spans_from_json(*text, name);
    if (!spans) return spans.problems();
    times.add(*std::move(spans));
  }
  if (times.seconds_.empty()) return Problem{folder, "recorded no computation", kHint};
  return times;
}

Result<MeasuredTimes> MeasuredTimes::read(const std::vector<std::string>& folders, const Plan& plan,
                                          int microbatch, int jobs, OutsideMeasured outside) {
  std::vector<Point> points;
  Problems problems;
  for (const std::string& folder : folders) {
    const Result<Point> point = point_of(folder, plan, microbatch, jobs);
    if (!point)
      append(problems, point.problems());
    else
      points.push_back(*point);
  }
  if (!problems.empty()) return problems;
  if (points.empty()) return Problem{"--variant-from", "names no run", kHint};
  const Around ranks = around(plan.num_ranks(), points, &Point::ranks),
               samples = around(microbatch, points, &Point::samples);
  if (outside == OutsideMeasured::Refuse && (ranks.outside || samples.outside))
    return Problem{folders.front(),
                   "a run of " + std::to_string(plan.num_ranks()) + " rank(s) with microbatches of " +
                       std::to_string(microbatch) + " lies outside of what was measured: " + list_of(points),
                   "add an instrumented run on the other side to --variant-from, or give --variant-beyond"};
  const auto at = [&](int of_ranks, int of_samples) -> Result<MeasuredTimes> {
    for (const Point& point : points) {
      if (point.ranks != of_ranks || point.samples != of_samples) continue;
      const Result<Plan> measured = plan_in(point.folder);
      if (!measured) return measured.problems();
      return of_one(point.folder, *measured);
    }
    return Problem{folders.front(),
                   "no run was measured with " + std::to_string(of_ranks) + " rank(s) and microbatches of " +
                       std::to_string(of_samples) + ", only " + list_of(points),
                   "add that instrumented run to --variant-from: the runs form a table of ranks and batches"};
  };
  const auto over_samples = [&](int of_ranks) -> Result<MeasuredTimes> {
    Result<MeasuredTimes> low = at(of_ranks, samples.low);
    if (!low || samples.low == samples.high) return low;
    const Result<MeasuredTimes> high = at(of_ranks, samples.high);
    if (!high) return high.problems();
    MeasuredTimes between = mix(*low, *high, samples.share(microbatch));
    if (const double less = low->of_microbatch(), more = high->of_microbatch(); more < less)
      between.doubts_.push_back(
          "a microbatch of " + std::to_string(samples.low) + printed(" takes %.3f ms, one of ", less * 1e3) +
          std::to_string(samples.high) +
          printed(" only %.3f ms: a time between them is a guess. Measure ", more * 1e3) +
          std::to_string(microbatch) + ", or a run on each side of where the time falls");
    return between;
  };
  Result<MeasuredTimes> times = over_samples(ranks.low);
  if (times && ranks.low != ranks.high) {
    const Result<MeasuredTimes> high = over_samples(ranks.high);
    if (!high) return high.problems();
    times = mix(*times, *high, ranks.share(plan.num_ranks()));
  }
  if (times && samples.outside)
    times = times->scaled(static_cast<double>(microbatch) / static_cast<double>(samples.low));
  return times;
}

MeasuredTimes MeasuredTimes::mix(const MeasuredTimes& low, const MeasuredTimes& high, double share) {
  const bool high_is_nearer = share > 0.5;
  const MeasuredTimes &nearer = high_is_nearer ? high : low, &other = high_is_nearer ? low : high;
  MeasuredTimes result;
  result.doubts_ = low.doubts_;
  result.doubts_.insert(result.doubts_.end(), high.doubts_.begin(), high.doubts_.end());
  result.source_ = printed("%.2f of ", 1 - share) + low.source_ + printed(", %.2f of ", share) + high.source_;
  for (const auto& [key, replicas] : nearer.seconds_) {
    const auto found = other.seconds_.find(key);
    // a computation that only one of them did is unknown between them
    if (found == other.seconds_.end()) continue;
    // As many replicas as the run with the larger number.
    const std::size_t count = std::max(replicas.size(), found->second.size());
    for (std::size_t k = 0; k < count; ++k)
      result.seconds_[key].push_back(mixed(replicas[k % replicas.size()],
                                           found->second[k % found->second.size()],
                                           high_is_nearer ? 1 - share : share));
  }
  return result;
}

double MeasuredTimes::of_microbatch() const {
  double sum = 0;
  for (const auto& [key, replicas] : seconds_) {
    if (std::get<RunPart>(key) != RunPart::Steps || !is_computation(std::get<SpanKind>(key))) continue;
    double seconds = 0, count = 0;
    for (const std::vector<double>& of_replica : replicas) {
      seconds = std::accumulate(of_replica.begin(), of_replica.end(), seconds);
      count += static_cast<double>(of_replica.size());
    }
    sum += count > 0 ? seconds / count : 0;
  }
  return sum;
}

MeasuredTimes MeasuredTimes::scaled(double factor) const {
  MeasuredTimes result = *this;
  result.source_ += printed(", forwards and backwards times %.3g", factor);
  for (auto& [key, replicas] : result.seconds_) {
    if (!is_computation(std::get<SpanKind>(key))) continue;
    for (std::vector<double>& seconds : replicas)
      for (double& one : seconds) one *= factor;
  }
  return result;
}

void MeasuredTimes::add(std::vector<Span> spans) {
  std::vector<std::pair<std::int64_t, std::int64_t>> evaluations;
  std::int64_t first = INT64_MAX;
  for (const Span& span : spans) {
    if (span.kind == SpanKind::Eval) evaluations.emplace_back(span.start, span.end);
    if (is_replaced(span.kind)) first = std::min(first, span.step);
  }
  std::ranges::stable_sort(spans, {}, [](const Span& span) { return std::pair(span.step, span.microbatch); });
  std::map<Key, std::vector<double>> of_rank;
  std::map<std::tuple<SpanKind, int, std::int64_t>, int> times_seen;  // in training
  for (const Span& span : spans) {
    if (!is_replaced(span.kind)) continue;
    const bool evaluates = std::ranges::any_of(
        evaluations, [&](const auto& one) { return span.start >= one.first && span.end <= one.second; });
    const RunPart part = evaluates            ? RunPart::Evaluation
                         : span.step == first ? RunPart::FirstStep
                                              : RunPart::Steps;
    const int turn = evaluates ? 0 : times_seen[{span.kind, span.stage, span.microbatch}]++;
    of_rank[{part, span.kind, span.stage, turn}].push_back(double(span.end - span.start) * 1e-9);
  }
  for (auto& [key, seconds] : of_rank) seconds_[key].push_back(std::move(seconds));
}

const std::vector<std::vector<double>>* MeasuredTimes::find(RunPart part, SpanKind kind, int stage,
                                                            int turn) const {
  const auto of = [&](RunPart one) {
    const auto found = seconds_.find({one, kind, stage, one == RunPart::Evaluation ? 0 : turn});
    return found == seconds_.end() ? nullptr : &found->second;
  };
  if (const auto* found = of(part)) return found;
  if (part == RunPart::Evaluation) return nullptr;
  return of(part == RunPart::Steps ? RunPart::FirstStep : RunPart::Steps);
}

ComputeWaits::ComputeWaits(const MeasuredTimes& times, std::uint64_t seed, const Plan& plan, RankId rank,
                           Clock& clock)
    : times_(times), seed_(derive_seed(seed, "compute waits")), clock_(clock) {
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const std::vector<RankId>& ranks = plan.stages[stage].ranks;
    const auto place = std::ranges::find(ranks, rank);
    if (place != ranks.end()) replica_of_[stage] = static_cast<std::size_t>(place - ranks.begin());
  }
}

double ComputeWaits::draw(RunPart part, SpanKind kind, int stage) {
  Deck& deck = decks_[{part, kind, stage, turn_}];
  if (deck.seconds.empty()) {
    const auto* measured = times_.find(part, kind, stage, turn_);
    if (!measured)
      throw ConfigError(times_.source() + " has no time of a " + to_string(kind) + " of stage " +
                            std::to_string(stage) + " in " + name_of(part),
                        "instrument a run with the same schedule and evaluations");
    deck.seconds = (*measured)[replica_of_.at(stage) % measured->size()];
    deck.order.resize(deck.seconds.size());
    deck.next = deck.order.size();
  }
  if (deck.next == deck.order.size()) {
    // Decks of equal size are shuffled alike.
    RandomStream random(derive_seed(seed_, name_of(part), deck.order.size(), deck.shuffles++));
    std::iota(deck.order.begin(), deck.order.end(), std::size_t{0});
    for (std::size_t i = deck.order.size(); i > 1; --i)
      std::swap(deck.order[i - 1], deck.order[random.below(i)]);
    deck.next = 0;
  }
  return deck.seconds[deck.order[deck.next++]];
}

void ComputeWaits::wait(RunPart part, SpanKind kind, int stage, TimePoint begin) {
  const double seconds = draw(part, kind, stage);
  const TimePoint end = begin - late_ + duration_of(seconds);
  if (end > clock_.now()) clock_.sleep_until(end);
  const TimePoint now = clock_.now();
  late_ = std::max(TimePoint::duration{}, now - end);
  drawn_ += seconds;
  waited_ += Seconds(now - begin).count();
}

}  // namespace millrace
