#include "experiments/io/experiment/captured_runs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "data/files/data_kinds.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/launch_command.h"
#include "driver/launch/launcher.h"
#include "experiments/io/trace/lines.h"
#include "experiments/io/trace/preprocess.h"
#include "experiments/io/trace/similarity.h"
#include "experiments/io/trace/timeline_plot.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/run_files.h"
#include "runtime/base/units.h"
#include "runtime/counters/page_cache.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDlio = "dlio";

/// A captured run before it is done. The cell is the instrumented one for DLIO, whose times it has.
struct Planned {
  ExperimentCell cell;
  bool dlio = false;
  std::string key;

  std::string variant() const { return dlio ? kDlio : to_string(cell.variant); }
};

std::string key_of(const ExperimentSpec& spec, ExperimentCell cell, const std::string& variant) {
  std::string key = spec.key_of(cell);  // cells/NAME-variant-repeat
  const std::string ending = "-" + to_string(cell.variant) + "-" + std::to_string(cell.repeat);
  key = key.substr(0, key.size() - ending.size());
  return "captured/" + key.substr(key.find('/') + 1) + "-" + variant + "-" + std::to_string(cell.repeat);
}

/// All captured runs. A repeat has all variants in turn, the instrumented one before those with its times.
std::vector<Planned> planned_runs(const ExperimentSpec& spec) {
  std::vector<Planned> all;
  std::set<std::string> seen;
  for (int repeat = 1; repeat <= spec.captured; ++repeat)
    for (const RunVariant variant :
         {RunVariant::Original, RunVariant::Instrumented, RunVariant::Sleep, RunVariant::Generated})
      for (ExperimentCell cell : spec.cells) {
        cell.repeat = repeat;
        const std::string key = key_of(spec, cell, to_string(variant));
        if (cell.variant != variant || !seen.insert(key).second) continue;
        all.push_back({cell, false, key});
        if (variant == RunVariant::Instrumented) all.push_back({cell, true, key_of(spec, cell, kDlio)});
      }
  // DLIO comes last of a repeat, and groups stay together.
  std::ranges::stable_sort(all, {}, [&](const Planned& one) {
    return std::tuple(one.cell.repeat, spec.group_of(one.cell), one.dlio);
  });
  return all;
}

std::int64_t whole(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value && value->is_number() ? static_cast<std::int64_t>(std::llround(value->as_double())) : 0;
}

class Capturer {
 public:
  Capturer(const ExperimentSpec& spec, Journal& journal, Failed failed)
      : spec_(spec), journal_(journal), failed_(failed) {}

  void run() {
    const std::vector<Planned> planned = planned_runs(spec_);
    for (std::size_t i = 0; i < planned.size(); ++i) {
      const Planned& one = planned[i];
      const Json* record = journal_.find(one.key);
      if (record && (failed_ == Failed::Keep || whole(*record, "exit_code") == 0)) continue;
      std::fprintf(stderr, "captured run %zu of %zu: %s\n", i + 1, planned.size(), one.key.c_str());
      const std::string error = one.dlio ? emulate(one) : train(one);
      if (!error.empty()) std::fprintf(stderr, "%s failed: %s\n", one.key.c_str(), error.c_str());
      const Json made = Json::object(
          {{"exit_code", error.empty() ? 0 : static_cast<int>(ExitCode::RunFailed)}, {"error", error}});
      if (const Status kept = journal_.record(one.key, made); !kept)
        throw ConfigError(to_string(kept.problems()));
    }
  }

 private:
  fs::path place(const std::string& key, const char* part) const {
    return fs::path(spec_.output_dir) / key / part;
  }
  std::string instrumented(const ExperimentCell& cell) const {
    return place(key_of(spec_, cell, to_string(RunVariant::Instrumented)), "run").string();
  }

