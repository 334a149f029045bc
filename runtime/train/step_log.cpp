#include "runtime/train/step_log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <span>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_logs.h"
#include "runtime/base/text.h"
#include "runtime/train/trainer.h"

namespace millrace {
namespace {

constexpr std::string_view kOfJob = ".job";

/// Returns a line for values that were measured while the ranks were idle.
Json line_after(std::int64_t step, const char* of, const NamedValues& values, int first_job) {
  Json line = Json::object({{"after_step", step}, {"of", of}});
  for (const auto& [name, value] : values) line[numbered_from(name, first_job)] = value;
  return line;
}

LineFile open_log(const std::filesystem::path& path, std::int64_t from_step, std::int64_t& evaluated) {
  if (from_step > 0 && cut_log_from(path, from_step)) evaluated = from_step;
  return LineFile(path, /*append=*/from_step > 0);
}

/// Returns device and inode; zeros: there is no such file.
std::pair<std::uint64_t, std::uint64_t> id_of_file(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

}  // namespace

std::string numbered_from(const std::string& name, int first_job) {
  const std::size_t at = name.rfind(kOfJob);
  if (first_job == 0 || at == std::string::npos) return name;
  const std::size_t number = at + kOfJob.size();
  const std::optional<int> job = number_of<int>(std::string_view(name).substr(number));
  return job ? name.substr(0, number) + std::to_string(first_job + *job) : name;
}

StepLog::StepLog(const std::filesystem::path& folder, const StepLogHeader& header, std::int64_t from_step)
    : path_(folder / run_files::kSteps.of(header.rank)),
      first_job_(header.first_job),
      own_steps_(header.own_steps) {
  file_ = open_log(path_, from_step, evaluated_);
  file_id_ = id_of_file(path_);
  if (header.writes_jobs) {
    jobs_begun_ = from_step > 0 && cut_table_from(folder / run_files::kJobs, from_step, own_steps_);
    jobs_file_ = LineFile(folder / run_files::kJobs, /*append=*/jobs_begun_);
  }
  Json first = Json::object({{"format", "millrace-steps-1"},
                             {"run", header.run},
                             {"rank", header.rank},
                             {"stage", header.stage},
                             {"ranks", header.ranks},
                             {"clock_ns", header.clock_ns},
                             {"unix_ns", header.unix_ns}});
  if (header.ranks > 1) {
    first["clock_offset_ns"] = header.clock_offset_ns;
    first["clock_round_trip_ns"] = header.clock_round_trip_ns;
  }
  if (!header.command.empty()) first["command"] = header.command;
  write_line(file_, first.dump());
}

bool StepLog::is_in_place() const {
  return path_.empty() || id_of_file(path_) == file_id_;
}

void StepLog::count_loss(const Status& written) {
  if (!written && lost_lines_++ == 0)
    log_warning(to_string(written.problems()) + "; training goes on without this line of its log");
}

void StepLog::write_line(LineFile& file, const std::string& line) {
  if (file.is_open()) count_loss(file.write_line(line));
}

void StepLog::add_sink(std::unique_ptr<ScalarSink> sink, double unix_minus_clock_s) {
  sinks_.push_back(std::move(sink));
  unix_minus_clock_s_ = unix_minus_clock_s;
}

void StepLog::give(std::int64_t step, const Scalars& values) {
  for (const auto& sink : sinks_) count_loss(sink->write(step, last_end_s_ + unix_minus_clock_s_, values));
}

void StepLog::write(const StepRecord& r) {
  if (!file_.is_open() && sinks_.empty()) return;
  const StepTimes& t = r.times;
  const double busy = t.forward + t.backward + t.update;
  Json line = Json::object({{"step", r.step}});
  // append_member() does not check for an equal name: names are unique, and an array has hundreds of them.
  const auto put = [&](std::string name, Json value) {
    line.append_member(std::move(name), std::move(value));
  };
  if (!r.losses || r.losses->values.empty()) put("loss", Json());
  if (r.losses) {
    for (const auto& [name, value] : r.losses->values) put(numbered_from(name, first_job_), value);
  }
  put("samples_per_s", r.samples_per_s);
  put("step_s", r.step_s);
  put("ended_s", r.ended_s);
  put("cpu_s", r.cpu_s);
  put("forward_s", t.forward);
  put("backward_s", t.backward);
  put("send_s", t.send);
  put("receive_s", t.receive);
  put("wait_s", t.wait);
  put("all_reduce_s", t.all_reduce);
  put("update_s", t.update);
  put("data_s", t.data);
  put("bubble_share", r.step_s > 0 ? std::max(0.0, 1 - busy / r.step_s) : 0.0);
  put("peak_memory_bytes", r.peak_memory_bytes);
  if (r.taken_memory_bytes > 0) put("taken_memory_bytes", r.taken_memory_bytes);
  put("resident_memory_bytes", r.resident_memory_bytes);
  put("weight_versions", r.weight_versions);
  put("stashed_microbatches", r.stashed);
  const auto put_each = [&](const std::string& name, const auto& values) {
    for (std::size_t job = 0; job < values.size(); ++job)
      if (r.ended.empty() || !r.ended[job])
        put(values.size() == 1 ? name : name + ".job" + std::to_string(first_job_ + static_cast<int>(job)),
            Json(values[job]));
  };
  put_each("own_step", r.own_steps);
  put_each("lr", r.lr);
  if (std::ranges::all_of(r.gradient_norms, [](double n) { return n >= 0 && std::isfinite(n); }))
    put_each("gradient_norm", r.gradient_norms);
  put_each("loss_scale", r.loss_scales);
  put_each("skipped", std::vector<bool>(r.skipped.begin(), r.skipped.end()));
  // Scalar sinks have the same columns in every step, without these two.
  const Scalars scalars = sinks_.empty() ? Scalars() : scalars_of(line);
  if (r.spike) put("spike", true);
  if (r.slow > 0) put("slow", r.slow);
  write_line(file_, line.dump());
  last_end_s_ = r.ended_s;
  if (!sinks_.empty()) give(r.step, scalars);
  if (jobs_file_.is_open() && r.losses) write_jobs(r);
}

void StepLog::write(const EvaluationReport& e) {
  if (e.step == evaluated_) return;
  Json line = line_after(e.step, "evaluation", e.values, first_job_);
  line["samples"] = e.samples;
  write_line(file_, line.dump());
  Scalars values;
  for (const auto& [name, value] : e.values)
    values.emplace_back("evaluation_" + numbered_from(name, first_job_), value);
  give(e.step - 1, values);
}

void StepLog::write(const ScoreReport& s) {
  Json line = line_after(s.step, "score", s.values, 0);
  line["seconds"] = s.seconds;
  write_line(file_, line.dump());
  give(s.step - 1, s.values);
}

/// Writes rows "step,job,loss,...,lr,status", with ",own_step" if jobs are at different steps.
void StepLog::write_jobs(const StepRecord& r) {
  const std::vector<NamedValues>& jobs = r.losses->jobs;
  if (!std::exchange(jobs_begun_, true)) {
    std::string header = "step,job";
    for (const auto& [name, value] : *std::ranges::find(jobs, false, &NamedValues::empty))
      header += "," + name;
    write_line(jobs_file_, header + ",lr,status" + (own_steps_ ? std::string(kOwnStep) : ""));
  }
  std::vector<std::int64_t> own = r.own_steps;
  own.resize(jobs.size(), r.step);
  std::string rows;  // all rows go out in one write
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    if (jobs[job].empty()) continue;  // it has ended
    if (!rows.empty()) rows += '\n';
    rows += std::to_string(r.step) + "," + std::to_string(first_job_ + static_cast<int>(job));
    for (const auto& [name, value] : jobs[job]) append_number(rows += ',', value);
    append_number(rows += ',', r.lr[job]);
    rows += std::isfinite(jobs[job].front().second) ? ",ok" : ",nonfinite";
    if (own_steps_) rows += "," + std::to_string(own[job]);
  }
  if (!rows.empty()) write_line(jobs_file_, rows);
}

namespace {
/// Returns for example " loss=2.3037 top1=0.094".
std::string text_of(const NamedValues& values) {
  std::string all;
  for (const auto& [name, value] : values) {
    all += " " + name + printed("=%.4f", value);
  }
  return all;
}

/// Returns all values of a single job. For several jobs it returns their losses: " loss=2.3037,2.1,nan".
std::string text_of(const std::vector<NamedValues>& jobs) {
  if (jobs.size() == 1) return text_of(jobs.front());
  std::string all;
  for (const NamedValues& job : jobs)
    all += (all.empty() ? " loss=" : ",") + (job.empty() ? "-" : printed("%.4f", job.front().second));
  return all;
}
}  // namespace

void StepLog::print(const StepRecord& r, std::int64_t total, double left_s) {
  std::string text = "step=" + std::to_string(r.step + 1) + "/" + std::to_string(total);
  if (left_s >= 1) text += " left=" + short_duration(left_s);  // first: a narrow terminal cuts the end
  if (r.losses) text += text_of(r.losses->jobs);
  text += printed(" samples/s=%.1f step=%.1fms", r.samples_per_s, r.step_s * 1e3);
  if (r.lr.size() == 1) text += printed(" lr=%.4g", r.lr.front());
  if (r.loss_scales.size() == 1) text += printed(" loss_scale=%.6g", r.loss_scales.front());
  if (const auto skipped = std::ranges::count(r.skipped, 1); skipped > 0)
    text += r.skipped.size() == 1 ? " skipped" : " skipped=" + std::to_string(skipped);
  static const bool terminal = ::isatty(STDERR_FILENO);
  if (!terminal) return log_info(text);
  text = redrawn(job_mark() + progress_bar(r.step + 1, total) + " " + text);
  std::fputs((text + (r.step + 1 >= total ? "\n" : "")).c_str(), stderr);
}

void StepLog::print(const EvaluationReport& e) {
  log_info("evaluation step=" + std::to_string(e.step) + text_of(e.jobs) +
           " samples=" + std::to_string(static_cast<std::int64_t>(e.samples)));
}

void StepLog::print(const ScoreReport& s) {
  log_info("score step=" + std::to_string(s.step) + text_of(s.values) + printed(" seconds=%.1f", s.seconds));
}

}  // namespace millrace
