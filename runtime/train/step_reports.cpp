#include "runtime/train/step_reports.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/median.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"
#include "runtime/device/host_memory.h"
#include "runtime/stage/finite_check.h"

namespace millrace {
namespace {

constexpr std::size_t kSpansInMemory = 1 << 14;      // further spans are written to the file
constexpr std::int64_t kStepsBetweenWarnings = 100;  // between warnings of spikes; the log has all
constexpr std::ptrdiff_t kRecentSteps = 32;          // their median predicts the time of the remaining steps

/// Removes the values of jobs that have ended.
void leave_out(const std::vector<char>& ended, LossSums& losses) {
  if (ended.empty()) return;
  for (std::size_t job = 0; job < ended.size(); ++job)
    if (ended[job]) losses.jobs[job].clear();
  losses.values = values_of_jobs(losses.jobs);
}

}  // namespace

bool StepReports::is_traced(std::int64_t step) const {
  return std::ranges::any_of(windows_, [&](const TraceWindow& one) { return one.holds(step); });
}

void StepReports::begin() {
  last_update_ = last_print_ = t_.world.clock.now();
  if (t_.owns_loss() && step_seconds_.empty()) first_step_.emplace("first step");
  cpu_at_last_update_ = process_cpu_seconds();
}

StepReports::Measured StepReports::measure(RankRunner& runner) {
  const TimePoint now = t_.world.clock.now();
  const double cpu_now = process_cpu_seconds();
  Measured measured{.seconds = Seconds(now - std::exchange(last_update_, now)).count(),
                    .cpu_s = cpu_now - std::exchange(cpu_at_last_update_, cpu_now),
                    .ended = now,
                    .times = runner.take_times()};
  for (const JobUpdate& job : t_.stages->decision().jobs()) measured.gradient_norms.push_back(job.norm);
  return measured;
}

void StepReports::step_ended(RankRunner& runner, std::int64_t step, std::vector<double> lr) {
  Measured measured = measure(runner);
  measured.lr = std::move(lr);
  if (t_.has_last_stage()) measured.losses = t_.take_losses();
  log(step, std::move(measured));
}

void StepReports::log(std::int64_t step, Measured measured) {
  first_step_.reset();
  const double seconds = measured.seconds;
  const int steps = t_.steps_per_update();  // of the job: the other replicas have the others
  step_seconds_.push_back(seconds / steps);
  t_.report.steps += steps;
  std::int64_t samples = 0;  // of a job, all replicas; an epoch's last step may have fewer
  for (std::int64_t p = t_.position_of(step); p < t_.position_of(step + steps); ++p)
    samples += t_.sources.front().train->extent(p).samples;
  samples_per_s_.push_back(double(samples) / seconds);
  const std::int64_t newest = step + steps - 1;
  const DeviceMemory memory = t_.world.device.memory();
  StepRecord record{.step = newest,
                    .times = measured.times,
                    .step_s = seconds,
                    .ended_s = Seconds(measured.ended.time_since_epoch()).count(),
                    .cpu_s = measured.cpu_s,
                    .samples_per_s = samples_per_s_.back(),
                    .lr = std::move(measured.lr),
                    .gradient_norms = t_.options.has_losses() ? std::move(measured.gradient_norms)
                                                              : std::vector<double>{-1},  // of no values
                    .peak_memory_bytes = memory.peak,
                    .taken_memory_bytes = memory.taken,
                    .resident_memory_bytes = peak_resident_bytes(),
                    .weight_versions = t_.stages->peak_versions(),
                    .stashed = t_.stages->peak_stash()};
  const UpdateDecision& decision = t_.stages->decision();
  for (const JobUpdate& job : decision.jobs()) {
    if (decision.scales_loss()) record.loss_scales.push_back(job.loss_scale);
    if (decision.scales_loss() || decision.skips_nonfinite()) record.skipped.push_back(job.skipped);
  }
  const StepTimes& times = record.times;
  if (const auto slow = slow_steps_.add(times.forward + times.backward + times.update)) {
    record.slow = *slow;
    t_.status.set_slow(*slow);
    log_warning("rank " + std::to_string(t_.world.communicator.rank().value) +
                printed(" is slow: for %d steps it computed %.1f times as long as at first",
                        SlowSteps::kSteps, *slow));
  }
  const JobSteps& job_steps = t_.job_steps;
  for (std::size_t job = 0; job_steps.apart() && job < job_steps.size(); ++job)
    record.own_steps.push_back(newest - job_steps.joined(job));
  record.ended = job_steps.ended_at(step);
  if (t_.has_last_stage()) {
    record.losses = joined(std::move(measured.losses));
    leave_out(record.ended, *record.losses);
    require_a_finite_loss(*record.losses, newest);
    t_.report.losses.push_back(record.losses->mean_loss());
    report_jobs(record);
    record.spike = t_.options.has_losses() && is_spike(record);
    if (!t_.options.has_losses()) record.losses.reset();  // emulated losses are meaningless
  }
  t_.log.write(record);
  if (is_traced(step)) {
    // not all spans: tracing must not slow the step down
    for (const Span& span : t_.trace.spans_from(step)) {
      if (span.step == step) spans_.push_back(span);
    }
    take_loader_spans();
    if (spans_.size() >= kSpansInMemory) spill();
  }
  if (t_.owns_loss()) print_if_due(record, step, measured.ended);
}

/// Prints at regular step and time intervals. `first`: the first of the record's steps.
void StepReports::print_if_due(const StepRecord& record, std::int64_t first, TimePoint now) {
  const std::int64_t done = record.step + 1, left = t_.last_step() - done;
  const bool due = std::ranges::count(record.skipped, 1) > 0 || left == 0 ||
                   done / t_.options.print_every > first / t_.options.print_every ||
                   now - last_print_ >= t_.options.print_interval;
  if (!due) return;
  last_print_ = now;
  const std::ptrdiff_t recent = std::min<std::ptrdiff_t>(std::ssize(step_seconds_), kRecentSteps);
  const double step_s = median({step_seconds_.end() - recent, step_seconds_.end()});
  t_.log.print(record, t_.last_step(), step_s * static_cast<double>(left));
}

void StepReports::report_jobs(const StepRecord& record) {
  const std::vector<NamedValues>& losses = record.losses->jobs;
  std::vector<JobReport>& jobs = t_.report.jobs;
  if (jobs.empty() && t_.is_one_of_several()) {
    for (std::size_t job = 0; job < losses.size(); ++job)
      jobs.push_back({.first_step = t_.job_steps.own(job, t_.start)});
  }
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    jobs[job].steps = t_.job_steps.own(job, record.step + 1);
    if (losses[job].empty()) continue;  // it has ended
    const std::int64_t own = record.step - t_.job_steps.joined(job);
    const double loss = losses[job].front().second;
    jobs[job].losses.push_back(loss);
    const bool skipped = !record.skipped.empty() && record.skipped[job];  // its weights are unchanged
    if (std::isfinite(loss) || skipped || jobs[job].nonfinite_step >= 0) continue;
    jobs[job].nonfinite_step = own;
    if (t_.owns_loss())
      log_warning(t_.name_of_job(job) + "the loss of its step " + std::to_string(own) + " is " +
                  nonfinite_text(loss) + "; the other jobs go on");
  }
}

