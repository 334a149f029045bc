#include "runtime/train/evaluations.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/failpoint.h"
#include "runtime/base/log.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/comm/nccl_communicator.h"
#include "runtime/stage/finite_check.h"
#include "runtime/train/job_batches.h"

namespace millrace {
namespace {

// Positions of evaluations are above all training positions, so that message tags never collide.
constexpr std::int64_t kEvaluationPosition = std::int64_t{1} << 36;
// Microbatches per evaluation schedule: bounds the sends that a fast first stage can accumulate. If
// microbatches follow others, a schedule has as many as the distance between them.
constexpr int kEvaluationChunk = 16;
// The number of microbatches between two checks of the stop flag.
constexpr int kEvaluationPiece = 4;

/// Returns this rank's forwards of microbatches [from, to).
std::vector<Action> evaluation_actions(const Plan& plan, const StageLayout& layout, int from, int to,
                                       const Communicator& world) {
  std::vector<Action> actions =
      std::move(forward_schedule(shape_of(plan, layout, to), transport_of(world)).ranks[world.rank().value]);
  std::erase_if(actions, [from](const Action& a) { return a.microbatch.value < from; });
  return actions;
}

/// A microbatch continues the one that it follows, so on every stage both must be on one replica. Throws
/// ConfigError.
void check_followers(const Training& t) {
  if (!t.carries()) return;
  const std::int64_t apart = t.sources.front().train->extent(t.position_of(1)).follows;
  for (const PlanStage& stage : t.plan.stages) {
    const auto replicas = static_cast<std::int64_t>(stage.ranks.size());
    const std::int64_t together = t.asynchronous() ? replicas : microbatches_per_step(t.plan);
    if (replicas == 1 || apart % together == 0) continue;
    throw ConfigError(
        "the windows of " + t.plan.model +
            " follow each other, and the replicas of a stage take turns: the state of one would "
            "be another's",
        "use a schedule that flushes, for example --schedule 1f1b, or no replicas");
  }
}

int chunk_of(const Training& t) {
  for (std::int64_t p = 0; t.carries() && p < t.sources.front().evaluation.microbatches; ++p) {
    if (const std::int64_t between = t.sources.front().evaluation.batches->extent(p).follows; between > 0)
      return static_cast<int>(between);
  }
  return kEvaluationChunk;
}

/// Weights with a loss that is not finite are useless. If only some jobs have one, the others continue.
void require_finite(const EvaluationReport& found, const std::vector<BatchSources>& sources) {
  const auto finite = [](const NamedValues& v) { return v.empty() || std::isfinite(v.front().second); };
  if (std::ranges::any_of(found.jobs, finite)) return;
  std::string text = "the evaluation after step " + std::to_string(found.step) + ": the loss is " +
                     nonfinite_text(found.jobs.front().front().second);
  for (const auto& [train, evaluation] : sources) {
    if (!evaluation.batches) continue;
    if (const auto sample = evaluation.batches->nonfinite_sample(0, evaluation.microbatches); !sample.empty())
      throw NumericError(text + "; " + sample, kRepairSample);
  }
  throw NumericError(text, "lower --lr or add --warmup-steps");
}

}  // namespace

Evaluations::Evaluations(Training& training, std::unique_ptr<WeightsScore> score)
    : t_(training),
      score_(std::move(score)),
      vote_(t_.world.communicator, "evaluation", 2 + t_.plan.num_ranks() / kEvaluationPiece),
      chunk_(chunk_of(t_)) {
  check_followers(t_);
  std::vector<std::pair<std::string, std::string>> judged{{"--keep-best", t_.options.keep_best}};
  if (t_.options.early_stop) judged.emplace_back("--early-stop", t_.options.early_stop->metric);
  for (const auto& [flag, metric] : judged) {
    if (metric.empty()) continue;
    if (t_.is_one_of_several())
      throw ConfigError(flag + " judges one job, and this run has several", "leave it out");
    if (metric == kBleuMetric ? !score_ : t_.sources.front().evaluation.microbatches == 0)
      throw ConfigError(flag + " waits for evaluations, and there are none",
                        metric == kBleuMetric ? "give --bleu-every N and --bleu-source"
                                              : "give data with a test split, without --no-evaluation");
    if (std::ranges::find(t_.report.best, metric, &BestSoFar::metric) == t_.report.best.end())
      t_.report.best.push_back({.metric = metric});
  }
  for (const JobOptions& job : t_.options.jobs) {
    averaging_.emplace_back();
    const double patience = value_of(job.rule, &RuleOptions::nonmonotone);
    if (patience == 0) continue;
    if (!evaluates()) {
      throw ConfigError("--nonmonotone waits for evaluations, and there are none during training",
                        "give --evaluate-every N, and data with a test split");
    }
    averaging_.back().emplace(static_cast<std::size_t>(patience));
  }
}

bool Evaluations::judge(BestSoFar& best, double value) {
  const TrainOptions& o = t_.options;
  const bool better = take(best, value, t_.done);
  if (o.early_stop && o.early_stop->metric == best.metric && best.since >= o.early_stop->patience) {
    t_.report.stopped_improving = true;
    if (t_.owns_loss())
      log_info("early stop: no better " + best.metric + " in " + std::to_string(best.since) +
               " evaluations; the best was " + printed("%.4g", best.value) + " after step " +
               std::to_string(best.step));
  }
  return better && o.keep_best == best.metric;
}

bool Evaluations::judge_evaluation() {
  bool is_best = false;
  for (BestSoFar& best : t_.report.best) {
    if (best.metric == kBleuMetric) continue;
    const at::Tensor found = at::zeros({2}, at::kDouble);  // whether the metric exists; its value
    std::string names;
    if (t_.owns_loss()) {
      for (const auto& [name, value] : t_.report.evaluations.back().values) {
        names += (names.empty() ? "; they have " : ", ") + name;
        if (name != best.metric) continue;
        found.mutable_data_ptr<double>()[0] = 1;
        found.mutable_data_ptr<double>()[1] = value;
      }
    }
    if (t_.world.communicator.size() > 1)
      t_.world.communicator.broadcast(found, t_.plan.stages.back().ranks.front());
    if (found.const_data_ptr<double>()[0] == 0)
      throw ConfigError(
          "the evaluations of " + t_.plan.model + " have no metric '" + best.metric + "'" + names,
          (best.metric == "auc"
               ? "auc needs a model of two classes, and test data with samples of both; else "
               : std::string()) +
              "give --keep-best and --early-stop a metric of the model");
    is_best = judge(best, found.const_data_ptr<double>()[1]) || is_best;
  }
  return is_best;
}

bool Evaluations::judges_scores() const {
  return std::ranges::any_of(t_.report.best,
                             [](const BestSoFar& best) { return best.metric == kBleuMetric; });
}

bool Evaluations::judge_score() {
  bool is_best = false;
  for (BestSoFar& best : t_.report.best) {
    if (best.metric == kBleuMetric)
      is_best = judge(best, t_.report.scores.back().values.front().second) || is_best;
  }
  return is_best;
}

bool Evaluations::evaluates() const {
  return t_.sources.front().evaluation.microbatches > 0 && t_.options.evaluate_every > 0;
}

bool Evaluations::watches(std::size_t job, std::int64_t step) const {
  const std::int64_t own = step - t_.job_steps.joined(job);
  return averaging_[job] && !averaging_[job]->has_begun() && !t_.job_steps.ended_before_run(job) &&
         own <= t_.job_steps.wanted(job) && own % t_.options.evaluate_every == 0 &&
         own > averaging_[job]->state().evaluated;
}

bool Evaluations::any_job_watches(std::int64_t step) const {
  for (std::size_t job = 0; job < averaging_.size(); ++job)
    if (watches(job, step)) return true;
  return false;
}

bool Evaluations::is_due(std::int64_t step) const {
  return evaluates() &&
         (t_.is_due(t_.options.evaluate_every, step) || (step > t_.start && any_job_watches(step)));
}

std::int64_t Evaluations::next_after(std::int64_t done) const {
  std::int64_t next = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t every :
       {evaluates() ? t_.options.evaluate_every : 0, score_ ? t_.options.score_every : 0}) {
    if (every > 0) next = std::min(next, (done / every + 1) * every);
  }
  for (std::size_t job = 0; job < averaging_.size(); ++job) {
    // Evaluations count for a waiting job only at its own steps.
    if (!averaging_[job] || averaging_[job]->has_begun()) continue;
    const std::int64_t joined = t_.job_steps.joined(job), every = t_.options.evaluate_every;
    const std::int64_t step = joined + ((done - joined) / every + 1) * every;
    if (watches(job, step)) next = std::min(next, step);
  }
  return next;
}

