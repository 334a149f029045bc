#include "runtime/train/run_checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>

#include "runtime/base/failpoint.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/checkpoint/job_checkpoints.h"
#include "runtime/checkpoint/kernel_choices.h"
#include "runtime/checkpoint/stash.h"
#include "runtime/layers/job_array.h"

namespace millrace {

std::string file_of_job(const std::string& path, int job) {
  std::filesystem::path file = path;
  const std::string ending = file.extension().string();
  return file.replace_extension().string() + ".job" + std::to_string(job) + ending;
}

namespace {

/// Returns the further names that a job's state_dict has for tied parameters, each with the parameter's own.
std::vector<std::pair<std::string, std::string>> tied_names(const LayeredModel& model) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const NamedLayer& layer : model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      for (const std::string& name : spec.also) names.emplace_back(name, layer.parameter_name(spec));
    }
  }
  return names;
}

}  // namespace

RunCheckpoints::RunCheckpoints(Training& training, RunOutputs& outputs, Evaluations& evaluations,
                               const std::vector<TrainedArray>& arrays, Settings settings)
    : t_(training), outputs_(outputs), evaluations_(evaluations), settings_(std::move(settings)) {
  for (const TrainedArray& array : arrays) {
    reads_own_.push_back(!array.of_jobs.empty());
    choices_.push_back(array.choices);
  }
  if (t_.options.background_saves)
    saver_ = std::make_unique<BackgroundSaver>(t_.world.communicator, t_.world.clock);
}

void RunCheckpoints::load() {
  if (t_.options.resume.empty())
    take_initial_weights();
  else
    resume();
}

/// Loads the weights of --init-from. Resumed jobs have their own. If nothing is trained, as in `millrace
/// evaluate`, they are the weights that the evaluations of their run used.
void RunCheckpoints::take_initial_weights() {
  if (t_.options.init_from.empty()) return;
  const std::string& path = t_.options.init_from;
  const std::string purpose = "start from " + path;
  std::vector<std::string> names;
  for (const HeldStage& h : t_.stages->held()) {
    for (const auto& [name, tensor] : stage_weights(*h.store))
      names.push_back(name.substr(name.find('/') + 1));  // every job of an array starts from the same weights
  }
  std::error_code ignored;
  const bool is_folder =
      broadcast_text(t_.world.communicator,
                     std::filesystem::is_directory(path, ignored) ? "folder" : "file") == "folder";
  std::optional<Checkpoint> checkpoint;
  if (is_folder) {
    checkpoint =
        open_checkpoint_together(t_.world.communicator, path, names, t_.options.checkpoint_deadline, purpose);
  }
  const auto problem = t_.together("reading " + path, [&] {
    std::optional<SafetensorsFile> file;
    WeightFiles files;
    if (checkpoint) {
      if (const Status one = of_one_job(*checkpoint, path); !one)
        throw CheckpointError(to_string(one.problems()));
      for (const SafetensorsFile& shard : checkpoint->shards) files.push_back(&shard);
    } else {
      Result<SafetensorsFile> opened = SafetensorsFile::open(path);
      if (!opened) throw CheckpointError(to_string(opened.problems()));
      files.push_back(&file.emplace(*std::move(opened)));
    }
    const LayeredModel& one = t_.jobs() > 1 ? t_.model.of_jobs.front() : t_.model;
    if (const Problems problems = check_weights(files, one, t_.options.init_from_ignore); !problems.empty())
      throw CheckpointError(to_string(problems));
    const WeightsOf which = t_.options.steps == 0 ? WeightsOf::Evaluation : WeightsOf::Training;
    for (const HeldStage& h : t_.stages->held())
      load_weights(files, one, t_.options.init_from_ignore, *h.store, which);
  });
  if (problem) throw CheckpointError("cannot " + purpose + ":\n" + problem->what);
  if (t_.owns_loss()) log_info("initial weights from=" + (checkpoint ? checkpoint->path : path));
}

