#include "experiments/runs/run_data.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <utility>

#include "runtime/base/files.h"
#include "runtime/base/json_number.h"
#include "runtime/base/numbers.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/scalar_sink.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostTable = 1 << 30;  // bytes of jobs.csv

double number_at(const Json& line, std::string_view key) {
  return number_in(line, key).value_or(0);
}

std::int64_t integer_at(const Json& line, std::string_view key, std::int64_t fallback = 0) {
  const Json* value = line.find(key);
  return value && value->kind() == Json::Kind::Int ? value->as_int() : fallback;
}

StepLine step_of(const Json& line) {
  StepLine step{
      .step = integer_at(line, "step"), .loss = number_in(line, "loss"), .lr = number_in(line, "lr")};
  for (const auto& [name, value] : line.members()) {
    if (name == "samples_per_s") break;  // what follows is no metric
    const std::optional<double> number = number_in(value);
    if (number && name != "step" && name != "loss" && name.find(".job") == std::string::npos)
      step.metrics.emplace_back(name, *number);
  }
  step.samples_per_s = number_at(line, "samples_per_s");
  step.step_s = number_at(line, "step_s");
  step.ended_s = number_in(line, "ended_s");
  step.forward_s = number_at(line, "forward_s");
  step.backward_s = number_at(line, "backward_s");
  step.send_s = number_at(line, "send_s");
  step.receive_s = number_at(line, "receive_s");
  step.wait_s = number_at(line, "wait_s");
  step.all_reduce_s = number_at(line, "all_reduce_s");
  step.update_s = number_at(line, "update_s");
  step.data_s = number_at(line, "data_s");
  step.bubble_share = number_at(line, "bubble_share");
  step.peak_memory_bytes = integer_at(line, "peak_memory_bytes");
  step.resident_memory_bytes = integer_at(line, "resident_memory_bytes");
  step.weight_versions = static_cast<int>(integer_at(line, "weight_versions"));
  step.slow = number_in(line, "slow");
  step.stashed_microbatches = static_cast<int>(integer_at(line, "stashed_microbatches"));
  return step;
}

class Reader {
 public:
  Reader(const std::string& folder, StepValues values) : folder_(folder), values_(values) {
    run_.folder = folder;
  }

  Result<RunData> read() {
    std::error_code error;
    if (!fs::is_directory(folder_, error))
      return Problem{folder_.string(), "is not a folder", "give the output folder of a run"};
    run_.plan = load<Plan>(run_files::kPlan, "the plan");
    run_.profile = load<LayerGraph>("profile.json", nullptr);
    run_.cluster = load<ClusterSpec>("cluster.yaml", nullptr);
    if (const Result<std::string> order = read_regular_file(folder_ / run_files::kSchedule))
      run_.schedule = ScheduleFile{(folder_ / run_files::kSchedule).string(), *order};
    read_summary();
    const Json* format = run_.summary.find("format");
    if (!run_.plan && format && format->is_string() && format->as_string() == "millrace-tune-1")
      return Problem{folder_.string(), "is the folder of a search, not of one run",
                     "its own page is " + (folder_ / run_files::kReport).string() +
                         "; for a trial give its folder (trials/TRIAL/STEPS)"};
    read_ranks();
    read_end();
    read_jobs();
    for (auto& [step, values] : evaluations_) run_.evaluations.push_back(std::move(values));
    const Json* of_summary = run_.summary.find("evaluations");
    if (evaluations_.empty() && of_summary && of_summary->is_array()) run_.evaluations = *of_summary;
    if (const std::vector<fs::path> rounds = rounds_in(folder_); !rounds.empty())
      run_.notes.push_back("the jobs were trained in " + std::to_string(rounds.size()) +
                           " rounds, each a run by itself: --run " + rounds.front().string());
    if (!run_.plan && run_.ranks.empty() && run_.summary.is_null() && run_.end.rank < 0) {
      return Problem{folder_.string(), "holds nothing of a run (plan.json, steps.rank0.jsonl, summary.json)",
                     "give the --output-dir of `millrace train` or `millrace launch`"};
    }
    return std::move(run_);
  }