/// Only for a single job; the losses of several jobs are independent.
bool StepReports::is_spike(const StepRecord& record) {
  if (t_.is_one_of_several() || record.losses->values.empty()) return false;
  const double loss = record.losses->mean_loss();
  const std::optional<double> usual = spikes_.add(loss);
  if (usual && t_.owns_loss() && record.step >= warns_of_spikes_from_) {
    warns_of_spikes_from_ = record.step + kStepsBetweenWarnings;
    log_warning(
        "step " + std::to_string(record.step) +
        printed(": the loss of %.4g is a spike: the median of the steps before is %.4g", loss, *usual));
  }
  return usual.has_value();
}

/// A run of several arrays ends when no job has a finite loss. An executor checks only one array.
void StepReports::require_a_finite_loss(const LossSums& losses, std::int64_t step) const {
  const auto finite = [](const NamedValues& job) { return job.empty() || std::isfinite(job.front().second); };
  if (!t_.options.stop_on_nonfinite || t_.stages->decision().scales_loss() || t_.num_arrays() == 1 ||
      std::ranges::any_of(losses.jobs, finite))
    return;
  throw NumericError("step " + std::to_string(step) + ": the loss of every job is NaN or infinite",
                     "lower --lr or add --warmup-steps");
}

void StepReports::paused(SpanKind kind, TimePoint from) {
  if (!is_traced(t_.done - 1)) return;
  spans_.push_back({.kind = kind,
                    .step = t_.done - 1,
                    .start = from.time_since_epoch().count(),
                    .end = t_.world.clock.now().time_since_epoch().count()});
}

void StepReports::ended() {
  if (!t_.options.phases) return;
  for (const Span& span : t_.trace.spans_from(t_.done)) spans_.push_back(span);  // of the last evaluation
  take_loader_spans();
}

void StepReports::take_loader_spans() {
  if (!t_.loader_spans) return;
  const int per_step = microbatches_per_step(t_.plan);
  for (Span span : t_.loader_spans->take()) {
    span.step = span.microbatch / per_step;
    if (is_traced(span.step)) spans_.push_back(span);
  }
}

void StepReports::spill() {
  const std::string& folder = t_.options.output_dir;
  if (!folder.empty()) {
    try {
      if (!trace_file_)
        trace_file_.emplace(std::filesystem::path(folder) /
                            run_files::kTrace.of(t_.world.communicator.rank().value));
      if (const Status written = trace_file_->add(spans_); !written)
        log_warning(std::to_string(spans_.size()) + " spans are lost: " + to_string(written.problems()));
    } catch (const ConfigError& error) {
      log_warning(std::to_string(spans_.size()) + " spans are lost: " + error.what());
    }
  }
  spans_.clear();
}

void StepReports::write_trace() {
  if (t_.options.output_dir.empty() || (spans_.empty() && !trace_file_)) return;
  Status status = Ok{};
  if (trace_file_) {
    spill();
    status = trace_file_->finish();
    trace_file_.reset();
  } else {
    const auto path = std::filesystem::path(t_.options.output_dir) /
                      run_files::kTrace.of(t_.world.communicator.rank().value);
    status = write_file_atomically(path, spans_to_json(spans_));
  }
  if (!status) log_warning(to_string(status.problems()));
}

void StepReports::finish() {
  const auto after_first = [](const std::vector<double>& values) {
    return median({values.begin() + (values.size() > 1), values.end()});
  };
  t_.report.median_step_s = after_first(step_seconds_);
  t_.report.samples_per_s = after_first(samples_per_s_);
}

}  // namespace millrace
