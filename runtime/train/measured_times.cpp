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
#include "runtime/base/units.h"

namespace millrace {
namespace {

bool is_replaced(SpanKind kind) {
  return is_computation(kind) || kind == SpanKind::Update;
}

const char* name_of(RunPart part) {
  return part == RunPart::Evaluation ? "evaluation" : part == RunPart::Steps ? "training" : "the first step";
}

/// Problems where the run computed something else in a stage.
Problems compare(const std::string& folder, const Plan& own, int microbatch, const Plan& measured,
                 const Json& summary) {
  Problems problems;
  const char* hint = "give the folder of an instrumented run of the same model, stages and --microbatch";
  if (own.model != measured.model)
    problems.push_back({folder, "its model is " + measured.model + ", this run's is " + own.model, hint});
  else if (!std::ranges::equal(own.stages, measured.stages, {}, &PlanStage::layers, &PlanStage::layers))
    problems.push_back({folder,
                        "its " + std::to_string(measured.stages.size()) +
                            " stage(s) hold other layers than the " + std::to_string(own.stages.size()) +
                            " of this run",
                        hint});
  const Json* samples = summary.find("microbatch");
  if (samples && samples->kind() == Json::Kind::Int && samples->as_int() != microbatch)
    problems.push_back({folder,
                        "its microbatches have " + std::to_string(samples->as_int()) +
                            " samples, this run's " + std::to_string(microbatch),
                        hint});
  return problems;
}

}  // namespace

Result<MeasuredTimes> MeasuredTimes::read(const std::string& folder, const Plan& plan, int microbatch) {
  const std::filesystem::path path = folder;
  const char* hint = "give the output folder of a run with --variant instrumented";
  const Result<Json> summary = read_json((path / run_files::kSummary).string());
  if (!summary) return Problem{folder, "is no finished run: " + summary.problems().front().what, hint};
  const Result<Plan> measured = Plan::load((path / run_files::kPlan).string());
  if (!measured) return measured.problems();
  if (Problems problems = compare(folder, plan, microbatch, *measured, *summary); !problems.empty())
    return problems;
  MeasuredTimes times;
  times.source_ = folder;
  for (int rank = 0; rank < measured->num_ranks(); ++rank) {
    const std::string name = (path / run_files::kTrace.of(rank)).string();
    const Result<std::string> text = read_file(name, 16 * kGiB);
    if (!text) return Problem{name, "cannot be read: " + text.problems().front().what, hint};
    Result<std::vector<Span>> spans = spans_from_json(*text, name);
    if (!spans) return spans.problems();
    times.add(*std::move(spans));
  }
  if (times.seconds_.empty()) return Problem{folder, "recorded no computation", hint};
  return times;
}

void MeasuredTimes::add(std::vector<Span> spans) {
  std::vector<std::pair<std::int64_t, std::int64_t>> evaluations;
  std::int64_t first = INT64_MAX;
  for (const Span& span : spans) {
    if (span.kind == SpanKind::Eval) evaluations.emplace_back(span.start, span.end);
    if (is_replaced(span.kind)) first = std::min(first, span.step);
  }
  std::ranges::stable_sort(spans, {}, [](const Span& span) { return std::pair(span.step, span.microbatch); });
  std::map<std::tuple<RunPart, SpanKind, int>, std::vector<double>> of_rank;
  for (const Span& span : spans) {
    if (!is_replaced(span.kind)) continue;
    const bool evaluates = std::ranges::any_of(
        evaluations, [&](const auto& one) { return span.start >= one.first && span.end <= one.second; });
    const RunPart part = evaluates            ? RunPart::Evaluation
                         : span.step == first ? RunPart::FirstStep
                                              : RunPart::Steps;
    of_rank[{part, span.kind, span.stage}].push_back(double(span.end - span.start) * 1e-9);
  }
  for (auto& [key, seconds] : of_rank) seconds_[key].push_back(std::move(seconds));
}

const std::vector<std::vector<double>>* MeasuredTimes::find(RunPart part, SpanKind kind, int stage) const {
  const auto of = [&](RunPart one) {
    const auto found = seconds_.find({one, kind, stage});
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
  Deck& deck = decks_[{part, kind, stage}];
  if (deck.seconds.empty()) {
    const auto* measured = times_.find(part, kind, stage);
    if (!measured)
      throw ConfigError(times_.source() + " has no time of a " + to_string(kind) + " of stage " +
                            std::to_string(stage) + " in " + name_of(part),
                        "instrument a run with the same schedule and evaluations");
    deck.seconds = (*measured)[replica_of_.at(stage) % measured->size()];
    deck.order.resize(deck.seconds.size());
    deck.next = deck.order.size();
  }
  if (deck.next == deck.order.size()) {
    // Decks of one size are shuffled alike.
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
  const TimePoint end = begin - late_ + std::chrono::duration_cast<TimePoint::duration>(Seconds(seconds));
  if (end > clock_.now()) clock_.sleep_until(end);
  const TimePoint now = clock_.now();
  late_ = std::max(TimePoint::duration{}, now - end);
  drawn_ += seconds;
  waited_ += Seconds(now - begin).count();
}

}  // namespace millrace
