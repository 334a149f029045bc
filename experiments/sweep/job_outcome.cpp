#include "experiments/sweep/job_outcome.h"

#include <cmath>
#include <filesystem>

#include "experiments/run_data.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

JobOutcome from_summary(const Json& json) {
  JobOutcome outcome{.final_loss = NAN};
  if (const Json* loss = json.find("final_loss"); loss && loss->is_number())
    outcome.final_loss = loss->as_double();
  if (const Json* steps = json.find("steps"); steps && steps->is_number())
    outcome.steps = static_cast<std::int64_t>(steps->as_double());
  const Json* evaluations = json.find("evaluations");
  if (!evaluations || !evaluations->is_array() || evaluations->size() == 0) return outcome;
  for (const auto& [name, value] : evaluations->items().back().members()) {
    if (name != "step" && name != "samples" && value.is_number())
      outcome.metrics.emplace_back(name, value.as_double());
  }
  return outcome;
}

}  // namespace

JobOutcome outcome_of(const std::string& folder) {
  const Result<Json> json = read_json((std::filesystem::path(folder) / run_files::kSummary).string());
  return json && json->is_object() ? from_summary(*json) : JobOutcome{.final_loss = NAN};
}

std::string outcome_text(const std::string& folder) {
  const JobOutcome outcome = outcome_of(folder);
  std::string text = printed("loss %.4f", outcome.final_loss);
  for (const auto& [name, value] : outcome.metrics)
    text += ", " + (name == "loss" ? std::string("evaluation loss") : name) + printed(" %.4f", value);
  return text;
}

std::vector<std::pair<double, double>> losses_of(const std::string& folder, int) {
  std::vector<std::pair<double, double>> losses;
  const Result<RunData> run = read_run(folder);
  const RankRun* rank = run ? loss_rank(*run) : nullptr;
  if (!rank) return losses;
  for (const StepLine& step : rank->steps) {
    if (step.loss) losses.emplace_back(static_cast<double>(step.step), *step.loss);
  }
  return losses;
}

JobOutcome outcome_of(const std::string& folder, int) {
  return outcome_of(folder);
}

}  // namespace millrace