 private:
  /// `what`: named in a note when absent; nullptr: the part is optional.
  template <class Part>
  std::optional<Part> load(const char* file, const char* what) {
    const fs::path path = folder_ / file;
    std::error_code error;
    if (!fs::exists(path, error)) {
      if (what) run_.notes.push_back(std::string(file) + " is missing: " + what + " is not shown");
      return std::nullopt;
    }
    if (!fs::is_regular_file(path, error)) {  // a FIFO would be waited for
      run_.notes.push_back(path.string() + ": is no regular file");
      return std::nullopt;
    }
    Result<Part> part = Part::load(path.string());
    if (part) return std::move(*part);
    run_.notes.push_back(to_string(part.problems().front()));
    return std::nullopt;
  }

  void read_summary() {
    const fs::path path = folder_ / run_files::kSummary;
    std::error_code error;
    if (!fs::exists(path, error)) {
      run_.notes.push_back("summary.json is missing: the run has not come to its end");
      return;
    }
    Result<Json> json = read_json(path.string());
    if (json && json->is_object()) {
      run_.summary = std::move(*json);
    } else {
      run_.notes.push_back(json ? "summary.json: is not an object" : to_string(json.problems().front()));
    }
  }

  /// The summary of an earlier run stays where the next one failed before it took the folder.
  void read_end() {
    RunEnd& end = run_.end;
    if (run_.summary.is_object()) {
      const Json* stopped = run_.summary.find("stopped_early");
      end.state = stopped && stopped->kind() == Json::Kind::Bool && stopped->as_bool()
                      ? RunEnd::State::Stopped
                      : RunEnd::State::Done;
      const Json* lost = run_.summary.find("lost");
      for (const Json& one : lost && lost->is_array() ? lost->items() : std::vector<Json>())
        if (one.is_string()) end.cause += (end.cause.empty() ? "" : "; ") + one.as_string();
      return;
    }
    const fs::path newest = newest_round(folder_);
    if (const std::optional<RunFailure> failure = failure_of(newest)) {
      end = {.state = RunEnd::State::Failed,
             .rank = failure->rank,
             .step = failure->step,
             .cause = failure->error,
             .hint = failure->hint};
      return;
    }
    if (is_locked(folder_) || is_locked(newest)) {
      end.state = RunEnd::State::Running;
      return;
    }
    for (const RankRun& rank : run_.ranks) {
      const Result<Json> status = read_json((newest / run_files::kStatus.of(rank.rank)).string());
      const Json* action = status && status->is_object() ? status->find("action") : nullptr;
      if (!action || !action->is_string()) continue;
      end.cause += (end.cause.empty() ? "rank " : "; rank ") + std::to_string(rank.rank) + ": step " +
                   std::to_string(integer_at(*status, "step")) + ", " + action->as_string();
    }
  }

  JobRun& job_of(std::int64_t number) {
    for (JobRun& job : run_.jobs)
      if (job.job == number) return job;
    run_.jobs.push_back({.job = static_cast<int>(number)});
    return run_.jobs.back();
  }

  /// The table has all steps, of a resumed run too, and is there without a summary.
  void read_jobs() {
    const Json* jobs = run_.summary.find("jobs");
    for (const Json& one : jobs && jobs->is_array() ? jobs->items() : std::vector<Json>()) {
      if (!one.is_object()) continue;
      JobRun& job = job_of(integer_at(one, "job"));
      job.steps = integer_at(one, "step");
      job.loss = number_in(one, "loss");
      if (const Json* step = one.find("nonfinite_step"); step && step->kind() == Json::Kind::Int)
        job.nonfinite_step = step->as_int();
      const Json* settings = one.find("settings");
      if (settings && settings->is_object())
        for (const auto& [name, value] : settings->members())
          job.settings.emplace_back(name, value.is_string() ? value.as_string() : value.dump());
      const Json* metrics = one.find("evaluation");
      if (metrics && metrics->is_object())
        for (const auto& [name, value] : metrics->members())
          if (name != "step" && name != "samples")
            job.metrics.emplace_back(name, number_in(value).value_or(NAN));
    }
    const Result<std::string> text = read_regular_file(folder_ / run_files::kJobs, kMostTable);
    if (!text) return;
    std::vector<std::string> names;
    for (std::size_t at = 0, end; (end = text->find('\n', at)) != std::string::npos; at = end + 1) {
      const std::vector<std::string> cells = split(text->substr(at, end - at), ',');
      if (at == 0) {
        names = cells;
        continue;
      }
      const auto cell = [&](const char* name) {
        const auto found = std::ranges::find(names, name);
        const auto place = static_cast<std::size_t>(found - names.begin());
        return place < cells.size() ? cells[place] : std::string();
      };
      const auto number = number_of<std::int64_t>(cell("job"));
      const auto own = number_of<std::int64_t>(cell("own_step")), all = number_of<std::int64_t>(cell("step"));
      if (!number || !all) continue;
      JobRun& job = job_of(*number);
      const std::int64_t step = own.value_or(*all);
      const std::optional<double> loss = number_of<double>(cell("loss"));
      job.steps = std::max(job.steps, step + 1);
      if (loss && std::isfinite(*loss)) {
        job.losses.emplace_back(static_cast<double>(step + 1), *loss);
        if (run_.summary.is_null()) job.loss = loss;
      } else {
        job.loss.reset();
        job.nonfinite_step = std::min(job.nonfinite_step.value_or(step), step);
      }
    }
  }

