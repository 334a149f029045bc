#include "experiments/sweep/run_sweep.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>

#include "driver/launch/launch_command.h"
#include "experiments/sweep/csv_text.h"
#include "experiments/sweep/job_outcome.h"
#include "runtime/base/error.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"
#include "runtime/plan/plan_rounds.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlanKey = "plan";  // of the journal

/// A process to run, and the jobs in it.
struct Task {
  std::string key;  ///< of the journal, and its folder below the sweep's
  std::string label;
  JobSpec job;
  std::vector<int> jobs;
  Leftovers leftovers = Leftovers::Delete;
};

double number_of(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value && value->is_number() ? value->as_double() : 0;
}

std::string text_of(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

class Runner {
 public:
  Runner(const SweepSpec& spec, Journal& journal, Failed failed)
      : spec_(spec), journal_(journal), failed_(failed) {}

  SweepResults run(int& stopped) {
    SweepResults results;
    try {
      if (spec_.plan) keep_plan();
      if (spec_.has(SweepMode::Fused)) array_ = spec_.array > 0 ? spec_.array : spec_.num_jobs;
      if (spec_.measures) find_largest(results);
      if (spec_.results) {
        for (SweepMode mode : spec_.modes) train_all(mode, results);
      }
      if (spec_.measures) measure_all(results);
    } catch (const Cancelled&) {
      stopped = pool_.interrupt();
    }
    return results;
  }

 private:
  static void say(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

  std::string folder(const std::string& key) const { return (fs::path(spec_.output_dir) / key).string(); }

  /// Done, and not to be tried again.
  const Json* done(const std::string& key) const {
    const Json* record = journal_.find(key);
    return record && failed_ == Failed::Retry && number_of(*record, "exit_code") != 0 ? nullptr : record;
  }

  void keep(const std::string& key, Json record) {
    if (const Status kept = journal_.record(key, std::move(record)); !kept)
      throw ConfigError(to_string(kept.problems()));
  }

  JobSpec job_of(const std::vector<int>& jobs, SweepMode mode, int unfused = 0) const {
    std::vector<JobSettings> settings;
    for (int job : jobs) settings.push_back(spec_.settings(job));
    const std::vector<std::string> layers(spec_.unfused.begin(), spec_.unfused.begin() + unfused);
    Result<JobSpec> made =
        mode == SweepMode::Fused ? fused_job(spec_.job, settings, layers) : spec_.job.with(settings.front());
    return checked(std::move(made));
  }
  static JobSpec checked(Result<JobSpec> made) {
    if (!made) throw ConfigError(to_string(made.problems()));
    return *std::move(made);
  }

  /// Keeps the plan as it was when the sweep began: rounds that are done are of that plan.
  void keep_plan() {
    const std::string file = folder("plan.json");
    if (!journal_.find(kPlanKey)) {
      say(spec_.plan->reasons);
      if (const Status written = spec_.plan->plan.save(file); !written)
        throw ConfigError(to_string(written.problems()));
      keep(kPlanKey, Json::object({{"rounds", jobs_of_rounds(spec_.plan->plan.rounds)},
                                   {"jobs_at_once", jobs_at_once(spec_.plan->plan)},
                                   {"predicted_step_s", spec_.plan->plan.predicted_step_s},
                                   {"reasons", spec_.plan->reasons}}));
    }
    planned_ = planned_job(spec_.job, file);
  }
  static int jobs_at_once(const Plan& plan) {
    int most = 1;
    for (const PlanRound& round : plan.rounds) most = std::max(most, round.jobs);
    return most;
  }

  // ---- results
  // -------------------------------------------------------------------------------------------------

  void train_all(SweepMode mode, SweepResults& results) {
    std::vector<Task> tasks;
    const bool planned = mode == SweepMode::Fused && planned_;
    const int per_task = planned ? spec_.num_jobs : mode == SweepMode::Fused ? array_ : 1;
    for (int first = 0; first < spec_.num_jobs; first += per_task) {
      Task task;
      for (int job = first; job < std::min(spec_.num_jobs, first + per_task); ++job) task.jobs.push_back(job);
      const int index = first / per_task;
      task.key = "results/" + to_string(mode) + (mode == SweepMode::Fused ? "/array" : "/job") +
                 std::to_string(index);
      task.label =
          to_string(mode) +
          (mode == SweepMode::Fused
               ? " array " + std::to_string(index) + " of " + std::to_string(task.jobs.size()) + " jobs"
               : " job " + std::to_string(first) + " " + settings_text(spec_.settings(first)));
      task.job = planned
                     ? checked(fused_job(*planned_, all_settings(spec_.varied, spec_.seed, spec_.num_jobs)))
                     : job_of(task.jobs, mode);
      prepare_results(task);
      tasks.push_back(std::move(task));
    }
    int at_once = 1;
    if (mode == SweepMode::Concurrent) {
      at_once = spec_.at_once > 0 ? spec_.at_once : RunSlots(tasks.front().job).count();
    }
    run_tasks(tasks, at_once);
    for (const Task& task : tasks) add_results(task, mode, results);
  }

  void prepare_results(Task& task) const {
    const std::string at = folder(task.key);
    if (const std::string* file = task.job.find("save-weights"))
      set_flag(task.job, "save-weights", (fs::path(at) / fs::path(*file).filename()).string());
    set_flag(task.job, "output-dir", at);
    // One that was killed on its way goes on from its newest checkpoint.
    std::error_code ignored;
    const bool begun = fs::exists(fs::path(at) / run_files::kCheckpoints / "latest", ignored) ||
                       fs::exists(fs::path(at) / "round0" / run_files::kPlan, ignored);
    if (!done(task.key) && begun && !journal_.find(task.key)) {
      set_flag(task.job, "resume", at);
      task.leftovers = Leftovers::Keep;
    }
  }

  void start(int id, const Task& task, int slot, Leftovers leftovers) {
    PooledJob run{.job = task.job, .leftovers = leftovers};
    RunSlots(task.job).place(run, slot);
    pool_.start(id, run);
  }

  /// Each that is not done, at most `at_once` at a time, each in a slot of its own cores or hosts.
  void run_tasks(const std::vector<Task>& tasks, int at_once) {
    std::deque<int> waiting;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (!done(tasks[i].key)) waiting.push_back(static_cast<int>(i));
    }
    std::deque<int> slots;
    for (int slot = 0; slot < at_once; ++slot) slots.push_back(slot);
    std::map<int, int> slot_of;
    const auto total = static_cast<std::int64_t>(waiting.size());
    ProgressLine line(steady_clock(), "sweep");
    pool_.set_waits([&] {
      const auto open = static_cast<std::int64_t>(waiting.size()) + pool_.num_running();
      line.show(total - open, total, total == 1 ? "job" : "jobs");
    });
    while (!waiting.empty() || pool_.num_running() > 0) {
      while (!waiting.empty() && !slots.empty() && pool_.interrupt() == 0) {
        const int i = waiting.front();
        const Task& task = tasks[i];
        waiting.pop_front();
        slot_of[i] = slots.front();
        slots.pop_front();
        start(i, task, slot_of[i], task.leftovers);
      }
      if (pool_.num_running() == 0) break;
      for (const PooledEnd& end : pool_.wait()) {
        slots.push_front(slot_of[end.id]);
        line.clear();
        ended(tasks[end.id], end);
      }
    }
    pool_.set_waits({});
    pool_.take_use();
    if (pool_.interrupt() != 0) throw Cancelled("stopped");
  }

  void ended(const Task& task, const PooledEnd& end) {
    if (pool_.interrupt() != 0 && end.exit_code != 0) return;  // it is not done
    keep(task.key,
         Json::object(
             {{"exit_code", end.exit_code}, {"error", end.error}, {"counters", end.counters.to_json()}}));
    const std::string outcome =
        end.exit_code != 0 ? "FAILED: " + end.error
                           : outcome_text(task.job.output_dir) + printed("  %.2f s", end.counters.seconds);
    say(task.label + ": " + outcome);
  }

  void add_results(const Task& task, SweepMode mode, SweepResults& results) const {
    const Json* record = journal_.find(task.key);
    if (!record) return;
    const Json* counted = record->find("counters");
    Counters counters = counted ? Counters::from(*counted) : Counters{};
    const auto share = static_cast<double>(task.jobs.size());
    counters.seconds /= share;
    counters.cpu_s /= share;
    counters.peak_memory_bytes /= static_cast<std::int64_t>(share);
    if (counters.instructions) *counters.instructions /= static_cast<std::int64_t>(share);
    for (std::size_t i = 0; i < task.jobs.size(); ++i) {
      JobResult result{.job = task.jobs[i],
                       .member = mode == SweepMode::Fused ? static_cast<int>(i) : -1,
                       .mode = mode,
                       .exit_code = static_cast<int>(number_of(*record, "exit_code")),
                       .error = text_of(*record, "error"),
                       .folder = folder(task.key),
                       .counters = counters};
      const JobOutcome outcome =
          result.member >= 0 ? outcome_of(result.folder, result.member) : outcome_of(result.folder);
      if (result.exit_code == 0 && !outcome.error.empty()) {
        result.exit_code = outcome.exit_code;
        result.error = outcome.error;
      }
      result.final_loss = outcome.final_loss;
      if (result.exit_code == 0) result.work = work_of(result.folder);
      result.metrics = outcome.metrics;
      results.jobs.push_back(std::move(result));
    }
  }

  // ---- measuring
  // -----------------------------------------------------------------------------------------------

  /// Returns a job for measuring: so many steps, and nothing else.
  JobSpec timed_job(const std::vector<int>& jobs, SweepMode mode, std::int64_t steps, int unfused = 0) const {
    JobSpec job = job_of(jobs, mode, unfused);
    for (const char* flag :
         {"epochs", "save-weights", "checkpoint-every", "checkpoint-at-end", "evaluate-every", "bleu-every",
          "bleu-source", "bleu-reference", "bleu-translate", "bleu-lower-case", "target-bleu"})
      set_flag(job, flag, std::nullopt);
    set_flag(job, "steps", std::to_string(steps));
    set_flag(job, "no-evaluation", "true");
    set_flag(job, "trace-steps", "0");
    set_flag(job, "print-every", std::to_string(steps));
    return job;
  }

  /// Returns `count` jobs to measure with. Jobs that diverge end early and are passed over, unless too many
  /// do; then it returns all.
  std::vector<int> first_jobs(int count) const {
    std::vector<int> jobs;
    for (int job = 0; job < spec_.num_jobs && static_cast<int>(jobs.size()) < count; ++job) {
      if (!journal_.find(diverges(job))) jobs.push_back(job);
    }
    for (int job = 0; static_cast<int>(jobs.size()) < count; ++job) jobs.push_back(job);
    return jobs;
  }
  static std::string diverges(int job) { return "diverges/job" + std::to_string(job); }

  /// The processes of B jobs in a mode. Serial is one job.
  std::vector<Task> tasks_of(const std::string& key, SweepMode mode, int jobs, std::int64_t steps,
                             int unfused = 0) const {
    std::vector<Task> tasks;
    const auto add = [&](std::vector<int> in_it, const std::string& name) {
      Task task{.key = name, .label = name, .jobs = std::move(in_it)};
      task.job = timed_job(task.jobs, mode, steps, unfused);
      set_flag(task.job, "output-dir", folder(name));
      tasks.push_back(std::move(task));
    };
    if (mode != SweepMode::Concurrent) {
      add(first_jobs(jobs), key);
    } else {
      for (int job : first_jobs(jobs)) add({job}, key + "/idx" + std::to_string(tasks.size()));
    }
    return tasks;
  }

  struct Together {
    int exit_code = 0;
    std::vector<int> diverged = {};  ///< jobs whose loss was no number
    std::string error;
    double cpu_s = 0;
    std::optional<std::int64_t> instructions = 0;
    HostUse use;
  };

  /// All at the same time. The first failure ends none of the others.
  Together run_together(const std::vector<Task>& tasks) {
    pool_.take_use();
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const Task& task = tasks[i];
      start(static_cast<int>(i), task, static_cast<int>(i), Leftovers::Delete);
    }
    Together together;
    while (pool_.num_running() > 0) {
      for (const PooledEnd& end : pool_.wait()) {
        const std::vector<int>& jobs = tasks[end.id].jobs;
        if (end.exit_code == static_cast<int>(ExitCode::Numeric) && jobs.size() == 1)
          together.diverged.push_back(jobs.front());
        if (end.exit_code != 0 && together.exit_code == 0) {
          together.exit_code = end.exit_code;
          together.error = end.error;
        }
        together.cpu_s += end.counters.cpu_s;
        if (together.instructions && end.counters.instructions)
          *together.instructions += *end.counters.instructions;
        else
          together.instructions.reset();
      }
    }
    together.use = pool_.take_use();
    if (pool_.interrupt() != 0) throw Cancelled("stopped");
    return together;
  }

  void find_largest(SweepResults& results) {
    const MeasureSpec& m = spec_.measure;
    const std::int64_t limit = m.memory > 0 ? m.memory : available_memory() / 10 * 8;
    for (SweepMode mode : spec_.modes) {
      if (mode == SweepMode::Serial) continue;
      const std::string key = "largest/" + to_string(mode);
      if (const Json* record = done(key)) {
        results.largest.emplace_back(mode, static_cast<int>(number_of(*record, "jobs")));
      } else if (!m.sizes.empty()) {
        results.largest.emplace_back(mode, m.sizes.back());
      } else if (mode == SweepMode::Fused && planned_) {
        results.largest.emplace_back(mode, jobs_at_once(spec_.plan->plan));
      } else {
        const int largest = search_largest(mode, limit);
        keep(key, Json::object({{"jobs", largest}}));
        results.largest.emplace_back(mode, largest);
      }
      if (mode == SweepMode::Fused && spec_.array == 0) array_ = std::max(1, results.largest.back().second);
    }
  }

  int search_largest(SweepMode mode, std::int64_t limit) {
    const MeasureSpec& m = spec_.measure;
    const bool fused = mode == SweepMode::Fused;
    const int epochs = m.dry_epochs > 0 ? m.dry_epochs : fused ? 3 : 2;
    const int repeats = m.dry_repeats > 0 ? m.dry_repeats : fused ? 1 : 10;
    std::string error;
    pool_.set_memory_limit(limit);
    const auto fits = [&](int jobs) {
      const std::string key = "dry/" + to_string(mode) + "/B" + std::to_string(jobs);
      if (const Json* record = done(key)) return number_of(*record, "fits") != 0;
      bool all = true;
      for (int i = 0; i < repeats && all; ++i) {
        const Together end = run_together(tasks_of(key, mode, jobs, epochs * m.dry_iterations));
        bool others = false;
        for (int job : end.diverged) {
          if (journal_.find(diverges(job))) continue;
          keep(diverges(job), Json::object({{"error", end.error}}));
          others = true;
        }
        if (others) --i;  // again, with other jobs
        all = others || end.exit_code == 0;
        if (!all) error = end.error;
      }
      keep(key, Json::object({{"fits", all ? 1 : 0}, {"error", all ? "" : error}}));
      say("dry run: " + to_string(mode) + " B=" + std::to_string(jobs) +
          (all ? " runs" : " does not run: " + error));
      std::error_code ignored;
      fs::remove_all(folder(key), ignored);
      return all;
    };
    const int largest = largest_that_fits(m.most, fits);
    pool_.set_memory_limit(0);
    if (largest == 0)
      throw ConfigError("not even one job runs in mode " + to_string(mode) + ": " + error,
                        "`millrace launch` the job alone to see more");
    return largest;
  }

  std::vector<int> sizes(SweepMode mode, const SweepResults& results) const {
    const MeasureSpec& m = spec_.measure;
    if (mode == SweepMode::Serial) return {1};
    if (!m.sizes.empty()) return m.sizes;
    const auto found = std::ranges::find(results.largest, mode, &std::pair<SweepMode, int>::first);
    MILLRACE_CHECK(found != results.largest.end());
    return sizes_to_measure(found->second, mode == SweepMode::Fused ? m.fused_sizes : m.concurrent_sizes,
                            spec_.seed);
  }

  void measure_all(SweepResults& results) {
    // Everything is over serial.
    std::vector<SweepMode> modes = spec_.modes;
    if (!spec_.has(SweepMode::Serial)) modes.insert(modes.begin(), SweepMode::Serial);
    for (int repeat = 0; repeat < spec_.measure.repeats; ++repeat) {
      for (SweepMode mode : modes) {
        for (int jobs : sizes(mode, results)) measure(mode, jobs, 0, repeat, results);
      }
      if (!spec_.has(SweepMode::Fused)) continue;
      for (int unfused = 1; unfused <= static_cast<int>(spec_.unfused.size()); ++unfused)
        measure(SweepMode::Fused, sizes(SweepMode::Fused, results).back(), unfused, repeat, results);
    }
  }

  void measure(SweepMode mode, int jobs, int unfused, int repeat, SweepResults& results) {
    const JobSpec first = job_of({0}, SweepMode::Serial);
    const std::string* device = first.find("device");
    std::string key = "run" + std::to_string(repeat) + "/" + (device ? *device : "cpu") + "/" +
                      fs::path(*first.find("model")).filename().string() + "/" + precision_of(spec_) + "/";
    if (unfused > 0)
      key = "partially_fused/" + key + "serial" + std::to_string(unfused);
    else
      key += to_string(mode) + (mode == SweepMode::Serial ? "" : "/B" + std::to_string(jobs));
    if (!done(key)) run_measurement(key, mode, jobs, unfused);
    results.measurements.push_back(measurement_of(key, mode, jobs, unfused, repeat));
  }

  void run_measurement(const std::string& key, SweepMode mode, int jobs, int unfused) {
    const MeasureSpec& m = spec_.measure;
    const std::vector<Task> tasks = tasks_of(key, mode, jobs, m.epochs * m.iterations, unfused);
    Together end = run_together(tasks);
    std::vector<Timing> timings;
    for (const Task& task : tasks) {
      if (end.exit_code != 0) break;
      const int in_array = mode == SweepMode::Fused ? static_cast<int>(task.jobs.size()) : 1;
      const Result<Timing> timing = timing_of_run(task.job.output_dir, m.iterations, in_array);
      const Status written =
          timing ? write_file_atomically(fs::path(task.job.output_dir) / "timing.csv", timing_csv(*timing))
                 : Status(timing.problems());
      if (!written) {
        end.exit_code = static_cast<int>(ExitCode::RunFailed);
        end.error = to_string(written.problems());
      } else {
        timings.push_back(*timing);
      }
    }
    const double rate = throughput(timings, m.warmup_epochs);
    Json gpu = Json::object();
    for (const auto& [field, value] : end.use.gpu) gpu[field] = value;
    keep(key, Json::object({{"exit_code", end.exit_code},
                            {"error", end.error},
                            {"samples_per_s", rate},
                            {"cpu_s", end.cpu_s},
                            {"instructions", end.instructions ? Json(*end.instructions) : Json()},
                            {"cpu_percent", end.use.cpu_percent},
                            {"memory_bytes", end.use.memory_bytes},
                            {"available_memory_bytes", end.use.available_memory_bytes},
                            {"gpu", gpu}}));
    say(key + ": " + (end.exit_code != 0 ? "FAILED: " + end.error : printed("%.1f samples/s", rate)));
  }

  Measurement measurement_of(const std::string& key, SweepMode mode, int jobs, int unfused,
                             int repeat) const {
    const Json& record = *journal_.find(key);
    Measurement m{.mode = mode,
                  .jobs = jobs,
                  .unfused = unfused,
                  .repeat = repeat,
                  .exit_code = static_cast<int>(number_of(record, "exit_code")),
                  .error = text_of(record, "error"),
                  .samples_per_s = number_of(record, "samples_per_s"),
                  .cpu_s = number_of(record, "cpu_s"),
                  .folder = folder(key)};
    if (const Json* count = record.find("instructions"); count && count->is_number())
      m.instructions = static_cast<std::int64_t>(count->as_double());
    m.use = {
        .cpu_percent = number_of(record, "cpu_percent"),
        .memory_bytes = static_cast<std::int64_t>(number_of(record, "memory_bytes")),
        .available_memory_bytes = static_cast<std::int64_t>(number_of(record, "available_memory_bytes"))};
    if (const Json* gpu = record.find("gpu"); gpu && gpu->is_object()) {
      for (const auto& [field, value] : gpu->members()) m.use.gpu[field] = value.as_double();
    }
    return m;
  }

  const SweepSpec& spec_;
  Journal& journal_;
  Failed failed_;
  RunPool pool_;
  int array_ = 0;                    // jobs of an array at most
  std::optional<SweptJob> planned_;  // by the plan of the sweep
};

}  // namespace

