#include "runtime/train/trainer_impl.h"

#include <algorithm>

#include <ATen/ops/full.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/checkpoint/carried.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/checkpoint/job_checkpoints.h"
#include "runtime/checkpoint/kernel_choices.h"
#include "runtime/checkpoint/stash.h"
#include "runtime/layers/job_array.h"
#include "runtime/train/run_settings.h"

namespace millrace {

std::string file_of_job(const std::string& path, int job) {
  std::filesystem::path file = path;
  const std::string ending = file.extension().string();
  return file.replace_extension().string() + ".job" + std::to_string(job) + ending;
}

namespace {

void require(const Status& status) {
  if (!status) throw ConfigError(to_string(status.problems()));
}

}  // namespace

/// Checks whether jobs that are at different steps can go on in one run. Throws CheckpointError.
void Trainer::Impl::check_steps(const std::string& checkpoint) const {
  if (!job_steps.apart()) return;
  const std::string apart = "cannot resume: the jobs of " + checkpoint + " are at different steps, and ";
  const std::string alone = "`millrace split` makes a checkpoint of each job";
  if (asynchronous())
    throw CheckpointError(apart + "schedule " + to_string(plan.schedule) + " never flushes",
                          "use a schedule that flushes, for example --schedule 1f1b; " + alone);
  if (carries())
    throw CheckpointError(apart + plan.model + " carries states from window to window, which all jobs read",
                          alone);
  std::size_t first = 0;
  for (std::size_t array = 0; array < layouts.size(); ++array) {
    const std::size_t end = first + static_cast<std::size_t>(layouts[array].model.jobs());
    for (std::size_t job = first; job < end; ++job) {
      if (job_steps.joined(job) != job_steps.joined(first) && !reads_own[array])
        throw CheckpointError(apart + "jobs " + std::to_string(first) + " and " + std::to_string(job) +
                                  " read the same batches",
                              "make the array with batches of each job's own (JobData::Own); " + alone);
    }
    first = end;
  }
}

/// Compares the settings of all ranks. Ranks that were started with different flags, or see different data,
/// would mix two runs.
void Trainer::Impl::agree_on_settings() {
  settings = run_settings(model, plan, options);
  Settings all = settings;
  const Settings more = rank_settings(plan, options);
  all.insert(all.end(), more.begin(), more.end());
  const Settings first = settings_from(broadcast_text(world.communicator, to_text(all)));
  const std::vector<SettingChange> changes = changes_between(first, settings_from(to_text(all)));
  const auto problem = together("comparing the ranks' settings", [&] {
    if (!changes.empty())
      throw ConfigError("was started with other settings than rank 0: " + to_string(changes));
  });
  if (problem)
    throw ConfigError(to_string(*problem), "start all ranks with the same flags and the same data");
}

/// Checks that `folder` is the same folder on all ranks, because rank 0 gathers the files of the others.
/// Collective.
void Trainer::Impl::require_shared(const std::filesystem::path& folder) {
  // A network file system may show a new file late.
  constexpr std::chrono::seconds kPatience{3};
  constexpr std::chrono::milliseconds kPause{20};
  Communicator& ranks = world.communicator;
  if (ranks.size() == 1) return;
  const bool first_rank = ranks.rank() == RankId(0);
  const std::string probe =
      run_files::kProbe + broadcast_text(ranks, first_rank ? new_run_id() : std::string());
  const std::string host = broadcast_text(ranks, first_rank ? host_name() : std::string());
  auto problem = together("trying " + folder.string(), [&] {
    if (first_rank) require(write_file_atomically(folder / probe, host + "\n"));
  });
  const auto seen = [&] {
    std::error_code ignored;
    return std::filesystem::exists(folder / probe, ignored);
  };
  if (!problem) {
    problem = together("looking for rank 0's file in " + folder.string(), [&] {
      const TimePoint end = world.clock.now() + kPatience;
      while (!seen() && world.clock.now() < end) world.clock.sleep_until(world.clock.now() + kPause);
      if (seen()) return;
      throw ConfigError(folder.string() + " on host " + host_name() +
                            " is not the folder that rank 0 has on " + host +
                            ": a file of rank 0 does not appear in it",
                        "give a folder on a file system that all hosts share, the same for every rank");
    });
  }
  std::error_code ignored;
  if (first_rank) std::filesystem::remove(folder / probe, ignored);
  if (problem) throw ConfigError(to_string(*problem));
}

/// Makes every output, or refuses it, before the first step.
void Trainer::Impl::claim_outputs() {
  const bool first_rank = world.communicator.rank() == RankId(0);
  const std::string fresh = first_rank ? new_run_id() : "";
  const auto problem = together("preparing the outputs", [&] {
    if (!options.save_weights.empty()) require(make_place_for_file(options.save_weights));
    if (options.output_dir.empty()) return;
    require(make_writable_folder(options.output_dir));
    if (!first_rank) return;
    Result<RunLock> held = RunLock::acquire(options.output_dir, fresh, options.launcher);
    if (!held) throw ConfigError(to_string(held.problems()));
    lock = std::move(*held);
    if (options.resume.empty() && !options.overwrite) require(check_unused(options.output_dir));
  });
  if (problem) throw ConfigError(problem->what);
  if (!options.output_dir.empty()) run = broadcast_text(world.communicator, fresh);
  if (!options.output_dir.empty()) require_shared(options.output_dir);
  if (!options.save_weights.empty())
    require_shared(std::filesystem::absolute(options.save_weights).parent_path());
}

void Trainer::Impl::check_changes(const Checkpoint& found) {
  if (found.info.model != plan.model) {
    throw CheckpointError("cannot resume: " + found.path + " is a checkpoint of model " + found.info.model +
                              ", this run trains " + plan.model,
                          "give the same --model, or start without --resume");
  }
  if (const std::size_t there = jobs_in(found); there != static_cast<std::size_t>(jobs())) {
    const auto text = [](std::size_t count) {
      return count == 1 ? std::string("a single job") : "an array of " + std::to_string(count) + " jobs";
    };
    throw CheckpointError("cannot resume: " + found.path + " is a checkpoint of " + text(there) +
                              ", this run is " + text(static_cast<std::size_t>(jobs())),
                          "`millrace fuse` makes one of the jobs that go on");
  }
  const auto& allowed = options.resume_changes;
  std::vector<std::string> keys{"all"};
  for (const Settings& side : {settings, found.info.settings}) {
    for (const auto& [key, value] : side) keys.push_back(key);
  }
  for (const std::string& key : allowed) {
    if (std::ranges::find(keys, key) != keys.end()) continue;
    const auto near = nearest_name(key, keys);
    throw ConfigError("--resume-changes: a checkpoint does not record '" + key + "'",
                      near ? "did you mean '" + *near + "'?" : "docs/commands.md lists what it records");
  }
  const auto is_allowed = [&](const SettingChange& change) {
    return std::ranges::any_of(allowed, [&](const auto& a) { return a == "all" || a == change.key; });
  };
  Settings then = found.info.settings;
  const std::vector<JobProgress> progress = progress_of(found);
  // New jobs of an array take the settings of this run.
  if (std::ranges::any_of(progress, &JobProgress::is_new)) {
    const std::size_t count = progress.size();
    std::vector<Settings> of_jobs = split_settings(then, count), now = split_settings(settings, count);
    for (std::size_t job = 0; job < count; ++job)
      if (progress[job].is_new) of_jobs[job] = now[job];
    then = joined_settings(of_jobs);
    then.emplace_back("jobs", std::to_string(count));
  }
  const std::vector<SettingChange> changes = changes_between(then, settings);
  std::vector<SettingChange> refused;
  std::string names;
  for (const SettingChange& change : changes) {
    if (is_allowed(change)) continue;
    refused.push_back(change);
    names += (names.empty() ? "" : ",") + change.key;
  }
  if (!refused.empty()) {
    throw CheckpointError(
        "cannot resume: " + found.path + " is of a run with other settings: " + to_string(refused),
        "give the same ones, or --resume-changes " + names + " to go on with these");
  }
  if (!changes.empty() && owns_loss()) log_warning("resuming with other settings: " + to_string(changes));
}

/// Takes the first weights from --init-from, for all jobs. Jobs that go on get those of the checkpoint
/// afterwards.
void Trainer::Impl::take_initial_weights() {
  if (options.init_from.empty()) return;
  const std::string& path = options.init_from;
  const std::string purpose = "start from " + path;
  std::vector<std::string> names;
  for (const HeldStage& h : stages->held()) {
    for (const auto& [name, tensor] : stage_weights(*h.store))
      // The names have no "job<k>/": every job of an array starts from the same weights.
      names.push_back(name.substr(name.find('/') + 1));
  }
  std::error_code ignored;
  const bool is_folder =
      broadcast_text(world.communicator, std::filesystem::is_directory(path, ignored) ? "folder" : "file") ==
      "folder";
  std::optional<Checkpoint> checkpoint;
  if (is_folder) {
    checkpoint =
        open_checkpoint_together(world.communicator, path, names, options.checkpoint_deadline, purpose);
  }
  const auto problem = together("reading " + path, [&] {
    std::optional<SafetensorsFile> file;
    WeightFiles files;
    if (checkpoint) {
      for (const SafetensorsFile& shard : checkpoint->shards) files.push_back(&shard);
    } else {
      Result<SafetensorsFile> opened = SafetensorsFile::open(path);
      if (!opened) throw CheckpointError(to_string(opened.problems()));
      files.push_back(&file.emplace(*std::move(opened)));
    }
    const LayeredModel& one = jobs() > 1 ? model.of_jobs.front() : model;
    if (const Problems problems = check_weights(files, one, options.init_from_ignore); !problems.empty())
      throw CheckpointError(to_string(problems));
    for (const HeldStage& h : stages->held()) load_weights(files, one, options.init_from_ignore, *h.store);
  });
  if (problem) throw CheckpointError("cannot " + purpose + ":\n" + problem->what);
  if (owns_loss()) log_info("initial weights from=" + (checkpoint ? checkpoint->path : path));
}

void Trainer::Impl::resume() {
  if (options.resume.empty()) return;
  std::vector<std::string> names;
  for (const HeldStage& h : stages->held()) {
    for (const HeldStage::Rule& of : h.rules) {
      for (std::string& name : stage_state_names(h.store_of(of), *of.rule)) names.push_back(std::move(name));
    }
  }
  const Checkpoint opened =
      open_checkpoint_together(world.communicator, options.resume, names, options.checkpoint_deadline);
  check_changes(opened);
  const std::vector<JobProgress> progress = progress_of(opened);
  if (std::ranges::any_of(progress, &JobProgress::is_new)) take_initial_weights();
  const auto problem = together("loading " + opened.path, [&] {
    for (std::size_t array = 0; array < choices.size(); ++array)
      if (choices[array]) load_kernel_choices(opened, *choices[array], layouts[array].model.jobs());
    for (const HeldStage& h : stages->held()) {
      for (const HeldStage::Rule& of : h.rules) {
        const JobProgress& job = progress[h.first_job + of.job];
        if (job.is_new) continue;
        ParameterStore own = h.store_of(of);
        UpdateRule& rule = *of.rule;
        if (Problems problems = load_stage(opened, plan.model, own, rule); !problems.empty())
          throw CheckpointError(to_string(problems));
        load_update_counts(opened, own, rule, job.updates);
        load_last_rate(opened, own, rule);
        if (job.averaging && job.averaging->from >= 0) rule.begin_averaging(job.averaging->from);
      }
    }
  });
  if (problem) throw CheckpointError("cannot resume: " + problem->what);
  // The run goes on if its output folder is that of the checkpoint; in another folder a new run begins.
  std::error_code ignored;
  namespace fs = std::filesystem;
  const bool own = !options.output_dir.empty() && fs::weakly_canonical(opened.path, ignored).parent_path() ==
                                                      fs::weakly_canonical(checkpoints(), ignored);
  continues = broadcast_text(world.communicator, own ? "own" : "") == "own";
  if (continues) run = opened.info.run;
  parent = continues ? opened.info.parent : opened.info.run + " step " + std::to_string(opened.info.step);
  // Returns the steps before `position`. Another schedule may count other steps.
  const auto steps_in = [&](std::int64_t position) {
    const std::int64_t per_step = microbatches_per_step(plan);
    if (position % per_step == 0) return position / per_step;
    throw CheckpointError("cannot resume: the checkpoint is after microbatch " + std::to_string(position) +
                              ", which does not end a step of " + std::to_string(per_step),
                          "give a number of microbatches per step that divides it");
  };
  done = start = steps_in(opened.info.position);
  std::vector<std::int64_t> own_steps, begins;
  for (const JobProgress& job : progress) own_steps.push_back(steps_in(job.position));
  std::vector<int> jobs_of_arrays;
  for (const StageLayout& array : layouts) jobs_of_arrays.push_back(array.model.jobs());
  job_steps.resume(start, own_steps, jobs_of_arrays);
  check_steps(opened.path);
  for (std::size_t job = 0; job < job_steps.size(); ++job)
    begins.push_back(position_of(job_steps.joined(job)));
  stages->set_begins(begins);
  for (const HeldStage& h : stages->held()) {
    h.store->set_current(VersionId(done));
    // The stash of another cut does not fit, as its delays differ: then the pipeline begins anew with the
    // newest weights.
    if (asynchronous() && opened.info.plan_fingerprint == plan.fingerprint())
      older_versions = load_stash(opened, *h.store);
  }
  for (std::size_t job = 0; job < averaging.size(); ++job)
    if (progress[job].averaging && averaging[job]) averaging[job]->set_state(*progress[job].averaging);
  for (std::size_t job = 0; job < progress.size(); ++job)
    if (progress[job].loss_scale) stages->loss_scalers()[job].set_state(*progress[job].loss_scale);
  report.first_step = done;
  if (continues) report.saved_step = done;
  if (owns_loss()) {
    std::string of_jobs;
    for (std::size_t job = 0; job_steps.apart() && job < job_steps.size(); ++job)
      of_jobs += (job == 0 ? " own_steps=" : ",") + std::to_string(job_steps.own(job, done));
    log_info("resumed step=" + std::to_string(done) + of_jobs + " from=" + opened.path);
  }
  for (const BatchSources& of_array : sources) of_array.train->seek(position_of(done));
  const auto carried = together("loading " + opened.path, [&] {
    for (const HeldStage& h : stages->held()) load_carried(opened, *h.executor, *h.store, followed());
  });
  if (carried) throw CheckpointError(carried->what);
}

/// Makes the output folder this run's. Rank 0 calls it before the other ranks open their files.
void Trainer::Impl::take_folder() {
  const std::filesystem::path folder = options.output_dir;
  if (continues && options.overwrite) {
    throw ConfigError("--overwrite would delete " + options.resume + ", which --resume goes on from",
                      "leave one of them out, or give another --output-dir");
  }
  if (continues) {
    require(go_on_from(checkpoints(), run, done));
  } else if (options.overwrite) {
    require(remove_earlier_run(folder));
  } else {
    require(check_unused(folder));
  }
  remove_unfinished(folder);
  remove_failures(folder);
  std::error_code ignored;
  // The old summary is removed, as this run has none yet.
  std::filesystem::remove(folder / run_files::kSummary, ignored);
  require(plan.save((folder / run_files::kPlan).string()));
  if (options.schedule) {
    require(write_file_atomically(folder / run_files::kSchedule, options.schedule->text));
  } else {
    std::filesystem::remove(folder / run_files::kSchedule, ignored);
  }
}

void Trainer::Impl::open_files() {
  if (options.output_dir.empty()) return;
  const int rank = world.communicator.rank().value;
  auto problem = together("taking the output folder", [&] {
    if (rank == 0) take_folder();
  });
  if (problem) throw ConfigError(problem->what);
  problem = together("opening the logs", [&] {
    const std::filesystem::path folder = options.output_dir;
    status = StatusBoard(folder / run_files::kStatus.of(rank), rank, first().stage.value);
    log = StepLog(folder,
                  {.run = run,
                   .rank = rank,
                   .stage = first().stage.value,
                   .ranks = world.communicator.size(),
                   .writes_jobs = is_one_of_several() && owns_loss(),
                   .first_job = first_job(),
                   .own_steps = job_steps.apart(),
                   .clock_ns = world.clock.now().time_since_epoch().count(),
                   .unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                  std::chrono::system_clock::now().time_since_epoch())
                                  .count()},
                  continues ? done : 0);
  });
  if (problem) throw ConfigError(problem->what);
  traced = trace_windows(std::max(options.trace_first, start), options.trace_count, last_step());
  report.run = run;
}