void RunCheckpoints::check_model(const Checkpoint& found) const {
  if (found.info.model != t_.plan.model) {
    throw CheckpointError("cannot resume: " + found.path + " is a checkpoint of model " + found.info.model +
                              ", this run trains " + t_.plan.model,
                          "give the same --model, or start without --resume");
  }
  if (const std::size_t there = jobs_in(found); there != static_cast<std::size_t>(t_.jobs())) {
    const auto text = [](std::size_t count) {
      return count == 1 ? std::string("a single job") : "an array of " + std::to_string(count) + " jobs";
    };
    throw CheckpointError("cannot resume: " + found.path + " is a checkpoint of " + text(there) +
                              ", this run is " + text(static_cast<std::size_t>(t_.jobs())),
                          "`millrace fuse` makes one of the jobs that go on");
  }
}

void RunCheckpoints::check_settings(const Checkpoint& found) const {
  const std::vector<SettingChange> changes = resumed_changes(found, settings_, t_.options.resume_changes);
  if (!changes.empty() && t_.owns_loss()) log_warning("resuming with other settings: " + to_string(changes));
}

/// Throws CheckpointError if jobs at different steps cannot resume together.
void RunCheckpoints::check_steps(const std::string& checkpoint) const {
  if (!t_.job_steps.apart()) return;
  const std::string apart = "cannot resume: the jobs of " + checkpoint + " are at different steps, and ";
  const std::string alone = "`millrace split` makes a checkpoint of each job";
  if (t_.asynchronous())
    throw CheckpointError(apart + "schedule " + to_string(t_.plan.schedule) + " never flushes",
                          "use a schedule that flushes, for example --schedule 1f1b; " + alone);
  if (t_.carries())
    throw CheckpointError(
        apart + t_.plan.model + " carries states from window to window, which all jobs read", alone);
  std::size_t first = 0;
  for (std::size_t array = 0; array < t_.layouts.size(); ++array) {
    const std::size_t end = first + static_cast<std::size_t>(t_.layouts[array].model.jobs());
    for (std::size_t job = first; job < end; ++job) {
      if (t_.job_steps.joined(job) != t_.job_steps.joined(first) && !reads_own_[array])
        throw CheckpointError(apart + "jobs " + std::to_string(first) + " and " + std::to_string(job) +
                                  " read the same batches",
                              "make the array with batches of each job's own (JobData::Own); " + alone);
    }
    first = end;
  }
}

/// Loads the weights and the rules' state of the resumed jobs. Throws CheckpointError.
void RunCheckpoints::load_rules(const Checkpoint& opened, const std::vector<JobProgress>& progress) {
  for (const HeldStage& h : t_.stages->held()) {
    for (const HeldStage::Rule& of : h.rules) {
      const JobProgress& job = progress[h.first_job + of.job];
      if (job.is_new) continue;
      ParameterStore own = h.store_of(of);
      UpdateRule& rule = *of.rule;
      if (Problems problems = load_stage(opened, t_.plan.model, own, rule); !problems.empty())
        throw CheckpointError(to_string(problems));
      load_update_counts(opened, own, rule, job.updates);
      load_last_rate(opened, own, rule);
      if (job.averaging && job.averaging->from >= 0) rule.begin_averaging(job.averaging->from);
    }
  }
}