  /// Runs `words` under `trace capture`, and processes the trace. The folder of an earlier try is deleted.
  std::string captured(const Planned& one, std::vector<std::string> words, const Environment& environment) {
    const fs::path trace = place(one.key, "trace");
    words.insert(words.begin(),
                 {own_program(), "trace", "capture", "--method", "ptrace", "--out", trace.string(), "--"});
    if (std::string error = run_program(words, place(one.key, "log").string(), environment); !error.empty())
      return error;
    const Result<PreprocessReport> report =
        preprocess({.folder = trace.string(), .workload = TracedWorkload::Any, .out = {}, .app_log = {}});
    return report ? "" : "its trace cannot be processed: " + to_string(report.problems());
  }

  std::string empty_folder(const Planned& one) const {
    std::error_code ignored;
    fs::remove_all(fs::path(spec_.output_dir) / one.key, ignored);
    const Status made = make_writable_folder(fs::path(spec_.output_dir) / one.key);
    return made ? "" : to_string(made.problems());
  }

  std::string train(const Planned& one) {
    Result<JobSpec> job = spec_.job_of(one.cell);
    if (!job) return to_string(job.problems());
    if (std::string error = empty_folder(one); !error.empty()) return error;
    set_flag(*job, "output-dir", place(one.key, "run").string());
    if (one.cell.variant == RunVariant::Sleep) set_flag(*job, "variant-from", instrumented(one.cell));
    prepare_cache(spec_, one.cell);
    std::vector<std::string> words = train_arguments(*job);
    words.insert(words.begin(), worker_of(*job));
    return captured(one, std::move(words), job->environment);
  }

  /// The workload of DLIO: as many samples in as many files of as many bytes, and the instrumented run's
  /// times.
  std::string emulate(const Planned& one) {
    const std::string from = instrumented(one.cell);
    const Result<Json> summary = read_json((fs::path(from) / run_files::kSummary).string());
    if (!summary) return "its instrumented run failed: " + to_string(summary.problems());
    if (std::string error = empty_folder(one); !error.empty()) return error;
    const ExperimentWorkload& workload = spec_.workload_of(one.cell);
    const std::vector<std::string> files =
        files_below(paths_of_data(spec_.path_of(spec_.data_of(one.cell), workload)));
    std::int64_t bytes = 0;
    std::error_code ignored;
    for (const std::string& file : files) bytes += static_cast<std::int64_t>(fs::file_size(file, ignored));
    const std::int64_t samples = whole(*summary, "train_samples");
    const std::int64_t all_samples = samples + whole(*summary, "eval_samples");
    if (files.empty() || samples < 1) return "its data are no files: DLIO has nothing to emulate";
    const std::int64_t num_files = std::min<std::int64_t>(std::ssize(files), samples);
    const std::int64_t in_file = samples / num_files;
    const int readers = workload.ranks_are == RanksAre::Replicas ? one.cell.ranks : 1;
    const std::int64_t batch = std::int64_t{one.cell.batch} * workload.microbatches;
    const std::int64_t steps = whole(*summary, "steps");
    const std::string timed = place(one.key, "workload.yaml").string();
    if (std::string error = run_program(
            {own_program(), "instrument", "fit", from, "--workload", "millrace", "--workload-file", timed},
            place(one.key, "fit").string());
        !error.empty())
      return error;
    const std::string data = place(one.key, "data").string();
    std::vector<std::string> words{own_program(), "dlio", "workload=" + timed};
    const auto key = [&](const std::string& name, const std::string& value) {
      words.push_back("++workload." + name + "=" + value);
    };
    key("dataset.format", in_file > 1 ? "indexed_binary" : "npy");
    key("dataset.data_folder", data);
    key("dataset.num_files_train", std::to_string(num_files));
    key("dataset.num_samples_per_file", std::to_string(in_file));
    key("dataset.record_length_bytes", std::to_string(std::max<std::int64_t>(1, bytes / all_samples)));
    key("reader.batch_size", std::to_string(batch));
    key("reader.read_threads", "1");
    key("train.epochs", std::to_string(1 + steps * batch * readers / (num_files * in_file)));
    key("train.total_training_steps", std::to_string(steps));
    for (const char* word : {"--calibration-steps", "0", "--ranks"}) words.push_back(word);
    words.push_back(std::to_string(readers));
    std::vector<std::string> generate = words;
    for (const char* word : {"++workload.workflow.generate_data=True", "++workload.workflow.train=False"})
      generate.push_back(word);
    generate.insert(generate.end(), {"--output-dir", place(one.key, "generated").string()});
    if (std::string error = run_program(generate, place(one.key, "generate").string()); !error.empty())
      return error;
    words.insert(words.end(), {"--output-dir", place(one.key, "run").string()});
    one.cell.cache == CacheState::Cold ? drop_cache(files_below({data})) : warm_cache(files_below({data}));
    return captured(one, std::move(words), {});
  }

