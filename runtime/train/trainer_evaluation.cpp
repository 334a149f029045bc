#include "runtime/train/trainer_impl.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace millrace {
namespace {

// Positions of evaluations begin here, above all training positions, so that message tags never meet.
constexpr std::int64_t kEvaluationPosition = std::int64_t{1} << 36;

/// Returns this rank's actions of an evaluation's microbatches [from, to).
std::vector<Action> evaluation_actions(const Plan& plan, const StageLayout& layout, int from, int to,
                                       const Communicator& world) {
  std::vector<Action> actions =
      std::move(forward_schedule(shape_of(plan, layout, to), transport_of(world)).ranks[world.rank().value]);
  std::erase_if(actions, [from](const Action& a) { return a.microbatch.value < from; });
  return actions;
}

}  // namespace

/// Evaluates all arrays and reports the values. Returns false if the run was asked to stop and left the rest
/// out.
bool Trainer::Impl::evaluate() {
  if (sources.front().evaluation.microbatches == 0) return true;
  bool asked = false;
  stages->set_training(false);
  if (stages->last()) take_losses();
  for (int array = 0; array < num_arrays() && !asked; ++array) asked = evaluate_array(array);
  evaluation_stop->finish();
  stages->set_training(true);
  if (asked) {
    if (stages->last()) take_losses();
    if (owns_loss()) log_warning("the evaluation of step " + std::to_string(done) + " was interrupted");
    return false;
  }
  if (!stages->last()) return true;
  for (int array = 0; array < num_arrays(); ++array) stages->last(array)->reduce_sums();
  LossSums sums = joined(take_losses());
  report.evaluations.push_back(
      {.step = done, .values = std::move(sums.values), .jobs = std::move(sums.jobs), .samples = sums.weight});
  if (owns_loss()) {
    log.write(report.evaluations.back());
    log.print(report.evaluations.back());
  }
  require_finite(report.evaluations.back());
  return true;
}

/// Throws NumericError if the loss of every job is NaN or Inf: such weights are useless. While one job has a
/// finite loss the run goes on.
void Trainer::Impl::require_finite(const EvaluationReport& found) const {
  if (!options.stop_on_nonfinite) return;
  const auto finite = [](const NamedValues& v) { return v.empty() || std::isfinite(v.front().second); };
  if (std::ranges::any_of(found.jobs, finite)) return;
  throw NumericError("the evaluation after step " + std::to_string(found.step) + ": the loss is " +
                         std::to_string(found.jobs.front().front().second),
                     "lower --lr or add --warmup-steps");
}

/// Evaluates one array. Returns true if the run was asked to stop before the end.
bool Trainer::Impl::evaluate_array(int array) {
  const Evaluation& evaluation = sources[array].evaluation;
  const std::int64_t total = evaluation.microbatches;
  bool asked = false;
  evaluation.batches->seek(0);
  // Positions of the tags go up from evaluation to evaluation; those of the data start at 0 each time.
  const std::int64_t by = kEvaluationPosition + evaluated;
  ShiftedBatches shifted(*evaluation.batches, [by] { return by; });
  RunnerParts parts = runner_parts();
  parts.batches[array] = &shifted;
  parts.steps_per_update = 1;
  parts.of_each_array = 0;
  parts.array = array;
  RankRunner shifted_runner(std::move(parts));
  for (std::int64_t next = 0; next < total && !asked;) {
    const std::int64_t chunk = next / evaluation_chunk * evaluation_chunk;
    const std::int64_t end = std::min({total, chunk + evaluation_chunk, next + kEvaluationPiece});
    stages->begin_evaluation(
        array,
        {.first_position = by + chunk, .extent_of = extents_of(shifted), .evaluation_shift = evaluated});
    shifted_runner.run(evaluation_actions(plan, layout(), static_cast<int>(next - chunk),
                                          static_cast<int>(end - chunk), world.communicator),
                       done, by + chunk, [](const Action&) {});
    next = end;
    asked = evaluation_stop->next(options.stop && options.stop->load()) &&
            (next < total || array + 1 < num_arrays());
  }
  stages->finish_sends();
  evaluated += total + evaluation_chunk;
  return asked;
}