void RunCheckpoints::resume() {
  std::vector<std::string> names;
  for (const HeldStage& h : t_.stages->held()) {
    for (const HeldStage::Rule& of : h.rules) {
      for (std::string& name : stage_state_names(h.store_of(of), *of.rule)) names.push_back(std::move(name));
    }
  }
  const Checkpoint opened = open_checkpoint_together(t_.world.communicator, t_.options.resume, names,
                                                     t_.options.checkpoint_deadline);
  check_model(opened);
  check_settings(opened);
  const std::vector<JobProgress> progress = progress_of(opened);
  if (std::ranges::any_of(progress, &JobProgress::is_new)) take_initial_weights();
  const auto problem = t_.together("loading " + opened.path, [&] {
    for (std::size_t array = 0; array < choices_.size(); ++array)
      if (choices_[array]) load_kernel_choices(opened, *choices_[array], t_.layouts[array].model.jobs());
    load_rules(opened, progress);
  });
  if (problem) throw CheckpointError("cannot resume: " + problem->what);
  outputs_.resume_from(opened.info, opened.path);
  const auto steps_in = [&](std::int64_t position) {  // another schedule has a different step size
    const std::int64_t per_step = microbatches_per_step(t_.plan);
    if (position % per_step == 0) return position / per_step;
    throw CheckpointError("cannot resume: the checkpoint is after microbatch " + std::to_string(position) +
                              ", which does not end a step of " + std::to_string(per_step),
                          "give a number of microbatches per step that divides it");
  };
  t_.done = t_.start = steps_in(opened.info.position);
  std::vector<std::int64_t> own_steps, begins;
  for (const JobProgress& job : progress) own_steps.push_back(steps_in(job.position));
  std::vector<int> jobs_of_arrays;
  for (const StageLayout& array : t_.layouts) jobs_of_arrays.push_back(array.model.jobs());
  t_.job_steps.resume(t_.start, own_steps, jobs_of_arrays);
  check_steps(opened.path);
  for (std::size_t job = 0; job < t_.job_steps.size(); ++job)
    begins.push_back(t_.position_of(t_.job_steps.joined(job)));
  for (Lane& lane : t_.stages->lanes()) lane.set_begins(begins);
  for (const HeldStage& h : t_.stages->held()) {
    h.store->set_current(VersionId(t_.done));
    // Other stage divisions have other delays: their pipeline restarts with the newest weights.
    if (t_.asynchronous() && opened.info.plan_fingerprint == t_.plan.fingerprint())
      older_versions_ = load_stash(opened, *h.store);
  }
  for (std::size_t job = 0; job < progress.size(); ++job) {
    if (progress[job].averaging) evaluations_.set_waiting(job, *progress[job].averaging);
    if (progress[job].loss_scale)
      t_.stages->decision().jobs()[job].scaler.set_state(*progress[job].loss_scale);
  }
  t_.report.first_step = t_.done;
  if (opened.info.lacks_evaluation) evaluations_.owe();
  for (const BestSoFar& before : opened.info.best) {
    const auto same = std::ranges::find(t_.report.best, before.metric, &BestSoFar::metric);
    if (same != t_.report.best.end()) *same = before;
  }
  if (outputs_.continues()) t_.report.saved_step = t_.done;
  if (t_.owns_loss()) {
    std::string of_jobs;
    for (std::size_t job = 0; t_.job_steps.apart() && job < t_.job_steps.size(); ++job)
      of_jobs += (job == 0 ? " own_steps=" : ",") + std::to_string(t_.job_steps.own(job, t_.done));
    log_info("resumed step=" + std::to_string(t_.done) + of_jobs + " from=" + opened.path);
  }
  for (const BatchSources& of_array : t_.sources) of_array.train->seek(t_.position_of(t_.done));
  const auto carried = t_.together("loading " + opened.path, [&] {
    for (const HeldStage& h : t_.stages->held()) load_carried(opened, *h.executor, *h.store, followed());
  });
  if (carried) throw CheckpointError(carried->what);
}

/// Returns the microbatches before this step that those of this step follow.
std::vector<CarriedRows> RunCheckpoints::followed() const {
  const std::int64_t next = t_.position_of(t_.done);
  std::vector<CarriedRows> result;
  for (std::int64_t p = next - t_.sources.front().train->extent(next).follows; p < next; ++p)
    result.push_back({p, t_.sources.front().train->extent(p).samples});
  return result;
}

/// Returns the progress of each job. It is empty if every job is at the run's step and has no state of its
/// own.
std::vector<JobProgress> RunCheckpoints::progress() const {
  std::vector<JobProgress> all;
  for (std::size_t job = 0; job < t_.job_steps.size(); ++job) {
    const std::int64_t own = t_.job_steps.own(job, t_.done);
    all.push_back({.step = own,
                   .position = t_.position_of(own),
                   .updates = own,
                   .averaging = evaluations_.waiting(job),
                   .loss_scale = t_.loss_scale(job)});
  }
  const bool alike = std::ranges::all_of(
      all, [&](const JobProgress& job) { return job.step == t_.done && !job.has_state(); });
  return alike || t_.jobs() == 1 ? std::vector<JobProgress>() : all;
}