  const ExperimentSpec& spec_;
  Journal& journal_;
  Failed failed_;
};

/// Calls row(columns) for the rows of a raw trace; `columns` is how many they have before a file's name.
template <class Row>
void each_row(const fs::path& file, std::size_t columns, Row row) {
  const Result<std::string> text = read_file(file, 16 * kGiB);
  std::string_view rest = text ? std::string_view(*text) : std::string_view();
  for (bool whole_line = true; !rest.empty();) {
    const std::vector<std::string_view> words = words_of(next_line(rest, whole_line));
    if (whole_line && words.size() >= columns && number_of<std::int64_t>(words.front())) row(words);
  }
}

/// Adds what a trace says to `run`. `data`: names of the data set's files.
void read_trace(const fs::path& trace, const std::set<std::string, std::less<>>& data, CapturedRun& run) {
  const auto number = [](std::string_view text) { return number_of<std::int64_t>(text).value_or(0); };
  each_row(trace / "trace_read.out", 6, [&](const auto& words) {  // ns pid offset bytes latency name
    if (!data.contains(words.back())) return;
    ++run.reads;
    run.read_bytes += number(words[3]);
    run.read_s += static_cast<double>(number(words[4])) * 1e-9;
  });
  each_row(trace / "trace_write.out", 5, [&](const auto& words) { run.written_bytes += number(words[3]); });
  each_row(trace / "trace_openat.out", 5, [&](const auto&) { ++run.opens; });
  if (const Result<Json> report = read_json((trace / "capture.json").string())) {
    run.lost = whole(*report, "lost");
    if (const Json* seconds = report->find("seconds"); seconds && seconds->is_number())
      run.wall_s = seconds->as_double();
  }
}

}  // namespace

std::string run_program(std::vector<std::string> words, const std::string& log, Environment environment) {
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  SteadyClock clock;
  const LaunchOutcome outcome =
      run_ranks({{.argv = std::move(words), .environment = std::move(environment), .log = log}},
                {.out = null, .err = null}, clock);
  ::close(null);
  if (outcome.interrupt != 0) throw Cancelled("stopped");
  if (outcome.exit_code() == 0) return "";
  const std::vector<std::string>& lines = outcome.exits.front().last_lines;
  for (const std::string& line : lines)
    if (line.find("error: ") != std::string::npos) return line;
  return lines.empty() ? "exit code " + std::to_string(outcome.exit_code()) + ", see " + log + ".err"
                       : lines.back();
}

std::vector<std::string> prepare_cache(const ExperimentSpec& spec, const ExperimentCell& cell) {
  // A run without its data reads something else in their place, which is not prepared.
  const ExperimentData& data = spec.data_of(cell);
  std::vector<std::string> files = files_below(paths_of_data(
      cell.variant == RunVariant::Generated ? data.generated : spec.path_of(data, spec.workload_of(cell))));
  cell.cache == CacheState::Cold ? drop_cache(files) : warm_cache(files);
  return files;
}

void capture_runs(const ExperimentSpec& spec, Journal& journal, Failed failed) {
  Capturer(spec, journal, failed).run();
}

