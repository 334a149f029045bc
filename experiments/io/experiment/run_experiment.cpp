#include "experiments/io/experiment/run_experiment.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <optional>

#include "data/files/data_kinds.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/launcher.h"
#include "experiments/io/instrument/statistics.h"
#include "experiments/runs/run_data.h"
#include "experiments/sweep/csv_text.h"
#include "runtime/base/error.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"
#include "runtime/counters/page_cache.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

double number_in(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value && value->is_number() ? value->as_double() : 0;
}

std::optional<double> share_in(const Json& json, const char* key) {
  const Json* value = json.find(key);
  if (!value || !value->is_number()) return std::nullopt;
  return value->as_double();
}

class CellRunner {
 public:
  CellRunner(const ExperimentSpec& spec, Journal& journal, Failed failed)
      : spec_(spec), journal_(journal), failed_(failed) {}

  void run(int& stopped) {
    for (const ExperimentCell& cell : spec_.cells)
      if (!is_done(spec_.key_of(cell))) generate(cell);
    RunPool& pool = pool_.emplace();  // from here on signals are its own
    ProgressLine line(steady_clock(), "experiment");
    std::int64_t done = 0;
    const std::int64_t total = std::ranges::count_if(
        spec_.cells, [&](const ExperimentCell& cell) { return !is_done(spec_.key_of(cell)); });
    pool.set_waits([&] { line.show(done, total, "cells"); });
    for (std::size_t i = 0; i < spec_.cells.size() && pool.interrupt() == 0; ++i) {
      const ExperimentCell& cell = spec_.cells[i];
      const std::string key = spec_.key_of(cell);
      if (is_done(key)) continue;
      line.clear();
      std::fprintf(stderr, "cell %zu of %zu: %s\n", i + 1, spec_.cells.size(), key.c_str());
      if (const std::optional<Json> record = run_cell(cell, key)) keep(key, *record);
      ++done;
    }
    pool.set_waits({});
    stopped = pool.interrupt();
  }

 private:
  bool is_done(const std::string& key) const {
    const Json* record = journal_.find(key);
    return record && (failed_ == Failed::Keep || number_in(*record, "exit_code") == 0);
  }

  void keep(const std::string& key, const Json& record) {
    if (const Status kept = journal_.record(key, record); !kept)
      throw ConfigError(to_string(kept.problems()));
    const Json* error = record.find("error");
    if (error && !error->as_string().empty())
      std::fprintf(stderr, "%s failed: %s\n", key.c_str(), error->as_string().c_str());
  }

  static Json failure(std::string error) {
    return Json::object({{"exit_code", static_cast<int>(ExitCode::RunFailed)}, {"error", std::move(error)}});
  }

  std::string data_key(const ExperimentCell& cell) const {
    return "data/" + spec_.workload_of(cell).name + "-" + spec_.data_of(cell).name;
  }

  /// Makes the data of a cell, if they are to be generated and are not there yet.
  void generate(const ExperimentCell& cell) {
    const ExperimentData& data = spec_.data_of(cell);
    const std::string key = data_key(cell);
    if (data.generate.empty() || journal_.find(key) || no_data_.count(key) != 0) return;
    std::fprintf(stderr, "generates %s\n", key.c_str());
    if (std::string error = generate(data, spec_.generated_folder(data, spec_.workload_of(cell)));
        !error.empty())
      no_data_[key] = error;
    else
      keep(key, Json::object({{"exit_code", 0}}));
  }

  /// Returns what went wrong.
  static std::string generate(const ExperimentData& data, const std::string& folder) {
    const fs::path out = data.folder.empty() ? fs::path(folder) : fs::path(folder) / data.folder;
    if (const Status made = make_writable_folder(out.parent_path()); !made) return to_string(made.problems());
    std::vector<std::string> words{own_program(), "data", "generate", "--out", out.string()};
    words.insert(words.end(), data.generate.begin(), data.generate.end());
    const std::string error = run_program(std::move(words), folder + ".log");
    return error.empty() ? "" : "the data were not generated: " + error;
  }