int SweepResults::num_failed() const {
  const auto failed = [](const auto& one) { return one.exit_code != 0; };
  return static_cast<int>(std::ranges::count_if(jobs, failed) + std::ranges::count_if(measurements, failed));
}

SweepResults run_sweep(const SweepSpec& spec, Journal& journal, Failed failed, int& stopped) {
  return Runner(spec, journal, failed).run(stopped);
}

std::string precision_of(const SweepSpec& spec) {
  const Result<JobSpec> job = spec.job.with(spec.settings(0));
  const std::string* precision = job ? job->find("precision") : nullptr;
  return precision ? *precision : "fp32";
}

Curves curves_of(const SweepResults& results, const std::string& precision) {
  Curves curves{.partial = {.mode = "fused", .precision = precision}};
  const auto curve_for = [&](ModeCurves& mode, int repeat) -> RateCurve& {
    if (mode.repeats.size() <= static_cast<std::size_t>(repeat))
      mode.repeats.resize(static_cast<std::size_t>(repeat) + 1);
    return mode.repeats[repeat];
  };
  int full = 0;  // B of the partial curve
  for (const Measurement& m : results.measurements) {
    if (m.unfused > 0) full = m.jobs;
  }
  for (const Measurement& m : results.measurements) {
    if (m.exit_code != 0 || m.samples_per_s <= 0) continue;
    if (m.unfused > 0 || (m.mode == SweepMode::Fused && m.jobs == full))
      curve_for(curves.partial, m.repeat)[m.unfused] = m.samples_per_s;
    if (m.unfused > 0) continue;
    auto mode = std::ranges::find(curves.modes, to_string(m.mode), &ModeCurves::mode);
    if (mode == curves.modes.end())
      mode = curves.modes.insert(mode, {.mode = to_string(m.mode), .precision = precision});
    curve_for(*mode, m.repeat)[m.jobs] = m.samples_per_s;
    curves.most = std::max(curves.most, m.jobs);
  }
  for (const ModeCurves& mode : curves.modes) {
    if (mode.mode == "serial") curves.serial = band_at(mode, 1).mean;
  }
  return curves;
}