std::vector<CapturedRun> read_captured(const ExperimentSpec& spec, const Journal& journal) {
  std::vector<CapturedRun> runs;
  for (const Planned& one : planned_runs(spec)) {
    const Json* record = journal.find(one.key);
    if (!record) continue;
    CapturedRun& run = runs.emplace_back(CapturedRun{.group = spec.group_of(one.cell),
                                                     .variant = one.variant(),
                                                     .repeat = one.cell.repeat,
                                                     .key = one.key,
                                                     .error = {}});
    if (const Json* error = record->find("error"); error && error->is_string())
      run.error = error->as_string();
    if (!run.error.empty()) continue;
    const fs::path folder = fs::path(spec.output_dir) / one.key;
    const ExperimentData& data = spec.data_of(one.cell);
    std::vector<std::string> paths{(folder / "data").string()};
    if (!one.dlio)
      paths = paths_of_data(one.cell.variant == RunVariant::Generated
                                ? data.generated
                                : spec.path_of(data, spec.workload_of(one.cell)));
    std::set<std::string, std::less<>> names;
    for (const std::string& file : files_below(paths)) names.insert(fs::path(file).filename().string());
    read_trace(folder / "trace", names, run);
  }
  return runs;
}

std::vector<IoSimilarity> similarities_of(const ExperimentSpec& spec, const std::vector<CapturedRun>& runs) {
  std::vector<std::pair<std::string, std::string>> places;  // group and variant
  std::map<std::pair<std::string, std::string>, std::vector<RunProfile>> profiles;
  for (const CapturedRun& run : runs) {
    if (!run.error.empty()) continue;
    const Result<Timeline> timeline =
        read_timeline((fs::path(spec.output_dir) / run.key / "trace" / "processed").string());
    Result<RunProfile> profile = timeline ? profile_run(*timeline) : Result<RunProfile>(timeline.problems());
    if (!profile) {
      std::fprintf(stderr, "note: %s: %s\n", run.key.c_str(), to_string(profile.problems()).c_str());
      continue;
    }
    const std::pair at(run.group, run.variant);
    if (!profiles.contains(at)) places.push_back(at);
    profiles[at].push_back(*std::move(profile));
  }
  std::vector<IoSimilarity> all;
  for (const auto& [group, variant] : places) {
    const auto original = profiles.find({group, to_string(RunVariant::Original)});
    if (original == profiles.end()) continue;
    const bool itself = variant == original->first.second;
    const std::vector<RunProfile>& own = profiles.at({group, variant});
    std::vector<std::vector<double>> scores;
    double sum = 0;
    std::size_t pairs = 0;
    for (std::size_t a = 0; a < original->second.size(); ++a) {
      scores.emplace_back();
      for (std::size_t b = 0; b < own.size(); ++b) {
        scores.back().push_back(similarity(original->second[a], own[b]).total);
        if (itself && a == b) continue;
        sum += scores.back().back();
        ++pairs;
      }
    }
    if (pairs == 0) continue;  // one original has nothing to be compared with
    IoSimilarity one{.group = group, .variant = variant, .pairs = pairs};
    one.score = one.low = one.high = sum / static_cast<double>(pairs);
    if (const auto interval = bootstrap_interval(scores, itself, spec.seed))
      one.low = interval->low, one.high = interval->high;
    all.push_back(one);
  }
  return all;
}

Result<std::string> timeline_of(const ExperimentSpec& spec, const CapturedRun& run) {
  const fs::path folder = fs::path(spec.output_dir) / run.key;
  const Result<Timeline> timeline = read_timeline((folder / "trace" / "processed").string());
  if (!timeline) return timeline.problems();
  const std::vector<TimelineGroup>* groups = timeline->layout("all_combined");
  if (!groups) return Problem{folder.string(), "has no calls to draw", {}};
  const Result<TimeExtent> extent = extent_of(*timeline, *groups);
  if (!extent) return extent.problems();
  const PlotOptions options{.title = run.group + ", " + run.variant};
  const TimeWindow window{"", extent->first, extent->last};
  Result<std::vector<GroupColumns>> columns = group_columns(*groups, window, plot_columns(options));
  if (!columns) return columns.problems();
  const std::string path = (folder / "timeline.svg").string();
  const TimelinePicture picture{&*timeline, *extent, window, *std::move(columns)};
  if (const Status drawn = draw_timeline(picture, options, path); !drawn) return drawn.problems();
  return read_file(path);
}

}  // namespace millrace
