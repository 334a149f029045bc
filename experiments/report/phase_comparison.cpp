#include "experiments/report/phase_comparison.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "experiments/drawing/figures.h"
#include "experiments/drawing/html_page.h"
#include "runtime/base/median.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

constexpr int kDraws = 400;
constexpr std::size_t kMostSteps = 2000;  // of a run, evenly chosen: more tell nothing new

struct Phase {
  const char* name;
  double StepLine::*seconds;
};
constexpr Phase kPhases[] = {{"step", &StepLine::step_s},       {"batch wait", &StepLine::data_s},
                             {"forward", &StepLine::forward_s}, {"backward", &StepLine::backward_s},
                             {"send", &StepLine::send_s},       {"receive", &StepLine::receive_s},
                             {"wait", &StepLine::wait_s},       {"reduce", &StepLine::all_reduce_s},
                             {"update", &StepLine::update_s}};

/// Returns the mean over the ranks that logged a step, for each step after the first.
std::vector<double> means_of(const RunData& run, double StepLine::*seconds) {
  std::map<std::int64_t, std::pair<double, int>> sums;
  for (const RankRun& rank : run.ranks) {
    for (std::size_t i = rank.steps.size() > 1 ? 1 : 0; i < rank.steps.size(); ++i) {
      auto& [sum, count] = sums[rank.steps[i].step];
      sum += rank.steps[i].*seconds;
      ++count;
    }
  }
  std::vector<double> means;
  const std::size_t every = (sums.size() + kMostSteps - 1) / kMostSteps;
  std::size_t at = 0;
  for (const auto& [step, sum] : sums)
    if (at++ % std::max<std::size_t>(1, every) == 0) means.push_back(sum.first / sum.second);
  return means;
}

double drawn_median(const std::vector<double>& values, RandomStream& random) {
  std::vector<double> drawn(values.size());
  for (double& one : drawn) one = values[random.below(values.size())];
  return median(std::move(drawn));
}

std::string label_of(const RunData& run) {
  const std::string name = std::filesystem::weakly_canonical(run.folder).filename().string();
  return name.empty() ? run.folder : name;
}

std::string signed_duration(double seconds) {
  return (seconds < 0 ? "-" : "+") + duration_figure(std::abs(seconds));
}

}  // namespace

std::vector<PhaseDifference> phase_differences(const RunData& first, const RunData& other) {
  std::vector<PhaseDifference> differences;
  for (const Phase& phase : kPhases) {
    const std::vector<double> a = means_of(first, phase.seconds), b = means_of(other, phase.seconds);
    if (a.empty() || b.empty()) return {};
    PhaseDifference one{.phase = phase.name, .first_s = median(a), .other_s = median(b)};
    const auto some = [](double seconds) { return seconds > 0; };
    if (std::ranges::none_of(a, some) && std::ranges::none_of(b, some)) continue;
    one.more_s = one.other_s - one.first_s;
    RandomStream random(derive_seed(1, phase.name));
    std::vector<double> drawn;
    for (int i = 0; i < kDraws; ++i) {
      const double of_other = drawn_median(b, random);
      drawn.push_back(of_other - drawn_median(a, random));
    }
    std::ranges::sort(drawn);
    one.low_s = drawn[static_cast<std::size_t>(0.025 * kDraws)];
    one.high_s = drawn[static_cast<std::size_t>(0.975 * kDraws) - 1];
    differences.push_back(one);
  }
  return differences;
}

std::string phases_side_by_side_html(const RunData& run, const std::vector<RunData>& others) {
  std::string html;
  for (const RunData& other : others) {
    std::string rows;
    for (const PhaseDifference& one : phase_differences(run, other)) {
      const bool differs = one.low_s > 0 || one.high_s < 0;
      rows +=
          "<tr><td>" + escape_xml(one.phase) + "</td><td>" + duration_figure(one.first_s) + "</td><td>" +
          duration_figure(one.other_s) + "</td><td>" + signed_duration(one.more_s) + "</td><td>" +
          (one.low_s < one.high_s ? signed_duration(one.low_s) + " to " + signed_duration(one.high_s) : "–") +
          "</td><td>" +
          (one.first_s > 0 ? printed("%+.1f %%", 100 * one.more_s / one.first_s) : std::string("–")) +
          "</td><td>" + (differs ? "yes" : "no") + "</td></tr>";
    }
    if (rows.empty()) continue;
    html += html_card(
        "Side by side: phases of " + escape_xml(label_of(other)),
        "Seconds of a step, mean over the ranks: medians over the steps after the first. Interval: 95 %, by "
        "drawing the steps of both runs again. A phase differs if the interval leaves zero out. Steps count "
        "as "
        "independent.",
        "<div class=\"scroll\"><table><thead><tr><th>Phase</th><th>" + escape_xml(label_of(run)) +
            "</th><th>" + escape_xml(label_of(other)) +
            "</th><th>more</th><th>interval</th><th>in %</th><th>differs</th></tr></thead><tbody>" + rows +
            "</tbody></table></div>");
  }
  return html;
}

}  // namespace millrace