/// Returns the tensors that this rank writes: those of the stages whose first replica it is, array by array.
std::vector<StageTensors> RunCheckpoints::mine(
    const std::function<NamedTensors(const HeldStage&)>& tensors) const {
  std::vector<StageTensors> result;
  for (const HeldStage& h : t_.stages->held()) {
    if (h.replica != 0) continue;
    auto of_stage = std::ranges::find(result, h.stage.value, &StageTensors::stage);
    if (of_stage == result.end())
      of_stage = result.insert(result.end(), StageTensors{.stage = h.stage.value, .tensors = {}});
    // The writing threads do not access devices.
    for (auto& [name, tensor] : tensors(h)) of_stage->tensors.emplace_back(name, tensor.cpu());
  }
  return result;
}

/// Arrays of equal size have the same choices: the first of them adds them.
void RunCheckpoints::add_choices(NamedTensors& state, const HeldStage& held) const {
  const auto array = static_cast<std::size_t>(held.array);
  if (!choices_[array] || std::ranges::find(choices_, choices_[array]) != choices_.begin() + held.array)
    return;
  std::vector<std::string> layers;
  for (const int layer : t_.layouts[array].layers[held.stage.value])
    layers.push_back(t_.layouts[array].model.layers[layer].name);
  add_kernel_choices(state, *choices_[array], t_.layouts[array].model.jobs(), layers);
}

/// Returns all tensors that this rank needs to resume. Collective over the replicas of each stage, which may
/// shard the rule's state.
std::vector<StageTensors> RunCheckpoints::state() const {
  std::map<const HeldStage*, NamedTensors> states;
  for (const HeldStage& h : t_.stages->held()) {
    for (const HeldStage::Rule& of : h.rules) {
      const ParameterStore own = h.store_of(of);
      UpdateRule& rule = *of.rule;
      NamedTensors state = whole_stage_state(own, rule);
      add_update_counts(state, own, rule,
                        t_.job_steps.own(static_cast<std::size_t>(h.first_job + of.job), t_.done));
      add_last_rate(state, own, rule);
      std::ranges::move(state, std::back_inserter(states[&h]));
    }
    add_carried(states[&h], *h.executor, *h.store, followed(), h.group.get());
    add_choices(states[&h], h);
  }
  return mine([&](const HeldStage& h) {
    NamedTensors state = std::move(states.at(&h));
    if (t_.asynchronous()) add_stash(state, *h.store);
    return state;
  });
}

/// Returns which of `tensors` holds NaN or Inf, the same on all ranks; nullopt if none does.
std::optional<RankProblem> RunCheckpoints::non_finite(const std::vector<StageTensors>& tensors) const {
  return t_.together("looking for NaN", [&] {
    for (const StageTensors& part : tensors) {
      if (const std::string found = non_finite_in(part.tensors); !found.empty()) throw NumericError(found);
    }
  });
}

/// Throws on all ranks, or on none. With several jobs, the others are worth saving.
void RunCheckpoints::require_finite(const std::vector<StageTensors>& tensors) const {
  if (!t_.options.stop_on_nonfinite || t_.jobs() > 1) return;
  if (const auto problem = non_finite(tensors))
    throw NumericError("after step " + std::to_string(t_.done) + " " + problem->what,
                       "lower --lr or add --warmup-steps");
}

/// Returns whether only updates change what this rank saves. In an asynchronous pipeline, microbatches stay
/// in flight.
bool RunCheckpoints::changes_at_updates() const {
  return !t_.asynchronous() &&
         std::ranges::none_of(t_.stages->held(), [](const HeldStage& h) { return h.writes().any(); });
}

/// Replaces the tensors of writing_ by copies, which do not change during training. Returns the function that
/// copies.
std::function<void()> RunCheckpoints::snapshot() {
  NamedTensors originals;
  std::int64_t bytes = 0;
  for (StageTensors& stage : writing_) {
    for (auto& [name, tensor] : stage.tensors) {
      at::Tensor& copy = copies_[name];
      if (!copy.defined() || copy.sizes() != tensor.sizes() || copy.dtype() != tensor.dtype())
        copy = at::empty(tensor.sizes(), tensor.dtype());
      originals.emplace_back(name, std::exchange(tensor, copy));
      bytes += static_cast<std::int64_t>(copy.nbytes());
    }
  }
  t_.report.snapshot_bytes = std::max(t_.report.snapshot_bytes, bytes);
  return [this, originals = std::move(originals), step = t_.done] {
    if (t_.world.failpoints) t_.world.failpoints->reach("snapshot", step);
    for (const auto& [name, original] : originals) copies_.at(name).copy_(original);
  };
}