std::int64_t usual_samples(const std::vector<JobResult>& jobs) {
  std::map<std::int64_t, int> counts;
  for (const JobResult& job : jobs)
    if (job.work.samples > 0) ++counts[job.work.samples];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
  return most == counts.end() ? 0 : most->first;
}

Status write_tables(const SweepSpec& spec, const SweepResults& results) {
  const fs::path folder = spec.output_dir;
  Problems problems;
  const auto write = [&](const char* name, const std::string& text) {
    if (const Status written = write_file_atomically(folder / name, text); !written)
      append(problems, written.problems());
  };
  if (!results.jobs.empty()) {
    ValueColumns metrics;
    for (const JobResult& r : results.jobs) metrics.add(r.metrics);
    std::string text = "job,mode";
    for (const std::string& flag : spec.varied.flags()) text += "," + csv_cell(flag);
    text += ",exit_code,final_loss";
    text += metrics.header();
    text += ",step_s,samples_per_s,updates,samples,seconds,cpu_s,instructions,peak_memory_bytes,error\n";
    for (const JobResult& r : results.jobs) {
      text += std::to_string(r.job) + "," + to_string(r.mode);
      for (const Setting& setting : spec.settings(r.job)) text += "," + csv_cell(setting.text);
      text += "," + std::to_string(r.exit_code) + "," + csv_number(r.final_loss);
      text += metrics.cells(r.metrics);
      text += printed(",%.9g,%.9g,%lld,%lld", r.work.step_s, r.work.samples_per_s,
                      static_cast<long long>(r.work.updates), static_cast<long long>(r.work.samples));
      text += printed(",%.3f,%.3f,", r.counters.seconds, r.counters.cpu_s) +
              (r.counters.instructions ? std::to_string(*r.counters.instructions) : "") + "," +
              std::to_string(r.counters.peak_memory_bytes) + "," + csv_cell(r.error) + "\n";
    }
    write("results.csv", text);
  }
  if (results.measurements.empty()) {
    if (!problems.empty()) return problems;
    return Ok{};
  }
  std::vector<std::string> fields;
  for (const Measurement& m : results.measurements) {
    for (const auto& [field, value] : m.use.gpu) {
      if (std::ranges::find(fields, field) == fields.end()) fields.push_back(field);
    }
  }
  std::string text =
      "mode,B,unfused,repeat,samples_per_s,cpu_s,instructions,cpu_percent,memory_bytes,available_memory_"
      "bytes";
  for (const std::string& field : fields) text += "," + field;
  text += ",error\n";
  for (const Measurement& m : results.measurements) {
    text += to_string(m.mode) +
            printed(",%d,%d,%d,%.9g,%.3f,", m.jobs, m.unfused, m.repeat, m.samples_per_s, m.cpu_s) +
            (m.instructions ? std::to_string(*m.instructions) : "") +
            printed(",%.1f,%lld,%lld", m.use.cpu_percent, static_cast<long long>(m.use.memory_bytes),
                    static_cast<long long>(m.use.available_memory_bytes));
    for (const std::string& field : fields) {
      const auto found = m.use.gpu.find(field);
      text += "," + (found == m.use.gpu.end() ? "" : csv_number(found->second));
    }
    text += "," + csv_cell(m.error) + "\n";
  }
  write("counters.csv", text);
  const Curves curves = curves_of(results, precision_of(spec));
  if (curves.serial > 0) {
    write("throughputs.csv", throughputs_csv(curves.modes, curves.serial, curves.most));
    if (!curves.partial.repeats.empty()) {
      std::string partial =
          "serial num,serial:" + curves.partial.precision + ",hfta:" + curves.partial.precision + "\n";
      for (int k = 0; k <= static_cast<int>(spec.unfused.size()); ++k)
        partial +=
            std::to_string(k) + ",1," + csv_number(band_at(curves.partial, k).mean / curves.serial) + "\n";
      write("partially_fused.csv", partial);
    }
  }
  if (!problems.empty()) return problems;
  return Ok{};
}

}  // namespace millrace
