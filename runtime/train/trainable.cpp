#include "runtime/train/trainable.h"

#include "runtime/rules/learning_rate.h"
#include "runtime/rules/rule_table.h"

#include <algorithm>
#include <string>

#include "runtime/base/error.h"
#include "runtime/layers/forward_writes.h"
#include "runtime/train/job_steps.h"

namespace millrace {
namespace {

constexpr const char* kUseAFlush = "use a schedule that flushes, for example 1f1b";

bool is_averaging(const JobOptions& job) {
  return job.rule.kind == UpdateRuleKind::Asgd;
}

/// Adds the problems of each job's rule, rates and clipping.
void add_options(const Plan& plan, const TrainOptions& options, Problems& problems) {
  const bool asynchronous = is_asynchronous(plan.schedule);
  append(problems, validate(options.precision, options.loss_scale, asynchronous));
  for (const JobOptions& job : options.jobs) {
    append(problems, validate(job.learning_rate));
    append(problems, validate(job.rule));
    append(problems, validate(job.rule, job.clip, asynchronous));
  }
}

/// Adds the problems of asynchronous schedules, which have minibatches of several steps in flight.
void add_asynchronous(const StageLayout& layout, const Plan& plan, const TrainOptions& options,
                      bool ends_apart, Problems& problems) {
  const std::string schedule = "schedule " + to_string(plan.schedule), never = schedule + " never flushes";
  if (!layout.ties.empty())
    problems.push_back({"", "the model ties " + layout.ties.front().owner + " across stages, and " + never,
                        std::string(kUseAFlush) + ", or a plan with both uses in one stage"});
  if (!layout.turns.empty())
    problems.push_back(
        {"",
         plan.model + " is trained in turns, each of which needs the weights of the one before, and " + never,
         kUseAFlush});
  if (options.sync_batch_norm)
    problems.push_back(
        {"sync_batch_norm",
         "the replicas of " + schedule + " take turns, so that no two of them run at the same time",
         kUseAFlush});
  if (options.target_score)
    problems.push_back({"",
                        "a target score ends a run whose schedule flushes: " + schedule +
                            " has later minibatches under way when the score is known",
                        std::string(kUseAFlush) + ", or leave the target out"});
  if (options.early_stop)
    problems.push_back({"early_stop",
                        never + ", so later minibatches are under way when an evaluation is done",
                        std::string(kUseAFlush) + ", or leave it out"});
  if (ends_apart)
    problems.push_back({"", "the number of steps ends jobs apart, and " + never,
                        "give one number of steps, or a schedule that flushes"});
}

/// Adds the problems of layers whose forward writes to weights: there must be one copy of those weights.
void add_written(const StageLayout& layout, const Plan& plan, Problems& problems) {
  const bool asynchronous = is_asynchronous(plan.schedule);
  for (const NamedLayer& layer : layout.model.layers) {
    if (layout.casts() && forward_writes(*layer.layer).parameters &&
        layer.layer->cast_policy() == CastPolicy::Lower)
      problems.push_back({"",
                          layer.name +
                              " writes to a parameter in its forward, and with --precision it gets a "
                              "copy of it",
                          "give it another cast_policy, or use --precision float32"});
  }
  for (const PlanStage& stage : plan.stages) {
    if (!asynchronous && stage.ranks.size() == 1) continue;
    for (const NamedLayer& layer : layout.model.layers) {
      if (!forward_writes(*layer.layer).parameters ||
          std::ranges::find(stage.layers, layer.name) == stage.layers.end())
        continue;
      const std::string what = layer.name + " scales the rows that it reads (max_norm), and ";
      if (asynchronous)
        problems.push_back({"",
                            what + "schedule " + to_string(plan.schedule) + " has several versions of them",
                            kUseAFlush});
      else
        problems.push_back(
            {"", what + "each of its " + std::to_string(stage.ranks.size()) + " replicas reads others",
             "give its stage one replica, or no max_norm"});
    }
  }
}

}  // namespace

void refuse(const Problems& problems) {
  if (problems.empty()) return;
  const Problem& one = problems.front();
  if (problems.size() > 1) throw ConfigError(to_string(problems));
  throw ConfigError(one.where.empty() ? one.what : one.where + ": " + one.what, one.hint);
}

Problems training_problems(const std::vector<StageLayout>& layouts, const Plan& plan,
                           const TrainOptions& options, bool scores, int ranks) {
  Problems problems;
  add_options(plan, options, problems);
  const StageLayout& layout = layouts.front();
  int jobs = 0;
  for (const StageLayout& array : layouts) jobs += array.model.jobs();
  if (static_cast<int>(options.jobs.size()) != jobs) {
    problems.push_back({"job array",
                        "the model has " + std::to_string(jobs) + " jobs, their settings are " +
                            std::to_string(options.jobs.size()),
                        ""});
    return problems;
  }
  const bool ends_apart = JobSteps(wanted_steps(options), false).end_apart();
  if (is_asynchronous(plan.schedule)) add_asynchronous(layout, plan, options, ends_apart, problems);
  add_written(layout, plan, problems);
  if (options.check_writes && !options.has_weights)
    problems.push_back({"--check-writes", "emulated devices hold no weights to look at", "leave it out"});
  if (!layout.turns.empty() && LossScaler(options.precision, options.loss_scale).active())
    problems.push_back({"", plan.model + " is trained in turns, and a scaled loss may skip one of them",
                        "use precision bfloat16 or float32"});
  if (!layout.turns.empty() && std::ranges::any_of(options.jobs, is_averaging))
    problems.push_back({"", plan.model + " is trained in turns, and ASGD's averages are of one update a step",
                        "use another update rule, for example adam"});
  if (scores && jobs > 1)
    problems.push_back({"", "the weights of a job array have no score of their own", "train the jobs apart"});
  if (first_carrying(layout.model.layers) != nullptr) {
    const std::string carries = plan.model + " carries states from window to window";
    if (ends_apart)
      problems.push_back(
          {"",
           "the number of steps ends jobs apart, and " + carries + ", which go on for all jobs of an array",
           "give one number of steps"});
    if (layouts.size() > 1)
      problems.push_back(
          {"", carries + ", and several arrays go through the pipeline", "use one array for all jobs"});
  }
  if (plan.arrays != static_cast<int>(layouts.size()))
    problems.push_back({"",
                        "the plan is for " + std::to_string(plan.arrays) + " arrays, this job has " +
                            std::to_string(layouts.size()),
                        "give it " + std::to_string(plan.arrays) + " arrays, or plan again"});
  if (plan.num_ranks() != ranks)
    problems.push_back(
        {"",
         "the plan has " + std::to_string(plan.num_ranks()) + " ranks, this job has " + std::to_string(ranks),
         "start exactly the plan's ranks"});
  std::vector<char> joined;
  for (const PlanStage& stage : plan.stages)
    joined.push_back(options.sync_batch_norm && stage.ranks.size() > 1);
  for (const StageLayout& array : layouts) append(problems, untrainable_layers(array, joined));
  return problems;
}

}  // namespace millrace
