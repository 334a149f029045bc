#include "experiments/sweep/job_outcome.h"

#include <cmath>
#include <filesystem>

#include "experiments/runs/run_data.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/flag.h"
#include "runtime/base/json_number.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"
#include "runtime/plan/schedule_kinds.h"

namespace millrace {
namespace {

constexpr const char* kJobsTable = "jobs.csv";  // of a job array: a line for each step and job

/// Adds the numbers of an evaluation. One that is not finite stays one: the metric is there.
void add_metrics(JobOutcome& outcome, const Json& evaluation) {
  for (const auto& [name, value] : evaluation.members()) {
    const std::optional<double> number = number_in(value);
    if (number && name != "step" && name != "samples") outcome.metrics.emplace_back(name, *number);
  }
}

JobOutcome from_summary(const Json& json) {
  JobOutcome outcome{.final_loss = NAN};
  outcome.final_loss = number_in(json, "final_loss").value_or(NAN);
  outcome.steps = static_cast<std::int64_t>(number_in(json, "steps").value_or(0));
  const Json* evaluations = json.find("evaluations");
  if (!evaluations || !evaluations->is_array() || evaluations->size() == 0) return outcome;
  add_metrics(outcome, evaluations->items().back());
  return outcome;
}

/// Reads OUT/jobs.csv, which has a line for each step and job.
std::vector<std::pair<double, double>> losses_of_member(const std::string& folder, int member) {
  std::vector<std::pair<double, double>> losses;
  const Result<std::string> text = read_file(std::filesystem::path(folder) / kJobsTable, kGiB);
  if (!text) return losses;
  const std::string wanted = std::to_string(member);
  for (const std::string& line : words_of(*text, '\n')) {
    const std::vector<std::string> cells = split(line, ',');  // step, job, loss, ...
    if (cells.size() < 3 || cells[1] != wanted) continue;
    const Result<double> step = number_from(cells[0], 0, 1e15), loss = number_from(cells[2], -1e300, 1e300);
    if (step && loss) losses.emplace_back(*step, *loss);
  }
  return losses;
}

}  // namespace

JobOutcome outcome_of(const std::string& folder) {
  const Result<Json> json = read_json((std::filesystem::path(folder) / run_files::kSummary).string());
  return json && json->is_object() ? from_summary(*json) : JobOutcome{.final_loss = NAN};
}

std::optional<double> step_time_of(const std::string& folder) {
  const Result<Json> json = read_json((std::filesystem::path(folder) / run_files::kSummary).string());
  return json ? number_in(*json, "median_step_s") : std::nullopt;
}

JobWork work_of(const std::string& folder) {
  const Result<Json> json = read_json((std::filesystem::path(folder) / run_files::kSummary).string());
  if (!json || !json->is_object()) return {};
  const auto number = [&](const char* key) { return number_in(*json, key).value_or(0); };
  const Json* name = json->find("schedule");
  const Result<ScheduleKind> kind =
      parse_schedule_kind(name && name->is_string() ? name->as_string() : "", "schedule");
  const double of_update = kind && updates_after_each(*kind) ? 1 : number("microbatches");
  const double updates = number("first_step") + number("steps");
  return {.step_s = number("median_step_s"),
          .samples_per_s = number("samples_per_s"),
          .updates = static_cast<std::int64_t>(updates),
          .samples = static_cast<std::int64_t>(updates * of_update * number("microbatch"))};
}

std::string outcome_text(const std::string& folder) {
  const JobOutcome outcome = outcome_of(folder);
  std::string text = printed("loss %.4f", outcome.final_loss);
  for (const auto& [name, value] : outcome.metrics) {
    if (name.find(".job") != std::string::npos) continue;  // of an array: each job's
    text += ", " + (name == "loss" ? std::string("evaluation loss") : name) + printed(" %.4f", value);
  }
  return text;
}

std::vector<std::pair<double, double>> losses_of(const std::string& folder, int member) {
  std::vector<std::pair<double, double>> losses;
  if (member >= 0) losses = losses_of_member(folder, member);
  if (!losses.empty() || member > 0) return losses;
  const Result<RunData> run = read_run(folder);
  const RankRun* rank = run ? loss_rank(*run) : nullptr;
  if (!rank) return losses;
  for (const StepLine& step : rank->steps) {
    if (step.loss && std::isfinite(*step.loss))
      losses.emplace_back(static_cast<double>(step.step), *step.loss);
  }
  return losses;
}

JobOutcome outcome_of(const std::string& folder, int member) {
  JobOutcome outcome{.final_loss = NAN};
  const Result<Json> json = read_json((std::filesystem::path(folder) / run_files::kSummary).string());
  const Json* jobs = json ? json->find("jobs") : nullptr;
  if (json && !jobs && member == 0) return from_summary(*json);  // an array of one is no array
  if (!jobs || !jobs->is_array() || member >= static_cast<int>(jobs->size())) return outcome;
  const Json& job = jobs->items()[member];
  outcome.final_loss = number_in(job, "loss").value_or(NAN);
  if (const Json* values = job.find("evaluation"); values && values->is_object())
    add_metrics(outcome, *values);
  const Json* status = job.find("status");
  if (status && status->is_string() && status->as_string() != "ok") {
    outcome.exit_code = static_cast<int>(ExitCode::Numeric);
    const Json* step = job.find("nonfinite_step");
    outcome.error = "the loss is not finite" +
                    (step && step->is_number() ? " from step " + step->dump() + " on" : std::string());
  }
  return outcome;
}

std::vector<KernelRow> kernels_of(const std::string& folder) {
  std::vector<KernelRow> rows;
  const Result<Json> json = read_json((std::filesystem::path(folder) / run_files::kSummary).string());
  const Json* kernels = json ? json->find("kernels") : nullptr;
  if (!kernels || !kernels->is_array()) return rows;
  for (const Json& one : kernels->items()) {
    const auto text = [&](const char* key) {
      const Json* value = one.find(key);
      return value && value->is_string() ? value->as_string() : "";
    };
    const auto number = [&](const char* key) { return number_in(one, key).value_or(0); };
    rows.push_back(
        {text("layer"), text("kind"), text("inputs"), text("kernel"), number("loop_s"), number("fused_s")});
  }
  return rows;
}

}  // namespace millrace