std::string RunCheckpoints::failure_of(const std::string& name, const RankProblem& problem) const {
  return name + " NOT saved: " + to_string(problem) + ". " +
         (t_.report.saved_step < 0 ? "There is none yet"
                                   : "The last one is of step " + std::to_string(t_.report.saved_step));
}

/// Describes a checkpoint after `step`, which all active jobs have reached.
CheckpointInfo RunCheckpoints::info_of(std::int64_t step) const {
  return {.run = outputs_.run(),
          .parent = outputs_.parent(),
          .model = t_.plan.model,
          .step = step,
          .position = t_.position_of(step),
          .updates = step,
          .plan_fingerprint = t_.plan.fingerprint(),
          .settings = settings_,
          .loss_scale = t_.jobs() == 1 ? t_.loss_scale(0) : std::nullopt,
          .averaging = t_.jobs() == 1 ? evaluations_.waiting(0) : std::nullopt,
          .tied = tied_names(t_.jobs() > 1 ? t_.model.of_jobs.front() : t_.model),
          .best = t_.report.best,
          .lacks_evaluation = evaluations_.lacks(step),
          .jobs = progress()};
}

/// Returns whether weights and rule state suffice to resume, no forward writes any of them on any rank, and
/// this rank has them without communication.
bool RunCheckpoints::can_rescue() const {
  const UpdateDecision& decision = t_.stages->decision();
  const bool replicated =
      std::ranges::any_of(t_.plan.stages, [](const PlanStage& stage) { return stage.ranks.size() > 1; });
  const bool writes = std::ranges::any_of(
      t_.model.layers, [](const NamedLayer& layer) { return forward_writes(*layer.layer).any(); });
  if (!t_.options.rescues || !replicated || t_.options.output_dir.empty() || t_.options.host_folder ||
      t_.asynchronous() || writes || t_.is_one_of_several() || !t_.layout().turns.empty() ||
      decision.scales_loss() || decision.skips_nonfinite() || evaluations_.waiting(0))
    return false;
  // Replicas that shard the rule's state each have a part of it.
  return std::ranges::none_of(t_.options.jobs, [](const JobOptions& job) { return job.rule.shard_state; });
}

void RunCheckpoints::rescue() {
  if (!can_rescue()) return;
  std::optional<std::int64_t> step;
  std::vector<StageTensors> parts;
  for (const HeldStage& h : t_.stages->held()) {
    const std::int64_t updated = h.store->current().value;
    if (step && *step != updated) return;  // one of this rank's stages is a step ahead
    step = updated;
    NamedTensors state;
    for (const HeldStage::Rule& of : h.rules) {
      const ParameterStore own = h.store_of(of);
      NamedTensors part = whole_stage_state(own, *of.rule);
      add_update_counts(part, own, *of.rule, updated);
      add_last_rate(part, own, *of.rule);
      for (auto& [name, tensor] : part) state.emplace_back(name, tensor.cpu());
    }
    if (!non_finite_in(state).empty()) return;
    parts.push_back({.stage = h.stage.value, .tensors = std::move(state)});
  }
  if (!step || *step <= t_.start || *step < t_.done) return;
  save_rescued(outputs_.checkpoints().string(), info_of(*step), t_.world.communicator.rank().value,
               t_.plan.num_stages(), parts);
}

/// Returns the function that writes writing_, in this thread or another one, and logs it.
BackgroundSaver::Save RunCheckpoints::writes(const std::string& name, const std::filesystem::path& folder,
                                             const Retention& keep) const {
  std::optional<HostPlace> place;
  if (t_.options.host_folder) place = HostPlace{.first_rank = t_.options.host_folder->first_rank};
  const CheckpointInfo info = info_of(t_.done);
  const SaveOptions options{.keep = keep, .deadline = t_.options.checkpoint_deadline, .host = place};
  return [this, name, folder = folder.string(), info, options, tells = t_.owns_loss(),
          begin = t_.world.clock.now()](Communicator& ranks) {
    auto problem = save_checkpoint(ranks, folder, info, t_.plan.num_stages(), writing_, options);
    if (!tells) return problem;
    if (!problem) {
      log_info(name + " seconds=" + std::to_string(Seconds(t_.world.clock.now() - begin).count()));
    } else if (!t_.options.checkpoint_required) {  // otherwise the run ends with this text
      log_warning(failure_of(name, *problem));
    }
    return problem;
  };
}