/// Throws NumericError on all ranks if a tensor of any rank holds NaN or Inf, so that such weights are not
/// written.
void Trainer::Impl::require_finite(const std::vector<StageTensors>& tensors) {
  if (!options.stop_on_nonfinite || jobs() > 1) return;  // the other jobs of an array are worth keeping
  const auto problem = together("looking for NaN", [&] {
    for (const StageTensors& part : tensors) {
      if (const std::string found = non_finite_in(part.tensors); !found.empty()) throw NumericError(found);
    }
  });
  if (problem) {
    throw NumericError("after step " + std::to_string(done) + " " + problem->what,
                       "lower --lr or add --warmup-steps");
  }
}

/// Adds an array's kernel choices to the tensors of a checkpoint. Arrays of one size share their choices; the
/// first of these arrays adds them.
void Trainer::Impl::add_choices(NamedTensors& state, const HeldStage& held) const {
  const auto array = static_cast<std::size_t>(held.array);
  if (!choices[array] || std::ranges::find(choices, choices[array]) != choices.begin() + held.array) return;
  std::vector<std::string> layers;
  for (const int layer : layouts[array].layers[held.stage.value])
    layers.push_back(layouts[array].model.layers[layer].name);
  add_kernel_choices(state, *choices[array], layouts[array].model.jobs(), layers);
}

