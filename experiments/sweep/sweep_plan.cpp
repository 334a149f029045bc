#include "experiments/sweep/sweep_plan.h"

#include <algorithm>

#include "driver/plan/jobs_report.h"
#include "optimizer/planner/plan_jobs.h"
#include "runtime/base/numbers.h"
#include "runtime/rules/rule_table.h"

namespace millrace {
namespace {

constexpr std::size_t kShownWays = 8;
constexpr int kMicrobatches = 4;  // what `millrace train` takes

bool is_on(const JobSpec& job, const char* flag) {
  const std::string* value = job.find(flag);
  return value && *value != "false" && *value != "0";
}

/// Parameter-sized tensors that the job's rule keeps.
int rule_copies_of(const JobSpec& job) {
  RuleOptions rule{.amsgrad = is_on(job, "amsgrad"), .centered = is_on(job, "centered")};
  if (const std::string* named = job.find("rule"))
    rule.kind = value_named<UpdateRuleKind>(*named).value_or(rule.kind);
  if (const std::string* momentum = job.find("momentum")) rule.momentum = number_of<double>(*momentum);
  return static_cast<int>(states_of(rule).size());
}

/// Returns differences between what the profile was measured with and what the job trains.
Problems differences(const LayerGraph& profile, const JobSpec& job, const std::string& file) {
  Problems problems;
  const auto compare = [&](const char* flag, const std::string& measured, const std::string& otherwise) {
    const std::string* value = job.find(flag);
    const std::string trained = value ? *value : otherwise;
    if (!trained.empty() && trained != measured)
      problems.push_back(
          {file,
           std::string("was measured with ") + flag + " " + measured + ", the job trains with " + trained,
           std::string("`millrace profile --") + flag + " " + trained + " --jobs ...`"});
  };
  compare("model", profile.model, {});
  compare("microbatch", std::to_string(profile.microbatch), "8");
  compare("precision", profile.precision, "float32");
  return problems;
}

}  // namespace

Result<SweepPlan> plan_sweep(const SweepPlanSpec& spec, const SweptJob& job,
                             const std::vector<JobSettings>& settings) {
  const Result<LayerGraph> profile = LayerGraph::load(spec.profile);
  if (!profile) return profile.problems();
  const Result<JobSpec> first = job.with(settings.front());
  if (!first) return first.problems();
  if (Problems problems = differences(*profile, *first, spec.profile); !problems.empty()) return problems;
  PlannerOptions options{
      .microbatches = kMicrobatches, .memory_per_rank = spec.memory, .kept_free = bytes_kept_free(*profile)};
  if (const std::string* count = first->find("microbatches"))
    options.microbatches = number_of<int>(*count).value_or(kMicrobatches);  // what is none, train refuses
  if (const std::string* named = first->find("schedule")) {
    const Result<ScheduleKind> kind = parse_schedule_kind(*named, "schedule");
    if (!kind) return kind.problems();
    options.schedule = *kind;
  }
  options.costs.clips_norm = is_on(*first, "clip-norm");
  options.costs.share_rule_state = is_on(*first, "zero-1");
  options.costs.rule_copies = 0;
  for (const JobSettings& one : settings) {
    const Result<JobSpec> made = job.with(one);
    if (!made) return made.problems();
    options.costs.rule_copies = std::max(options.costs.rule_copies, rule_copies_of(*made));
  }
  const auto jobs = static_cast<int>(settings.size());
  Result<JobsAnswer> answer = plan_jobs(*profile, ClusterSpec::local(spec.ranks), options, jobs);
  if (!answer) return answer.problems();
  SweepPlan made{
      .plan = answer->candidates.front().plan,
      .reasons = jobs_table(*answer, jobs, kShownWays) + jobs_reasons(*answer, *profile, jobs, {})};
  made.plan.predicted_spread = profile->measured.spread;
  return made;
}

SweptJob planned_job(const SweptJob& job, const std::string& file) {
  return job.replaced({"stages", "chunks", "replicas", "schedule", "microbatches", "arrays", "ranks"},
                      {"plan", file});
}

}  // namespace millrace