  void read_ranks() {
    std::map<int, RankRun> ranks;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
      if (!entry.is_regular_file(error)) continue;  // a FIFO would be waited for
      const std::string name = entry.path().filename().string();
      if (const auto rank = run_files::kSteps.rank_of(name)) {
        read_steps(entry.path(), ranks[*rank]);
      } else if (const auto traced = run_files::kTrace.rank_of(name)) {
        read_trace(entry.path(), ranks[*traced]);
      }
    }
    for (const auto& [step, bleu] : scores_) run_.scores.push_back({step, bleu});
    tie_clocks(ranks);
    for (auto& [rank, run] : ranks) {
      run.rank = rank;
      run_.ranks.push_back(std::move(run));
    }
    if (std::ranges::all_of(run_.ranks, [](const RankRun& r) { return r.steps.empty(); }))
      run_.notes.push_back("no steps.rank<k>.jsonl: nothing was measured");
    else
      note_missing(run_files::kSteps, "not in the figures",
                   [](const RankRun& r) { return !r.steps.empty(); });
    if (std::ranges::any_of(run_.ranks, [](const RankRun& r) { return !r.spans.empty(); }))
      note_missing(run_files::kTrace, "empty in the measured schedule",
                   [](const RankRun& r) { return !r.spans.empty(); });
  }

  /// Spans of all ranks get the clock of the first one, where the logs say how far the others are from it.
  static void tie_clocks(std::map<int, RankRun>& ranks) {
    if (!std::ranges::all_of(ranks,
                             [](const auto& r) { return r.second.clock_is_tied && r.second.unix_offset_ns; }))
      return;
    for (auto& [rank, run] : ranks) {
      const std::int64_t first = *ranks.begin()->second.unix_offset_ns, apart = *run.unix_offset_ns - first;
      for (Span& span : run.spans) span.start += apart, span.end += apart;
      run.unix_offset_ns = first;
    }
  }

  /// Names the files of the plan's ranks that others have and they have not.
  void note_missing(const RankFiles& files, const std::string& consequence,
                    const std::function<bool(const RankRun&)>& has) {
    constexpr std::size_t kNamed = 6;
    std::vector<int> missing;
    for (int rank = 0; run_.plan && rank < run_.plan->num_ranks(); ++rank) {
      const auto found = std::ranges::find(run_.ranks, rank, &RankRun::rank);
      if (found == run_.ranks.end() || !has(*found)) missing.push_back(rank);
    }
    if (missing.empty()) return;
    std::string list;
    for (std::size_t i = 0; i < std::min(kNamed, missing.size()); ++i)
      list += (i ? ", " : "") + files.of(missing[i]);
    if (missing.size() > kNamed) list += " and " + std::to_string(missing.size() - kNamed) + " more";
    const bool one = missing.size() == 1;
    run_.notes.push_back(list + (one ? " is" : " are") +
                         " missing or empty: " + (one ? "this rank is " : "these ranks are ") + consequence +
                         " (of a run on several hosts, copy their files here)");
  }

  void read_steps(const fs::path& path, RankRun& rank) {
    std::ifstream log(path);  // line by line: the log of a long run does not fit into memory
    std::map<std::int64_t, StepLine> steps;
    int damaged = 0, parts = 0;
    bool begins = false;
    for (std::string line; std::getline(log, line);) {
      if (line.empty()) continue;
      const Result<Json> json = parse_json(line, path.string());
      if (!json || !json->is_object()) {
        ++damaged;  // the last line of a rank that was killed
      } else if (json->find("format")) {
        rank.stage = static_cast<int>(integer_at(*json, "stage", -1));
        rank.unix_offset_ns.reset();
        if (const std::int64_t unix_ns = integer_at(*json, "unix_ns"); unix_ns > 0)
          rank.unix_offset_ns =
              unix_ns - integer_at(*json, "clock_ns") + integer_at(*json, "clock_offset_ns");
        if (rank.unix_offset_ns && !rank.opened_unix_ns)
          rank.opened_unix_ns = *rank.unix_offset_ns + integer_at(*json, "clock_ns");
        rank.clock_is_tied = json->find("clock_offset_ns") != nullptr;
        begins = parts++ > 0;
        if (const Json* command = json->find("command"); command && command->is_string())
          rank.commands.emplace_back(steps.empty() ? 0 : steps.rbegin()->first + 1, command->as_string());
      } else if (json->find("after_step")) {
        const std::int64_t after = integer_at(*json, "after_step");
        if (const std::optional<double> bleu = number_in(*json, "bleu")) scores_[after] = *bleu;
        const Json* of = json->find("of");
        if (of && of->is_string() && of->as_string() == "evaluation") {
          evaluations_[after] = *json;
          evaluations_[after]["step"] = after;
        }
      } else {
        StepLine step = step_of(*json);
        if (step.ended_s && rank.unix_offset_ns)
          step.unix_ns = std::llround(*step.ended_s * 1e9) + *rank.unix_offset_ns;
        if (values_ == StepValues::All) step.all = scalars_of(*json);
        if (std::exchange(begins, false) && step.step > 0) {
          std::erase_if(rank.joints, [&](std::int64_t joint) { return joint >= step.step; });
          rank.joints.push_back(step.step);
        }
        steps.insert_or_assign(steps.end(), step.step, std::move(step));
      }
    }
    if (!log.eof()) run_.notes.push_back(path.string() + ": cannot be read, or not to its end");
    rank.steps.reserve(steps.size());
    for (auto& [number, step] : steps) rank.steps.push_back(std::move(step));
    if (damaged > 0)
      run_.notes.push_back(path.filename().string() + ": " + std::to_string(damaged) +
                           " damaged line(s) left out");
  }

  void read_trace(const fs::path& path, RankRun& rank) {
    const Result<std::string> text = read_regular_file(path);
    Result<std::vector<Span>> spans =
        text ? spans_from_json(*text, path.string()) : Result<std::vector<Span>>(text.problems());
    if (spans) {
      rank.spans = std::move(*spans);
    } else {
      run_.notes.push_back(to_string(spans.problems().front()));
    }
  }

  fs::path folder_;
  StepValues values_;
  RunData run_;
  std::map<std::int64_t, double> scores_;     // by step
  std::map<std::int64_t, Json> evaluations_;  // by step
};

}  // namespace

const char* to_string(RunEnd::State state) {
  switch (state) {
    case RunEnd::State::Done:
      return "done";
    case RunEnd::State::Stopped:
      return "stopped";
    case RunEnd::State::Failed:
      return "failed";
    case RunEnd::State::Running:
      return "running";
    case RunEnd::State::Unknown:
      break;
  }
  return "unknown";
}

Result<RunData> read_run(const std::string& folder, StepValues values) {
  return Reader(folder, values).read();
}

const RankRun* loss_rank(const RunData& run) {
  const RankRun* best = nullptr;
  for (const RankRun& rank : run.ranks) {
    if (rank.steps.empty()) continue;
    if (rank.steps.back().loss) return &rank;
    if (!best || rank.stage > best->stage) best = &rank;
  }
  return best;
}

}  // namespace millrace