bool Evaluations::run() {
  if (t_.sources.front().evaluation.microbatches == 0) return true;
  if (t_.world.failpoints) t_.world.failpoints->reach("evaluation", t_.done);
  bool asked = false;
  t_.stages->use_averages(true);
  const bool reports = t_.has_last_stage();
  if (reports) t_.take_losses();
  for (int array = 0; array < t_.num_arrays() && !asked; ++array) asked = run_array(array);
  vote_.finish();
  t_.stages->use_averages(false);
  if (asked) {
    if (reports) t_.take_losses();
    if (t_.owns_loss()) log_warning("the evaluation of step " + std::to_string(t_.done) + " was interrupted");
    return false;
  }
  newest_ = t_.done;
  owed_ = -1;
  if (!reports) return true;
  for (Lane& lane : t_.stages->lanes()) lane.last()->reduce_sums();
  LossSums sums = joined(t_.take_losses());
  if (!t_.options.has_losses()) return true;
  t_.report.evaluations.push_back({.step = t_.done,
                                   .values = std::move(sums.values),
                                   .jobs = std::move(sums.jobs),
                                   .samples = sums.weight});
  if (t_.owns_loss()) {
    t_.log.write(t_.report.evaluations.back());
    t_.log.print(t_.report.evaluations.back());
  }
  if (t_.options.stop_on_nonfinite) require_finite(t_.report.evaluations.back(), t_.sources);
  return true;
}