  /// Nothing: a signal stopped it.
  std::optional<Json> run_cell(const ExperimentCell& cell, const std::string& key) {
    if (cell.variant == RunVariant::Sleep) {
      const Json* source = journal_.find(spec_.key_of(spec_.source_of(cell)));
      if (!source || number_in(*source, "exit_code") != 0)
        return failure("its instrumented run, " + spec_.key_of(spec_.source_of(cell)) + ", failed");
    }
    if (const auto error = no_data_.find(data_key(cell)); error != no_data_.end())
      return failure(error->second);
    Result<JobSpec> job = spec_.job_of(cell);
    if (!job) return failure(to_string(job.problems()));
    set_flag(*job, "output-dir", (fs::path(spec_.output_dir) / key).string());
    const std::vector<std::string> files = prepare_cache(spec_, cell);
    const double before = cached_share(files);
    if (cell.cache == CacheState::Cold && before > 0.01)
      std::fprintf(stderr, "note: %s: %.0f %% of the data stayed in the cache\n", key.c_str(), 100 * before);
    pool_->start(0, {.job = *std::move(job)});
    const std::vector<PooledEnd> ended = pool_->wait();
    if (ended.empty() || pool_->interrupt() != 0) return std::nullopt;
    const PooledEnd& end = ended.front();
    Json record = Json::object({{"exit_code", end.exit_code},
                                {"error", end.exit_code == 0  ? std::string()
                                          : end.error.empty() ? "exit code " + std::to_string(end.exit_code)
                                                              : end.error},
                                {"counters", end.counters.to_json()}});
    if (before >= 0) record["cached_before"] = before;
    if (const double after = cached_share(files); after >= 0) record["cached_after"] = after;
    return record;
  }

  const ExperimentSpec& spec_;
  Journal& journal_;
  Failed failed_;
  std::map<std::string, std::string> no_data_;  ///< why, by data_key()
  std::optional<RunPool> pool_;
};

// ---- what the runs left
// --------------------------------------------------------------------------------------

/// Means over the steps after the first.
PhaseTimes phases_of(const RankRun& rank) {
  const std::pair<const char*, double StepLine::*> parts[] = {
      {"batch wait", &StepLine::data_s},   {"forward", &StepLine::forward_s},
      {"backward", &StepLine::backward_s}, {"send", &StepLine::send_s},
      {"receive", &StepLine::wait_s},      {"reduce", &StepLine::all_reduce_s},
      {"update", &StepLine::update_s}};
  PhaseTimes times;
  const std::size_t first = rank.steps.size() > 1 ? 1 : 0;
  const auto count = static_cast<double>(rank.steps.size() - first);
  if (count == 0) return times;
  const auto mean = [&](double StepLine::*part) {
    double sum = 0;
    for (std::size_t i = first; i < rank.steps.size(); ++i) sum += rank.steps[i].*part;
    return sum / count;
  };
  double known = 0;
  for (const auto& [name, part] : parts) {
    times.emplace_back(name, mean(part));
    known += times.back().second;
  }
  times.emplace_back("other", std::max(0.0, mean(&StepLine::step_s) - known));
  return times;
}

/// Seconds of a step of what is part of another phase, beside the steps, or between them.
PhaseTimes beside_of(const RankRun& rank) {
  PhaseTimes times;
  if (rank.spans.empty() || rank.steps.empty()) return times;
  for (const SpanKind kind : {SpanKind::Load, SpanKind::Preprocess, SpanKind::Copy, SpanKind::Loss,
                              SpanKind::Eval, SpanKind::Checkpoint}) {
    std::int64_t sum = 0;
    for (const Span& span : rank.spans)
      if (span.kind == kind) sum += span.end - span.start;
    if (sum > 0) times.emplace_back(to_string(kind), double(sum) * 1e-9 / double(rank.steps.size()));
  }
  return times;
}

void read_cell(const std::string& folder, CellResult& result) {
  const Result<RunData> run = read_run(folder);
  if (!run) {
    result.error = to_string(run.problems());
    result.exit_code = static_cast<int>(ExitCode::RunFailed);
    return;
  }
  result.run_s = number_in(run->summary, "seconds");
  result.samples_per_s = number_in(run->summary, "samples_per_s");
  if (const Json* variant = run->summary.find("variant")) {
    result.drawn_s = number_in(*variant, "drawn_s");
    result.waited_s = number_in(*variant, "waited_s");
  }
  for (const RankRun& rank : run->ranks) {
    for (const StepLine& step : rank.steps) {
      result.compute_s += step.forward_s + step.backward_s + step.update_s;
      if (&rank == &run->ranks.front() && &step != &rank.steps.front()) result.step_s.push_back(step.step_s);
    }
    result.ranks.push_back(phases_of(rank));
    result.beside.push_back(beside_of(rank));
  }
}

