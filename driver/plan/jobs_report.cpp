#include "driver/plan/jobs_report.h"

#include <cstdio>

#include "driver/plan/plan_explanation.h"
#include "runtime/base/quantities.h"
#include "runtime/base/text.h"
#include "runtime/plan/array_profiles.h"
#include "runtime/plan/plan_rounds.h"

namespace millrace {
namespace {

constexpr std::size_t kShownRounds = 8;

std::string ms(double seconds) {
  return printed("%.3f ms", seconds * 1e3);
}

/// "arrays of 2 jobs, 3 at once, 2 rounds".
std::string way_text(const JobsCandidate& c) {
  return "arrays of " + std::to_string(c.jobs) + (c.jobs == 1 ? " job, " : " jobs, ") +
         std::to_string(c.arrays) + " at once, " + std::to_string(c.plan.rounds.size()) +
         (c.plan.rounds.size() == 1 ? " round" : " rounds");
}

std::string against(const JobsCandidate& best, const JobsCandidate& other, int jobs) {
  const auto difference = [&](double a, double b) { return printed("%+.3f ms", (b - a) / jobs * 1e3); };
  return way_text(other) + ": " + ms(other.total_s / jobs) + " for a step of a job, " +
         printed("%+.1f %%", (other.total_s / best.total_s - 1) * 100) + "; computing " +
         difference(best.compute_s, other.compute_s) + ", waiting, updates and transfers " +
         difference(best.total_s - best.compute_s, other.total_s - other.compute_s);
}

}  // namespace

std::string jobs_table(const JobsAnswer& answer, int total, std::size_t most) {
  std::string text =
      " jobs arrays rounds  stages         schedule         step ms  a job's step ms    idle      peak MiB  "
      "rounds of\n";
  for (std::size_t i = 0; i < answer.candidates.size() && i < most; ++i) {
    const JobsCandidate& c = answer.candidates[i];
    char line[256];
    std::snprintf(line, sizeof line, "%4d%s %6d %6zu  %-2d on %-8s %-12s %12.3f %16.3f %6.1f%% %13.3f  ",
                  c.jobs, c.interpolated ? "*" : " ", c.arrays, c.plan.rounds.size(), c.plan.num_stages(),
                  replicas_text(c.plan).c_str(), to_string(c.plan.schedule).c_str(),
                  c.plan.predicted_step_s * 1e3, c.total_s / total * 1e3, c.idle * 100,
                  static_cast<double>(c.peak_bytes) / kMiB);
    text += line + jobs_of_rounds(c.plan.rounds, kShownRounds) + "\n";
  }
  if (answer.candidates.size() > most)
    text += "... " + std::to_string(answer.candidates.size() - most) + " more (--explain)\n";
  return text;
}

std::string jobs_reasons(const JobsAnswer& answer, const LayerGraph& profile, int total,
                         const std::optional<JobsCandidate>& free) {
  const JobsCandidate& best = answer.candidates.front();
  std::string text = rounds_text(best.plan.rounds) + "\n";
  text += "chosen: " + way_text(best) + ": " + ms(best.total_s / total) + " for a step of a job (" +
          printed("%.1f", total / best.total_s) + " steps of jobs a second), of it computing " +
          ms(best.compute_s / total) + "\n";
  if (answer.candidates.size() > 1) text += "runner-up: " + against(best, answer.candidates[1], total) + "\n";
  if (free) text += "without the memory limit: " + against(best, *free, total) + "\n";
  text += std::to_string(answer.ways) + " ways to divide the jobs: " + std::to_string(answer.not_fitting) +
          " do not fit the memory, " + std::to_string(answer.no_better) +
          " compute longer than the best takes\n";
  bool interpolated = false;
  for (const JobsCandidate& c : answer.candidates) interpolated = interpolated || c.interpolated;
  if (interpolated) {
    std::string sizes;
    for (const int size : measured_sizes(profile))
      sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
    text += std::string("*: ") + (best.interpolated ? "the best one too " : "") +
            "has arrays that were not measured: their costs lie on the line between the sizes that were (" +
            sizes + ")\n";
  }
  return text;
}

Json jobs_json(const JobsAnswer& answer, int total) {
  Json candidates = Json::array();
  for (const JobsCandidate& c : answer.candidates) {
    Json replicas = Json::array();
    for (const PlanStage& stage : c.plan.stages)
      replicas.push_back(static_cast<std::int64_t>(stage.ranks.size()));
    candidates.push_back(Json::object({{"array_jobs", c.jobs},
                                       {"arrays", c.arrays},
                                       {"rounds", rounds_json(c.plan.rounds)},
                                       {"interpolated", c.interpolated},
                                       {"replicas", replicas},
                                       {"schedule", to_string(c.plan.schedule)},
                                       {"step_s", c.plan.predicted_step_s},
                                       {"total_s", c.total_s},
                                       {"job_step_s", c.total_s / total},
                                       {"compute_s", c.compute_s},
                                       {"idle", c.idle},
                                       {"peak_bytes", c.peak_bytes}}));
  }
  return Json::object({{"jobs", total},
                       {"ways", answer.ways},
                       {"not_fitting", answer.not_fitting},
                       {"no_better", answer.no_better},
                       {"candidates", candidates}});
}

}  // namespace millrace
