#include "driver/worker/train_summary.h"

#include <cstdio>
#include <filesystem>
#include <map>

#include "driver/launch/run_manifest.h"
#include "driver/queues/shell_words.h"
#include "driver/worker/emulation.h"
#include "driver/worker/train_arrays.h"
#include "driver/worker/variant.h"
#include "driver/worker/worker_data_report.h"
#include "driver/worker/worker_environment.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/quantities.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"
#include "runtime/train/run_settings.h"
#include "runtime/train/step_log.h"

namespace millrace {

Json settings_of(const TrainSpec& spec, std::size_t job) {
  Json settings = Json::object({});
  for (const auto& [flag, values] : spec.lists) settings[flag] = values[job];
  return settings;
}

namespace {

Json jobs_of(const TrainSpec& spec, const RunReport& report) {
  Json jobs = Json::array();
  for (std::size_t b = 0; b < report.jobs.size(); ++b) {
    const JobReport& job = report.jobs[b];
    Json losses = Json::array(), evaluation;
    const bool has_losses = !job.losses.empty() && spec.options.has_losses();
    if (has_losses)
      for (double loss : job.losses) losses.push_back(loss);
    if (!report.evaluations.empty()) {
      evaluation = Json::object({});
      const EvaluationReport& last = report.evaluations.back();
      for (const auto& [name, value] : last.jobs[b]) evaluation[name] = value;
    }
    jobs.push_back(
        Json::object({{"job", static_cast<std::int64_t>(b) + spec.options.first_job.value_or(0)},
                      {"settings", settings_of(spec, b)},
                      {"first_step", job.first_step},
                      {"step", job.steps},
                      {"loss", has_losses ? Json(job.losses.back()) : Json()},
                      {"status", job.nonfinite_step < 0 ? "ok" : "nonfinite"},
                      {"nonfinite_step", job.nonfinite_step < 0 ? Json() : Json(job.nonfinite_step)},
                      {"losses", losses},
                      {"evaluation", evaluation}}));
    if (!job.loss_scale) continue;
    jobs.items().back()["loss_scale"] = job.loss_scale->scale;
    jobs.items().back()["skipped_steps"] = job.loss_scale->skipped;
  }
  return jobs;
}

Json kernels_of(const TrainSpec& spec) {
  Json rows = Json::array();
  for (const auto& [jobs, choices] : spec.choices) {
    for (const KernelChoice& choice : choices->all())
      rows.push_back(Json::object({{"layer", choice.layer},
                                   {"kind", choice.kind},
                                   {"inputs", choice.inputs},
                                   {"kernel", choice.fused ? "fused" : "loop"},
                                   {"loop_s", choice.loop_s},
                                   {"fused_s", choice.fused_s}}));
  }
  return rows;
}

Json summary_of(const TrainSpec& spec, const RunReport& report, const Json& files) {
  Json evaluations = Json::array();
  for (const EvaluationReport& e : report.evaluations) {
    Json one = Json::object({{"step", e.step}, {"samples", static_cast<std::int64_t>(e.samples)}});
    for (const auto& [name, value] : e.values)
      one[numbered_from(name, spec.options.first_job.value_or(0))] = value;
    evaluations.push_back(std::move(one));
  }
  Json best = Json::object({});
  for (const BestSoFar& one : report.best)
    if (one.step >= 0) best[one.metric] = Json::object({{"value", one.value}, {"step", one.step}});
  Json losses = Json::array(), lost = Json::array();
  for (const std::string& one : report.lost) lost.push_back(one);
  const bool has_losses = !report.losses.empty() && spec.options.has_losses();
  if (has_losses)
    for (double loss : report.losses) losses.push_back(loss);
  const std::optional<LossScaleState>& scale = report.loss_scale;
  Json summary = Json::object({{"format", "millrace-summary-1"},
                               {"model", spec.alone.name},
                               {"data", spec.data},
                               {"ranks", spec.pipeline.num_ranks()},
                               {"stages", spec.pipeline.num_stages()},
                               {"schedule", to_string(spec.pipeline.schedule)},
                               {"microbatches", spec.pipeline.microbatches},
                               {"microbatch", spec.options.microbatch},
                               {"seed", static_cast<std::int64_t>(spec.options.seed)},
                               {"device", to_string(spec.device)},
                               {"device_name", report.device},
                               {"precision", to_string(spec.options.precision)},
                               {"loss_scale", scale ? Json(scale->scale) : Json()},
                               {"skipped_steps", scale                  ? Json(scale->skipped)
                                                 : report.skipped_steps ? Json(*report.skipped_steps)
                                                                        : Json()},
                               {"run", report.run},
                               {"steps", report.steps},
                               {"steps_per_epoch", spec.steps_per_epoch},
                               {"train_samples", spec.train_samples},
                               {"eval_samples", spec.test_samples},
                               {"first_step", report.first_step},
                               {"stopped_early", report.stopped},
                               {"checkpoint_step", report.saved_step < 0 ? Json() : Json(report.saved_step)},
                               {"checkpoints_failed", report.failed_saves},
                               {"checkpoint_snapshot_bytes", report.snapshot_bytes},
                               {"log_lines_lost", report.lost_log_lines},
                               {"lost", lost},
                               {"final_loss", has_losses ? Json(report.losses.back()) : Json()},
                               {"median_step_s", report.median_step_s},
                               {"predicted_step_s", spec.pipeline.predicted_step_s},
                               {"samples_per_s", report.samples_per_s},
                               {"seconds", report.seconds},
                               {"peak_stash", report.peak_stash},
                               {"peak_versions", report.peak_versions},
                               {"peak_memory_bytes", report.peak_memory_bytes},
                               {"evaluations", evaluations},
                               {"data_files", files},
                               {"losses", losses}});
  if (spec.emulated) summary["emulated"] = spec.emulated->as_json();
  if (spec.variant) summary["variant"] = variant_as_json(spec, report);
  if (best.size() > 0) {
    summary["best"] = std::move(best);
    summary["early_stop"] = report.stopped_improving;
  }
  if (spec.bleu_text) {
    Json scores = Json::array();
    for (const ScoreReport& score : report.scores) {
      Json one = Json::object(
          {{"step", score.step},
           {"epochs", static_cast<double>(score.step) / static_cast<double>(spec.steps_per_epoch)}});
      for (const auto& [name, value] : score.values) one[name] = value;
      one["seconds"] = score.seconds;
      scores.push_back(std::move(one));
    }
    summary["bleu"] = Json::object({{"signature", spec.bleu_text->signature()},
                                    {"source", spec.bleu.source},
                                    {"sentences", spec.bleu_text->sentences()},
                                    {"target", spec.bleu.target ? Json(*spec.bleu.target) : Json()},
                                    {"reached_target", report.reached_target},
                                    {"scores", scores}});
  }
  if (!spec.of_jobs.empty() || spec.options.first_job) {
    summary["jobs"] = jobs_of(spec, report);
    summary["arrays"] = spec.pipeline.arrays;
    summary["kernels"] = kernels_of(spec);
    Json tried = Json::array();
    for (const TriedArray& one : spec.division.tried)
      tried.push_back(Json::object({{"jobs", static_cast<std::int64_t>(one.jobs)}, {"job_s", one.job_s}}));
    summary["tried_arrays"] = tried;
  }
  return summary;
}

/// --explain
void print_kernels(const KernelChoices& choices) {
  if (choices.mode() != ArrayKernels::Auto) {
    std::printf("kernels: %s, nothing was measured\n", to_string(choices.mode()).c_str());
    return;
  }
  std::printf("%-24s %-18s %-6s %10s %10s  %s\n", "layer", "kind", "kernel", "loop us", "fused us",
              "inputs of a job");
  for (const KernelChoice& c : choices.all())
    std::printf("%-24s %-18s %-6s %10.1f %10s  %s\n", c.layer.c_str(), c.kind.c_str(),
                c.fused ? "fused" : "loop", c.loop_s * 1e6,
                c.fused_s > 0 ? printed("%.1f", c.fused_s * 1e6).c_str() : "-", c.inputs.c_str());
}

void print_scores(const RunReport& report) {
  if (report.scores.empty()) return;
  const auto bleu = [](const ScoreReport& score) { return score.values.front().second; };
  const ScoreReport& best = *std::ranges::max_element(report.scores, {}, bleu);
  const ScoreReport& last = report.scores.back();
  std::printf("BLEU %.2f after step %lld, the best %.2f after step %lld%s\n", bleu(last),
              static_cast<long long>(last.step), bleu(best), static_cast<long long>(best.step),
              report.reached_target ? "; the target is reached" : "");
}

/// `without`: why there are no losses; empty: there are.
void print_steps(const RunReport& report, const char* without) {
  const bool only_judged = report.losses.empty() && report.first_step == 0 && !report.evaluations.empty();
  if (only_judged) return;
  if (report.losses.empty()) {
    std::printf("%ssteps 0: nothing was trained%s\n", job_mark().c_str(),
                report.first_step > 0
                    ? (", the checkpoint is of step " + std::to_string(report.first_step)).c_str()
                    : "");
  } else if (*without) {
    std::printf("%ssteps %lld, no losses (%s), %.2f ms per step (median), %.1f samples/s\n",
                job_mark().c_str(), static_cast<long long>(report.steps), without, report.median_step_s * 1e3,
                report.samples_per_s);
  } else {
    std::printf("steps %lld, final loss %.6f, %.2f ms per step (median), %.1f samples/s\n",
                static_cast<long long>(report.steps), report.losses.back(), report.median_step_s * 1e3,
                report.samples_per_s);
  }
}

void print_result(const RunReport& report, const char* without) {
  print_steps(report, without);
  if (report.loss_scale)
    std::printf("loss scale %g, %lld of all steps skipped\n", report.loss_scale->scale,
                static_cast<long long>(report.loss_scale->skipped));
  else if (report.skipped_steps)
    std::printf("%lld steps skipped: loss or gradient was not finite\n",
                static_cast<long long>(*report.skipped_steps));
  print_scores(report);
  if (report.evaluations.empty()) return;
  std::string text;
  for (const auto& [name, value] : report.evaluations.back().values)
    text += (text.empty() ? "" : ", ") + name + " " + printed("%.4f", value);
  std::printf("evaluation: %s\n", text.c_str());
  for (const BestSoFar& best : report.best)
    if (best.step >= 0)
      std::printf("best %s: %.4f after step %lld%s\n", best.metric.c_str(), best.value,
                  static_cast<long long>(best.step), report.stopped_improving ? " (early stop)" : "");
}

}  // namespace

std::string command_of_process() {
  std::string command;
  if (const Result<std::string> words = read_file("/proc/self/cmdline"))
    for (const std::string& word : words_of(*words, '\0'))
      command += !command.empty()                                    ? " " + quoted(word)
                 : word.find("millrace-worker") != std::string::npos ? "millrace"
                                                                     : quoted(word);
  return command;
}

/// The settings, and for a run that no launcher has described also the command and the machine.
void add_what_was_run(Json& summary, const TrainSpec& spec) {
  if (spec.networks.size() == 1) {
    Json settings = Json::object({});
    for (const auto& [name, value] : run_settings(spec.networks.front(), spec.pipeline, spec.options))
      settings[name] = value;
    settings["threads"] = std::to_string(spec.threads);
    summary["settings"] = std::move(settings);
  }
  if (spec.options.output_dir.empty() || !launched_run().empty()) return;
  summary["made"] = run_facts();
  summary["made"]["command"] = spec.options.command;
}

Json publish_summary(const TrainSpec& spec, RunReport& report, const Json& files, RankId rank) {
  if (rank != spec.pipeline.stages.back().ranks.front()) return {};
  for (const char* set : {"train", "test"}) {
    const Json* of_set = files.is_object() ? files.find(set) : nullptr;
    const std::string text = of_set ? data_report_text(*of_set) : "";
    if (!text.empty()) log_info(std::string("data ") + set + ": " + text);
  }
  Json summary = summary_of(spec, report, files);
  add_what_was_run(summary, spec);
  if (!spec.options.output_dir.empty()) {
    const auto path = std::filesystem::path(spec.options.output_dir) / run_files::kSummary;
    if (Status saved = write_file_atomically(path, summary.dump(1) + "\n"); !saved)
      report.lost.push_back("the summary (" + to_string(saved.problems()) + ")");
  }
  for (const std::string& lost : report.lost)
    log_error((report.stopped ? "the run was stopped, and" : "the run is through, but") +
              std::string(" this could not be written: ") + lost);
  if (spec.format == OutputFormat::Json) {
    if (!spec.options.first_job) std::printf("%s\n", summary.dump(1).c_str());
    return summary;
  }
  print_result(report, spec.emulated ? "emulated" : spec.options.waits ? "sleeping" : "");
  if (const Measured measured = spec.emulated ? spec.emulated->measured() : Measured{}; measured.spread > 0)
    std::printf("%s%s\n", job_mark().c_str(),
                interval_text(report.median_step_s, measured.spread, measured.blocks).c_str());
  for (std::size_t b = 0; b < report.jobs.size(); ++b) {
    std::string settings;
    for (const auto& [flag, values] : spec.lists) settings += " " + flag + "=" + values[b];
    const JobReport& job = report.jobs[b];
    const std::string loss = !spec.options.has_losses() ? std::string("no losses")
                             : job.losses.empty()       ? "done before, at step " + std::to_string(job.steps)
                                                        : printed("final loss %.6f", job.losses.back());
    std::printf("%sjob %zu:%s %s%s\n", job_mark().c_str(),
                b + static_cast<std::size_t>(spec.options.first_job.value_or(0)), settings.c_str(),
                loss.c_str(),
                job.nonfinite_step < 0
                    ? ""
                    : (", not finite from step " + std::to_string(job.nonfinite_step) + " on").c_str());
  }
  if (!spec.explain) return summary;
  for (const auto& [jobs, choices] : spec.choices) {
    if (spec.choices.size() > 1) std::printf("arrays of %zu jobs\n", jobs);
    print_kernels(*choices);
  }
  return summary;
}

}  // namespace millrace