/// Saves a checkpoint. Returns false if it could not be saved: training goes on, and the end of the run
/// reports it.
bool Trainer::Impl::checkpoint() {
  const TimePoint start = world.clock.now();
  const std::vector<StageTensors> state = my_state();
  require_finite(state);
  const auto problem = save_checkpoint(
      world.communicator, checkpoints().string(),
      {.run = run,
       .parent = parent,
       .model = plan.model,
       .step = done,
       .position = position_of(done),
       .updates = done,
       .plan_fingerprint = plan.fingerprint(),
       .settings = settings,
       .loss_scale = jobs() == 1 ? loss_scale(0) : std::nullopt,
       .averaging = jobs() == 1 ? waiting(0) : std::nullopt,
       .jobs = progress()},
      plan.num_stages(), state, {.keep = options.keep_checkpoints, .deadline = options.checkpoint_deadline});
  if (problem) {
    ++report.failed_saves;
    unsaved_step = done;
    if (owns_loss()) {
      log_warning("checkpoint step=" + std::to_string(done) + " NOT saved: " + to_string(*problem) + ". " +
                  (report.saved_step < 0 ? "There is none yet"
                                         : "The last one is of step " + std::to_string(report.saved_step)));
    }
    return false;
  }
  report.saved_step = done;
  unsaved_step = -1;
  if (owns_loss()) {
    log_info("checkpoint step=" + std::to_string(done) +
             " seconds=" + std::to_string(Seconds(world.clock.now() - start).count()));
  }
  return true;
}