/// Returns true if a stop was requested.
bool Evaluations::run_array(int array) {
  const Evaluation& evaluation = t_.sources[array].evaluation;
  const std::int64_t total = evaluation.microbatches;
  bool asked = false;
  if (t_.num_arrays() > 1) first_uses_.start_anew();  // each array has its own sizes
  evaluation.batches->seek(0);
  // Tag positions increase from evaluation to evaluation; data positions start at 0 each time.
  const std::int64_t by = kEvaluationPosition + evaluated_;
  ShiftedBatches shifted(*evaluation.batches, [by] { return by; });
  RunnerParts parts = t_.runner_parts();
  parts.batches[array] = &shifted;
  parts.steps_per_update = 1;
  parts.trains = false;
  parts.of_each_array = 0;
  parts.array = array;
  RankRunner runner(std::move(parts));
  std::optional<ProgressLine> line;
  if (t_.owns_loss()) line.emplace(t_.world.clock, "evaluation");
  for (std::int64_t next = 0; next < total && !asked;) {
    const std::int64_t chunk = next / chunk_ * chunk_;
    const std::int64_t end = std::min({total, chunk + chunk_, next + kEvaluationPiece});
    t_.stages->lanes()[array].begin_evaluation({.training = false,
                                                .first_position = by + chunk,
                                                .extent_of = extents_of(shifted),
                                                .evaluation_shift = evaluated_});
    first_uses_.begin(t_.world.communicator, {evaluation.batches.get()}, next, end);
    runner.run(evaluation_actions(t_.plan, t_.layout(), static_cast<int>(next - chunk),
                                  static_cast<int>(end - chunk), t_.world.communicator),
               t_.done, by + chunk, [](const Action&) {});
    if (StageExecutor* last = t_.stages->lanes()[array].last())
      last->collect_microbatches(next - chunk, end - chunk);
    next = end;
    if (line) line->show(next, total, "microbatches");
    asked = asked_to_stop() && (next < total || array + 1 < t_.num_arrays());
  }
  t_.stages->finish_sends();
  through_host(t_.world.communicator, kAllMessages);  // as in the remaining pause
  evaluated_ += total + chunk_;
  return asked;
}

