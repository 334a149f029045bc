#include "driver/worker/train_dry_run.h"

#include <cstdio>

#include "models/registry.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/plan/plan_rounds.h"
#include "runtime/schedule/schedule.h"
#include "runtime/train/run_settings.h"

namespace millrace {
namespace {

void check_initial_weights(const TrainSpec& spec) {
  const TrainOptions& o = spec.options;
  if (o.init_from.empty() || !o.resume.empty()) return;
  const Result<OpenedWeights> weights = OpenedWeights::open(o.init_from);
  if (!weights) throw CheckpointError(to_string(weights.problems()));
  if (const Problems problems = check_weights(weights->files(), spec.alone, o.init_from_ignore);
      !problems.empty())
    throw CheckpointError("cannot start from " + o.init_from + ":\n" + to_string(problems));
}

/// The checkpoint that the run goes on from must be of its model and of its settings.
void check_resumed(const TrainSpec& spec) {
  const TrainOptions& o = spec.options;
  if (o.resume.empty() || spec.networks.size() > 1) return;  // of several arrays: where they are joined
  const Result<Checkpoint> checkpoint = open_checkpoint(o.resume);
  if (!checkpoint) throw CheckpointError("cannot resume: " + to_string(checkpoint.problems()));
  if (checkpoint->info.model != spec.pipeline.model)
    throw CheckpointError("cannot resume: " + checkpoint->path + " is a checkpoint of model " +
                              checkpoint->info.model + ", this run trains " + spec.pipeline.model,
                          "give the same --model, or start without --resume");
  const std::vector<SettingChange> changes =
      resumed_changes(*checkpoint, run_settings(spec.networks.front(), spec.pipeline, o), o.resume_changes);
  if (!changes.empty()) log_warning("resuming with other settings: " + to_string(changes));
}

/// The ranks make it when they have met; who asks before wants to know then.
void check_schedule(const TrainSpec& spec) {
  const Plan& plan = spec.pipeline;
  if (is_asynchronous(plan.schedule) || plan.arrays > 1) return;
  const Result<Schedule> schedule =
      schedule_of(plan, shape_of(plan), Transport::Buffered, spec.options.schedule);
  if (!schedule)
    throw ConfigError("the plan of " + plan.model + " has no schedule: " + to_string(schedule.problems()));
}

}  // namespace

int print_dry_run(const Rounds& rounds) {
  const TrainSpec& spec = rounds.all.front().spec;
  const Datasets& sets = rounds.all.front().sets;
  check_initial_weights(spec);
  check_resumed(spec);
  check_schedule(spec);
  std::int64_t parameters = 0;
  for (const LayeredModel& network : spec.networks) parameters += network.num_parameters();
  const std::string form = chosen_form(spec.model.name, spec.model.options, spec.own.models);
  std::printf("model %s, %s%s%lld parameters; data %s\n", spec.alone.name.c_str(), form.c_str(),
              form.empty() ? "" : ", ", static_cast<long long>(parameters), sets.train->describe().c_str());
  std::printf("schedule %s, %d ranks, %d microbatches of %d samples, %lld steps\n",
              to_string(spec.pipeline.schedule).c_str(), spec.pipeline.num_ranks(),
              spec.pipeline.microbatches, spec.options.microbatch,
              static_cast<long long>(spec.options.steps));
  if (spec.pipeline.arrays > 1)
    std::printf("%zu jobs in %d arrays, in turn\n", spec.of_jobs.size(), spec.pipeline.arrays);
  for (int s = 0; s < spec.pipeline.num_stages(); ++s) {
    const PlanStage& stage = spec.pipeline.stages[s];
    std::printf("stage %d: %zu layers (%s .. %s) on %zu rank(s)\n", s, stage.layers.size(),
                stage.layers.front().c_str(), stage.layers.back().c_str(), stage.ranks.size());
  }
  if (rounds.several()) std::printf("%s\n", rounds_text(rounds.plan.rounds).c_str());
  return 0;
}

}  // namespace millrace