void Trainer::Impl::save_final_weights() {
  if (options.save_weights.empty()) return;
  stages->set_training(false);  // the weights that evaluations use: some rules evaluate averages
  std::optional<RankProblem> problem;
  for (int job = 0; job < jobs() && !problem; ++job) {
    const auto weights = mine([&](const HeldStage& h) {
      if (!h.has_job(job)) return NamedTensors();
      NamedTensors own = stage_state_dict(h.of_job(job - h.first_job));
      for (auto& [name, tensor] : own) name.erase(0, jobs() > 1 ? job_prefix(job).size() : 0);
      return own;
    });
    require_finite(weights);
    if (is_one_of_several() && !is_finite(weights, job)) continue;
    const std::string file =
        is_one_of_several() ? file_of_job(options.save_weights, first_job() + job) : options.save_weights;
    problem = save_weights(world.communicator, file, plan.num_stages(), weights, options.checkpoint_deadline);
  }
  stages->set_training(true);
  if (!problem) return;
  report.lost.push_back("the weights (" + to_string(*problem) + ")");
  // The weights file failed. A checkpoint keeps what was trained, if there is a place for one.
  if (!options.output_dir.empty() && report.saved_step != done) checkpoint();
}

/// Tells whether all weights of job `job` are finite on all ranks. Collective; the result is the same on all
/// ranks.
bool Trainer::Impl::is_finite(const std::vector<StageTensors>& tensors, int job) {
  const auto problem = together("looking for NaN", [&] {
    for (const StageTensors& part : tensors) {
      if (const std::string found = non_finite_in(part.tensors); !found.empty()) throw NumericError(found);
    }
  });
  if (problem && owns_loss())
    log_warning("the weights of job " + std::to_string(first_job() + job) +
                " are not saved: " + problem->what);
  return !problem;
}

/// Tells all ranks which results are missing on the disk.
void Trainer::Impl::finish_files() {
  if (unsaved_step >= 0) {
    report.lost.push_back("the checkpoint of step " + std::to_string(unsaved_step));
    report.lost_checkpoint = true;
  }
  at::Tensor lines = at::full({1}, static_cast<double>(log.lost_lines()), at::kDouble);
  if (world.communicator.size() > 1 && !options.output_dir.empty())
    world.communicator.all_reduce(lines, "lost log lines")->wait();
  report.lost_log_lines = static_cast<std::int64_t>(*lines.const_data_ptr<double>());
  if (report.lost_log_lines > 0 && owns_loss())
    log_warning(std::to_string(report.lost_log_lines) + " line(s) of the steps' logs could not be written");
}

}  // namespace millrace
