#include "runtime/rules/best_so_far.h"

#include <cmath>
#include <optional>

#include "runtime/base/numbers.h"

namespace millrace {
namespace {

struct KnownMetric {
  std::string_view name;
  bool higher_is_better;
};
constexpr KnownMetric kMetrics[] = {{"loss", false}, {"nll", false},     {"perplexity", false},
                                    {"top1", true},  {"top5", true},     {"accuracy", true},
                                    {"auc", true},   {"mean_iou", true}, {"part", true},
                                    {"dice", true},  {kBleuMetric, true}};

/// Returns "dice" for "dice_2", the metric of one class, and "part" for "part2", the metric of one part.
std::string_view family_of(std::string_view name) {
  const std::string_view family = name.substr(0, name.find_last_not_of("0123456789") + 1);
  if (family.size() == name.size()) return name;
  return family == "dice_" ? "dice" : family == "part" ? family : name;
}

}  // namespace

Result<bool> higher_is_better(std::string_view metric) {
  const std::string_view name = family_of(metric.substr(metric.rfind('.') + 1));  // npos + 1 is 0
  std::string known;
  for (const KnownMetric& one : kMetrics) {
    if (one.name == name) return one.higher_is_better;
    known += (known.empty() ? "" : ", ") + std::string(one.name);
  }
  return Problem{"", "'" + std::string(metric) + "' is no metric of evaluations",
                 "give one of " + known + ", or HEAD.METRIC of a model with several heads"};
}

Result<std::string> known_metric(const std::string& metric) {
  const Result<bool> known = higher_is_better(metric);
  return known ? Result<std::string>(metric) : known.problems();
}

Result<EarlyStop> early_stop_from(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::optional<std::int64_t> patience =
      colon == std::string::npos ? std::nullopt
                                 : number_of<std::int64_t>(std::string_view(text).substr(colon + 1));
  if (!patience || *patience < 1)
    return Problem{"", "'" + text + "' is not METRIC:N with a number N of at least 1", "for example top1:5"};
  const Result<std::string> metric = known_metric(text.substr(0, colon));
  if (!metric) return metric.problems();
  return EarlyStop{*metric, *patience};
}

std::string to_string(const EarlyStop& stop) {
  return stop.metric + ":" + std::to_string(stop.patience);
}

bool take(BestSoFar& best, double value, std::int64_t step) {
  const bool higher = *higher_is_better(best.metric);
  const bool better =
      !std::isnan(value) && (std::isnan(best.value) || (higher ? value > best.value : value < best.value));
  if (better)
    best = {.metric = best.metric, .value = value, .step = step, .since = 0};
  else
    ++best.since;
  return better;
}

}  // namespace millrace