void RunCheckpoints::begin(Underway what) {
  settle();
  writing_ = state();
  require_finite(writing_);
  const BackgroundSaver::Save save =
      what.is_best ? writes(what.name, outputs_.best(), {.newest = 1})
                   : writes(what.name, outputs_.checkpoints(),
                            {.newest = t_.options.keep_checkpoints, .every = t_.options.keep_every});
  if (!saver_) {
    end(what, save(t_.world.communicator));
    writing_.clear();
    return;
  }
  std::function<void()> copy = snapshot();
  const bool late = changes_at_updates();
  if (!late) {
    copy();
    copy = [] {};
  }
  underway_ = std::move(what);
  saver_->start(std::move(copy), save);
  if (late) t_.stages->before_change([this] { saver_->copied(); });
}

void RunCheckpoints::settle() {
  if (!underway_) return;
  const Underway what = *std::exchange(underway_, std::nullopt);
  end(what, saver_->finish());
}

/// Counts the save. Throws CheckpointError if it failed and the run requires it.
void RunCheckpoints::end(const Underway& what, const std::optional<RankProblem>& problem) {
  if (problem) ++t_.report.failed_saves;
  if (!what.is_best) unsaved_step_ = problem ? what.step : -1;
  if (problem && t_.options.checkpoint_required)
    throw CheckpointError(failure_of(what.name, *problem),
                          "make room and --resume the run; without --checkpoint-required it goes on");
  if (!problem && !what.is_best) t_.report.saved_step = what.step;
}

void RunCheckpoints::save_best() {
  begin({.name = "best " + t_.options.keep_best + ": checkpoint step=" + std::to_string(t_.done),
         .step = t_.done,
         .is_best = true});
}

void RunCheckpoints::save() {
  begin({.name = "checkpoint step=" + std::to_string(t_.done), .step = t_.done});
}

void RunCheckpoints::save_final_weights() {
  if (t_.options.save_weights.empty()) return;
  t_.stages->use_averages(true);  // the evaluated weights, if they are not the newest
  std::optional<RankProblem> problem;
  for (int job = 0; job < t_.jobs() && !problem; ++job) {
    const auto weights = mine([&](const HeldStage& h) {
      if (!h.has_job(job)) return NamedTensors();
      NamedTensors own = stage_state_dict(h.of_job(job - h.first_job));
      for (auto& [name, tensor] : own) name.erase(0, t_.jobs() > 1 ? job_prefix(job).size() : 0);
      return own;
    });
    require_finite(weights);
    if (t_.is_one_of_several()) {
      if (const auto found = non_finite(weights)) {
        if (t_.owns_loss())
          log_warning("the weights of job " + std::to_string(t_.first_job() + job) +
                      " are not saved: " + found->what);
        continue;
      }
    }
    const std::string file = t_.is_one_of_several()
                                 ? file_of_job(t_.options.save_weights, t_.first_job() + job)
                                 : t_.options.save_weights;
    problem = save_weights(t_.world.communicator, file, t_.plan.num_stages(), weights,
                           t_.options.checkpoint_deadline);
  }
  t_.stages->use_averages(false);
  if (!problem) return;
  t_.report.lost.push_back("the weights (" + to_string(*problem) + ")");
  // A trained state is kept if it can be saved elsewhere.
  settle();
  if (t_.options.saves() && t_.report.saved_step != t_.done) save();
}

void RunCheckpoints::finish() {
  settle();
  if (unsaved_step_ < 0) return;
  t_.report.lost.push_back("the checkpoint of step " + std::to_string(unsaved_step_));
  t_.report.lost_checkpoint = true;
}

}  // namespace millrace