ExperimentResults read_results(const ExperimentSpec& spec, const Journal& journal) {
  ExperimentResults results;
  for (std::size_t i = 0; i < spec.cells.size(); ++i) {
    const std::string key = spec.key_of(spec.cells[i]);
    const Json* record = journal.find(key);
    if (!record) continue;
    CellResult& result = results.cells.emplace_back(CellResult{.cell = i});
    result.exit_code = static_cast<int>(number_in(*record, "exit_code"));
    if (const Json* error = record->find("error")) result.error = error->as_string();
    if (const Json* json = record->find("counters")) {
      const Counters counters = Counters::from(*json);
      result.wall_s = counters.seconds;
      result.cpu_s = counters.cpu_s;
    }
    result.cached_before = share_in(*record, "cached_before");
    result.cached_after = share_in(*record, "cached_after");
    if (result.exit_code == 0) read_cell((fs::path(spec.output_dir) / key).string(), result);
  }
  return results;
}

double middle_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return percentile(values, 0.5);
}

void compare_variants(const ExperimentSpec& spec, ExperimentResults& results) {
  std::map<std::string, const CellResult*> by_key;
  for (const CellResult& result : results.cells)
    if (result.exit_code == 0) by_key[spec.key_of(spec.cells[result.cell])] = &result;
  const auto add = [&](const CellResult& result, RunVariant beside) {
    ExperimentCell other = spec.cells[result.cell];
    if (beside == RunVariant::Instrumented) other = spec.source_of(other);
    other.variant = beside;
    const auto found = by_key.find(spec.key_of(other));
    if (found == by_key.end()) return;
    const CellResult& base = *found->second;
    for (const auto& [what, own, of_other] : {std::tuple("run", result.run_s, base.run_s),
                                              {"step", middle_of(result.step_s), middle_of(base.step_s)},
                                              {"compute", result.compute_s, base.compute_s},
                                              {"cpu", result.cpu_s, base.cpu_s}}) {
      if (!(of_other > 0)) continue;
      Comparison made{.group = spec.group_of(other),
                      .variant = to_string(spec.cells[result.cell].variant),
                      .beside = to_string(beside),
                      .what = what,
                      .ratios = {}};
      auto known = std::ranges::find_if(results.comparisons, [&](const Comparison& one) {
        return one.group == made.group && one.variant == made.variant && one.beside == made.beside &&
               one.what == made.what;
      });
      if (known == results.comparisons.end()) known = results.comparisons.insert(known, std::move(made));
      known->ratios.push_back(own / of_other);
    }
  };
  for (const CellResult& result : results.cells) {
    const RunVariant variant = spec.cells[result.cell].variant;
    if (result.exit_code != 0 || variant == RunVariant::Original) continue;
    add(result, RunVariant::Original);
    if (variant == RunVariant::Sleep) add(result, RunVariant::Instrumented);
  }
  for (Comparison& one : results.comparisons) {
    one.mean = mean_of(one.ratios);
    std::tie(one.least, one.most) =
        std::pair(*std::ranges::min_element(one.ratios), *std::ranges::max_element(one.ratios));
  }
}

// ---- tables
// --------------------------------------------------------------------------------------------------

std::string places(const ExperimentSpec& spec, const CellResult& result) {
  const ExperimentCell& cell = spec.cells[result.cell];
  return csv_cell(spec.workload_of(cell).name) + "," + csv_cell(spec.data_of(cell).name) + "," +
         std::to_string(cell.ranks) + "," + std::to_string(cell.batch) + "," + to_string(cell.cache) + "," +
         to_string(cell.variant) + "," + std::to_string(cell.repeat);
}
constexpr const char* kPlaces = "workload,data,ranks,batch,cache,variant,repeat";

std::string share_text(const std::optional<double>& share) {
  return share ? csv_number(*share) : "";
}

}  // namespace

int ExperimentResults::num_failed() const {
  return static_cast<int>(
      std::ranges::count_if(cells, [](const CellResult& one) { return one.exit_code != 0; }) +
      std::ranges::count_if(captured, [](const CapturedRun& one) { return !one.error.empty(); }));
}

ExperimentResults run_experiment(const ExperimentSpec& spec, Journal& journal, Failed failed, int& stopped) {
  try {
    CellRunner(spec, journal, failed).run(stopped);
    if (stopped == 0) capture_runs(spec, journal, failed);
  } catch (const Cancelled&) {
    stopped = SIGTERM;
  }
  ExperimentResults results = read_results(spec, journal);
  compare_variants(spec, results);
  results.captured = read_captured(spec, journal);
  results.alike = similarities_of(spec, results.captured);
  return results;
}