/// Returns all parameters of the model on every rank. A rank's own parameters are not copied. Collective.
NamedTensors Trainer::Impl::whole_weights() {
  NamedTensors all;
  for (int s = 0; s < plan.num_stages(); ++s) {
    const RankId root = plan.stages[s].ranks.front();
    std::map<std::string, at::Tensor> own;
    for (const HeldStage& h : stages->held()) {
      if (h.stage.value != s || h.replica != 0) continue;
      for (auto& [name, tensor] : stage_weights(*h.store)) own[name] = tensor.cpu();
    }
    for (int layer : layout().layers[s]) {
      const NamedLayer& named = layout().model.layers[layer];
      for (const ParameterSpec& spec : named.layer->parameters()) {
        if (spec.is_buffer || named.is_tied(spec)) continue;
        const std::string name = named.parameter_name(spec);
        const at::Tensor tensor =
            world.communicator.rank() == root ? own.at(name) : at::empty(spec.shape, at::kFloat);
        world.communicator.broadcast(tensor, root);
        all.emplace_back(name, tensor);
      }
    }
  }
  return all;
}

/// Scores the weights. Returns false if the run was asked to stop and left the rest out.
bool Trainer::Impl::score_weights() {
  const TimePoint begin = world.clock.now();
  score->begin(whole_weights());
  const std::int64_t total = score->rounds();
  bool asked = false;
  for (std::int64_t next = 0; next < total && !asked; ++next) {
    status.update(done,
                  score->what() + ", round " + std::to_string(next + 1) + " of " + std::to_string(total));
    if (const auto problem = together(score->what(), [&] { score->work(next); }))
      throw Error(ExitCode::RunFailed, to_string(*problem));
    asked = evaluation_stop->next(options.stop && options.stop->load()) && next + 1 < total;
  }
  evaluation_stop->finish();
  if (asked) {
    score->end();
    if (owns_loss()) log_warning(score->what() + " after step " + std::to_string(done) + " was interrupted");
    return false;
  }
  ScoreReport found{.step = done, .values = score->finish(done)};
  score->end();
  found.seconds = Seconds(world.clock.now() - begin).count();
  if (owns_loss()) {
    log.write(found);
    log.print(found);
  }
  report.reached_target = options.target_score && found.values.front().second >= *options.target_score;
  report.scores.push_back(std::move(found));
  return true;
}

/// Lets the averages of jobs begin if the evaluation that was due says so. All ranks choose the same jobs.
void Trainer::Impl::watch_evaluation() {
  if (std::ranges::none_of(averaging, [](const auto& job) { return job.has_value(); })) return;
  const at::Tensor losses = at::zeros({std::ssize(averaging)}, at::kDouble);
  if (owns_loss()) {
    const EvaluationReport& newest = report.evaluations.back();
    for (std::size_t job = 0; job < averaging.size(); ++job)
      losses.mutable_data_ptr<double>()[job] = newest.jobs[job].front().second;
  }
  if (world.communicator.size() > 1) world.communicator.broadcast(losses, plan.stages.back().ranks.front());
  for (std::size_t job = 0; job < averaging.size(); ++job) {
    if (!watches(job, done)) continue;
    const std::int64_t own = job_steps.own(job, done),
                       updates = own - (loss_scale(job) ? loss_scale(job)->skipped : 0);
    if (!averaging[job]->evaluated(losses.const_data_ptr<double>()[job], own, updates)) continue;
    for (const HeldStage& h : stages->held()) {
      for (const HeldStage::Rule& of : h.rules)
        if (h.first_job + of.job == static_cast<int>(job)) of.rule->begin_averaging(updates);
    }
    if (!owns_loss()) continue;
    const std::string of_job =
        is_one_of_several() ? "job " + std::to_string(first_job() + static_cast<int>(job)) + ": " : "";
    log_info(of_job + "averaging begins after step=" + std::to_string(own));
  }
}

}  // namespace millrace