NamedTensors Evaluations::whole_weights() const {
  NamedTensors all;
  for (int s = 0; s < t_.plan.num_stages(); ++s) {
    const RankId root = t_.plan.stages[s].ranks.front();
    std::map<std::string, at::Tensor> own;
    for (const HeldStage& h : t_.stages->held()) {
      if (h.stage.value != s || h.replica != 0) continue;
      for (auto& [name, tensor] : stage_weights(*h.store)) own[name] = tensor.cpu();
    }
    for (int layer : t_.layout().layers[s]) {
      const NamedLayer& named = t_.layout().model.layers[layer];
      for (const ParameterSpec& spec : named.layer->parameters()) {
        if (named.is_tied(spec)) continue;
        const std::string name = named.parameter_name(spec);
        const at::Tensor tensor =
            t_.world.communicator.rank() == root ? own.at(name) : at::empty(spec.shape, stored_type(spec));
        t_.world.communicator.broadcast(tensor, root);
        all.emplace_back(name, tensor);
      }
    }
  }
  return all;
}

bool Evaluations::run_score() {
  const TimePoint begin = t_.world.clock.now();
  t_.stages->use_averages(true);
  score_->begin(whole_weights());
  const std::int64_t total = score_->parts();
  bool asked = false;
  for (std::int64_t next = 0; next < total && !asked; ++next) {
    t_.status.update(t_.done,
                     score_->what() + ", part " + std::to_string(next + 1) + " of " + std::to_string(total));
    if (const auto problem = t_.together(score_->what(), [&] { score_->work(next); }))
      throw Error(ExitCode::RunFailed, to_string(*problem));
    asked = asked_to_stop() && next + 1 < total;
  }
  vote_.finish();
  t_.stages->use_averages(false);
  if (asked) {
    score_->end();
    if (t_.owns_loss())
      log_warning(score_->what() + " after step " + std::to_string(t_.done) + " was interrupted");
    return false;
  }
  ScoreReport found{.step = t_.done, .values = score_->finish(t_.done)};
  score_->end();
  found.seconds = Seconds(t_.world.clock.now() - begin).count();
  if (t_.owns_loss()) {
    t_.log.write(found);
    t_.log.print(found);
  }
  t_.report.reached_target =
      t_.options.target_score && found.values.front().second >= *t_.options.target_score;
  t_.report.scores.push_back(std::move(found));
  return true;
}

void Evaluations::begin_averages() {
  if (std::ranges::none_of(averaging_, [](const auto& job) { return job.has_value(); })) return;
  const at::Tensor losses = at::zeros({std::ssize(averaging_)}, at::kDouble);
  // A run without losses has only zeros, which never trigger averaging.
  if (t_.owns_loss() && t_.options.has_losses()) {
    const EvaluationReport& newest = t_.report.evaluations.back();
    for (std::size_t job = 0; job < averaging_.size(); ++job)
      losses.mutable_data_ptr<double>()[job] = newest.jobs[job].front().second;
  }
  if (t_.world.communicator.size() > 1)
    t_.world.communicator.broadcast(losses, t_.plan.stages.back().ranks.front());
  for (std::size_t job = 0; job < averaging_.size(); ++job) {
    if (!watches(job, t_.done)) continue;
    const std::int64_t own = t_.job_steps.own(job, t_.done),
                       updates = own - (t_.loss_scale(job) ? t_.loss_scale(job)->skipped : 0);
    if (!averaging_[job]->evaluated(losses.const_data_ptr<double>()[job], own, updates)) continue;
    for (const HeldStage& h : t_.stages->held()) {
      for (const HeldStage::Rule& of : h.rules)
        if (h.first_job + of.job == static_cast<int>(job)) of.rule->begin_averaging(updates);
    }
    if (t_.owns_loss()) log_info(t_.name_of_job(job) + "averaging begins after step=" + std::to_string(own));
  }
}

std::optional<AveragingState> Evaluations::waiting(std::size_t job) const {
  if (!averaging_[job]) return std::nullopt;
  return averaging_[job]->state();
}

void Evaluations::set_waiting(std::size_t job, const AveragingState& state) {
  if (averaging_[job]) averaging_[job]->set_state(state);
}

}  // namespace millrace
