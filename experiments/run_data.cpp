#include "experiments/run_data.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <map>

#include "runtime/base/files.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

double number_at(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  return value && value->is_number() ? value->as_double() : 0;
}

std::optional<double> optional_at(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  if (!value || !value->is_number()) return std::nullopt;
  return value->as_double();
}

std::int64_t integer_at(const Json& line, std::string_view key, std::int64_t fallback = 0) {
  const Json* value = line.find(key);
  return value && value->kind() == Json::Kind::Int ? value->as_int() : fallback;
}

StepLine step_of(const Json& line) {
  StepLine step{
      .step = integer_at(line, "step"), .loss = optional_at(line, "loss"), .top1 = optional_at(line, "top1")};
  step.samples_per_s = number_at(line, "samples_per_s");
  step.step_s = number_at(line, "step_s");
  step.ended_s = optional_at(line, "ended_s");
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
  step.weight_versions = static_cast<int>(integer_at(line, "weight_versions"));
  step.stashed_microbatches = static_cast<int>(integer_at(line, "stashed_microbatches"));
  return step;
}

class Reader {
 public:
  explicit Reader(const std::string& folder) : folder_(folder) { run_.folder = folder; }

  Result<RunData> read() {
    std::error_code error;
    if (!fs::is_directory(folder_, error))
      return Problem{folder_.string(), "is not a folder", "give the output folder of a run"};
    run_.plan = load<Plan>(run_files::kPlan, "the plan");
    run_.profile = load<LayerGraph>("profile.json", nullptr);
    run_.cluster = load<ClusterSpec>("cluster.yaml", nullptr);
    if (const Result<std::string> order = read_file(folder_ / run_files::kSchedule))
      run_.schedule = ScheduleFile{(folder_ / run_files::kSchedule).string(), *order};
    read_summary();
    read_ranks();
    if (const std::vector<fs::path> rounds = rounds_in(folder_); !rounds.empty())
      run_.notes.push_back("the jobs were trained in " + std::to_string(rounds.size()) +
                           " rounds, each a run by itself: --run " + rounds.front().string());
    if (!run_.plan && run_.ranks.empty() && run_.summary.is_null()) {
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
    Result<Part> part = Part::load(path.string());
    if (part) return std::move(*part);
    run_.notes.push_back(to_string(part.problems().front()));
    return std::nullopt;
  }

  void read_summary() {
    const fs::path path = folder_ / run_files::kSummary;
    std::error_code error;
    if (!fs::exists(path, error)) {
      run_.notes.push_back("summary.json is missing: the run has not finished, or it failed");
      return;
    }
    Result<Json> json = read_json(path.string());
    if (json && json->is_object()) {
      run_.summary = std::move(*json);
    } else {
      run_.notes.push_back(json ? "summary.json: is not an object" : to_string(json.problems().front()));
    }
  }

  void read_ranks() {
    std::map<int, RankRun> ranks;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
      const std::string name = entry.path().filename().string();
      if (const auto rank = run_files::kSteps.rank_of(name)) {
        read_steps(entry.path(), ranks[*rank]);
      } else if (const auto traced = run_files::kTrace.rank_of(name)) {
        read_trace(entry.path(), ranks[*traced]);
      }
    }
    for (const auto& [step, bleu] : scores_) run_.scores.push_back({step, bleu});
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
    const Result<std::string> text = read_file(path);
    if (!text) {
      run_.notes.push_back(to_string(text.problems().front()));
      return;
    }
    std::map<std::int64_t, StepLine> steps;
    int damaged = 0;
    std::string_view rest = *text;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.empty()) continue;
      const Result<Json> json = parse_json(line, path.string());
      if (!json || !json->is_object()) {
        ++damaged;  // the last line of a rank that was killed
      } else if (json->find("format")) {
        rank.stage = static_cast<int>(integer_at(*json, "stage", -1));
      } else if (json->find("after_step")) {
        if (const std::optional<double> bleu = optional_at(*json, "bleu"))
          scores_[integer_at(*json, "after_step")] = *bleu;
      } else {
        const StepLine step = step_of(*json);
        steps[step.step] = step;
      }
    }
    for (auto& [number, step] : steps) rank.steps.push_back(step);
    if (damaged > 0)
      run_.notes.push_back(path.filename().string() + ": " + std::to_string(damaged) +
                           " damaged line(s) left out");
  }

  void read_trace(const fs::path& path, RankRun& rank) {
    const Result<std::string> text = read_file(path);
    Result<std::vector<Span>> spans =
        text ? spans_from_json(*text, path.string()) : Result<std::vector<Span>>(text.problems());
    if (spans) {
      rank.spans = std::move(*spans);
    } else {
      run_.notes.push_back(to_string(spans.problems().front()));
    }
  }

  fs::path folder_;
  RunData run_;
  std::map<std::int64_t, double> scores_;  // by step
};

}  // namespace

Result<RunData> read_run(const std::string& folder) {
  return Reader(folder).read();
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