std::optional<FamilyFit> best_fit(const std::vector<double>& values) {
  if (values.size() < 10) return std::nullopt;
  const Result<DistributionFits> fits = fit_distributions(values);
  if (!fits || fits->fits.empty()) return std::nullopt;
  return fits->fits.front();
}

Status write_experiment_tables(const ExperimentSpec& spec, const ExperimentResults& results) {
  std::string cells = std::string("cell,") + kPlaces +
                      ",exit_code,wall_s,cpu_s,run_s,median_step_s,samples_per_s,compute_s,drawn_s,waited_s,"
                      "cached_before,cached_after,error\n";
  std::string steps = std::string(kPlaces) + ",step,step_s\n";
  std::string phases = std::string(kPlaces) + ",rank,phase,mean_s\n";
  std::string fits = std::string(kPlaces) + ",family,parameters,bic,ks,values\n";
  std::string comparisons = "group,variant,beside,what,mean_ratio,least,most,repeats\n";
  for (const CellResult& one : results.cells) {
    const std::string at = places(spec, one);
    cells += spec.key_of(spec.cells[one.cell]) + "," + at + "," + std::to_string(one.exit_code);
    for (const double value : {one.wall_s, one.cpu_s, one.run_s, middle_of(one.step_s), one.samples_per_s,
                               one.compute_s, one.drawn_s, one.waited_s})
      cells += "," + csv_number(value);
    cells += "," + share_text(one.cached_before) + "," + share_text(one.cached_after) + "," +
             csv_cell(one.error) + "\n";
    for (std::size_t i = 0; i < one.step_s.size(); ++i)
      steps += at + "," + std::to_string(i + 1) + "," + csv_number(one.step_s[i]) + "\n";
    for (const auto* parts : {&one.ranks, &one.beside})
      for (std::size_t rank = 0; rank < parts->size(); ++rank)
        for (const auto& [name, seconds] : (*parts)[rank])
          phases += at + "," + std::to_string(rank) + "," + name + "," + csv_number(seconds) + "\n";
    if (const auto fit = best_fit(one.step_s)) {
      std::string parameters;
      const std::vector<std::string> names = fit->distribution.parameter_names();
      for (std::size_t p = 0; p < names.size() && p < fit->distribution.parameters.size(); ++p)
        parameters += (p ? " " : "") + names[p] + "=" + csv_number(fit->distribution.parameters[p]);
      fits += at + "," + to_string(fit->distribution.family) + "," + csv_cell(parameters) + "," +
              csv_number(fit->bic) + "," + csv_number(fit->ks) + "," + std::to_string(one.step_s.size()) +
              "\n";
    }
  }
  for (const Comparison& one : results.comparisons)
    comparisons += csv_cell(one.group) + "," + one.variant + "," + one.beside + "," + one.what + "," +
                   csv_number(one.mean) + "," + csv_number(one.least) + "," + csv_number(one.most) + "," +
                   std::to_string(one.ratios.size()) + "\n";
  std::string calls = "group,variant,repeat,reads,read_bytes,read_s,opens,written_bytes,wall_s,lost,error\n";
  for (const CapturedRun& one : results.captured)
    calls += csv_cell(one.group) + "," + one.variant + "," + std::to_string(one.repeat) + "," +
             std::to_string(one.reads) + "," + std::to_string(one.read_bytes) + "," + csv_number(one.read_s) +
             "," + std::to_string(one.opens) + "," + std::to_string(one.written_bytes) + "," +
             csv_number(one.wall_s) + "," + std::to_string(one.lost) + "," + csv_cell(one.error) + "\n";
  std::string alike = "group,variant,tracesim,low,high,pairs\n";
  for (const IoSimilarity& one : results.alike)
    alike += csv_cell(one.group) + "," + one.variant + "," + csv_number(one.score) + "," +
             csv_number(one.low) + "," + csv_number(one.high) + "," + std::to_string(one.pairs) + "\n";
  if (spec.captured == 0) calls.clear(), alike.clear();
  for (const auto& [name, text] : {std::pair("cells.csv", &cells),
                                   {"calls.csv", &calls},
                                   {"similarity.csv", &alike},
                                   {"steps.csv", &steps},
                                   {"phases.csv", &phases},
                                   {"fits.csv", &fits},
                                   {"comparisons.csv", &comparisons}})
    if (text->empty())
      continue;
    else if (const Status written = write_file_atomically(fs::path(spec.output_dir) / name, *text); !written)
      return written;
  return Ok{};
}

}  // namespace millrace
