#include "driver/launch/run_state.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <ranges>
#include <set>
#include <thread>

#include "runtime/base/files.h"
#include "runtime/base/json_number.h"
#include "runtime/base/numbers.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"
#include "runtime/plan/plan.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::streamoff kTailBytes = 1 << 16;

/// The last lines of a file, the newest first.
std::vector<std::string> last_lines(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};  // a FIFO would be waited for
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::streamoff size = file.tellg(), from = std::max<std::streamoff>(0, size - kTailBytes);
  file.seekg(from);
  std::string text(static_cast<std::size_t>(size - from), '\0');
  file.read(text.data(), size - from);
  std::vector<std::string> lines = split(text, '\n');
  std::ranges::reverse(lines);
  return lines;
}

std::optional<double> last_loss(const fs::path& folder, std::size_t ranks) {
  for (std::size_t rank = ranks; rank-- > 0;) {  // the last stage has it
    for (const std::string& line : last_lines(folder / run_files::kSteps.of(static_cast<int>(rank)))) {
      const Result<Json> json = parse_json(line, "a line of steps");
      if (!json || !json->is_object() || !json->find("step")) continue;
      if (const std::optional<double> loss = number_in(*json, "loss")) return loss;
      break;  // this rank logs none
    }
  }
  return std::nullopt;
}

std::int64_t integer_member(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value && value->kind() == Json::Kind::Int ? value->as_int() : -1;
}

std::string newest_checkpoint(const fs::path& folder) {
  std::string newest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / run_files::kCheckpoints, error)) {
    const std::string name = entry.path().filename().string();
    // Names have as many digits as needed: a longer one is a later one.
    if (name.starts_with("step-") && name.find('.') == std::string::npos &&
        std::pair(name.size(), name) > std::pair(newest.size(), newest))
      newest = name;
  }
  return newest;
}

}  // namespace

std::optional<Json> newest_step(const fs::path& log) {
  for (const std::string& line : last_lines(log)) {
    if (Result<Json> json = parse_json(line, "a line of steps");
        json && json->is_object() && json->find("step"))
      return *std::move(json);
  }
  return std::nullopt;
}

bool complete_logs(const fs::path& round, std::int64_t step) {
  const Result<Plan> plan = Plan::load((round / run_files::kPlan).string());
  if (!plan) return false;
  const auto log_of = [&](RankId rank) { return round / run_files::kSteps.of(rank.value); };
  const auto has_step = [&](const std::optional<Json>& line) {
    return line && integer_member(*line, "step") >= step;
  };
  for (const PlanStage& stage : std::views::reverse(plan->stages)) {  // the last stage has the losses
    const auto donor =
        std::ranges::find_if(stage.ranks, [&](RankId rank) { return has_step(newest_step(log_of(rank))); });
    if (donor == stage.ranks.end()) continue;
    Json line = *newest_step(log_of(*donor));
    line["copied_from"] = "rank" + std::to_string(donor->value);
    for (const RankId rank : stage.ranks) {
      const fs::path log = log_of(rank);
      std::error_code error;
      if (has_step(newest_step(log)) || !fs::is_regular_file(log, error)) continue;
      // A rank that is killed while it writes leaves a part of a line.
      fs::resize_file(log, fs::file_size(log, error) - last_lines(log).front().size(), error);
      if (!LineFile(log, /*append=*/true).write_line(line.dump())) return false;
    }
  }
  bool is_logged = false;
  for (int rank = 0; rank < plan->num_ranks(); ++rank) {
    const std::optional<Json> line = newest_step(log_of(RankId(rank)));
    if (!line || !number_in(*line, "loss")) continue;
    if (!has_step(line)) return false;
    is_logged = true;
  }
  return is_logged;
}

RankStatus status_of(const fs::path& round, int rank) {
  RankStatus status;
  const Result<Json> json = read_json((round / run_files::kStatus.of(rank)).string());
  if (!json || !json->is_object()) return status;
  if (const Json* step = json->find("step"); step && step->kind() == Json::Kind::Int && step->as_int() >= 0) {
    status.step = std::to_string(step->as_int());
  }
  if (const Json* action = json->find("action"); action && action->is_string())
    status.action = escaped(action->as_string());
  status.beat = std::max<std::int64_t>(0, integer_member(*json, "beat"));
  if (const Json* slow = json->find("slow"); slow && slow->is_number()) status.slow = slow->as_double();
  return status;
}

namespace {

constexpr std::int64_t kSilenceMs = 5000;  // a rank's beat comes every second
constexpr std::chrono::milliseconds kSecondLook{2000}, kLookEvery{50};

/// Whether a beat is far from the time of this host: the rank gives no sign of life, or clocks differ.
bool is_doubtful(const RankStatus& rank) {
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  return rank.action != "done" && rank.beat > 0 && std::abs(now - rank.beat) > kSilenceMs;
}

/// Finds the ranks whose beat stands still. Only those of a doubtful one are looked at twice, which takes a
/// while.
std::set<int> silent_ranks(const fs::path& round, const std::vector<RankStatus>& ranks) {
  std::set<int> silent;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (is_doubtful(ranks[rank])) silent.insert(static_cast<int>(rank));
  const auto end = std::chrono::steady_clock::now() + kSecondLook;
  while (!silent.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kLookEvery);
    std::erase_if(silent, [&](int rank) {
      return status_of(round, rank).beat != ranks[static_cast<std::size_t>(rank)].beat;
    });
  }
  return silent;
}

/// `is_root`: the rank failed first.
RankState state_of(const RankStatus& rank, bool is_root, bool is_silent, RunPhase phase) {
  if (is_root) return RankState::Failed;
  if (rank.action == "done") return RankState::Done;
  if (phase == RunPhase::Failed || phase == RunPhase::Stopped) return RankState::Stopped;
  if (phase != RunPhase::Running || is_silent) return RankState::Lost;
  if (rank.step == "-") return RankState::Starting;
  return rank.slow > 0 ? RankState::Slow : RankState::Healthy;
}

}  // namespace

RunState read_run_state(const fs::path& folder) {
  RunState state;
  const fs::path round = newest_round(folder);
  std::error_code error;
  for (int rank = 0; fs::exists(round / run_files::kStatus.of(rank), error); ++rank) {
    state.ranks.push_back(status_of(round, rank));
    const fs::file_time_type written = fs::last_write_time(round / run_files::kStatus.of(rank), error);
    // Not the later one of both: the clock of files counts from a time to come.
    if (!error && (state.changed == fs::file_time_type{} || written > state.changed)) state.changed = written;
    const std::int64_t step = number_of<std::int64_t>(state.ranks.back().step).value_or(-1);
    state.step = rank == 0 ? step : std::min(state.step, step);
  }
  state.loss = last_loss(round, state.ranks.size());
  state.checkpoint = newest_checkpoint(round);
  const fs::path job_file = folder / "job.yaml";
  const Result<std::string> job_text = read_regular_file(job_file);
  const Result<Json> job =
      job_text ? parse_yaml(*job_text, job_file.string()) : Result<Json>(job_text.problems());
  if (job && job->is_object()) {
    state.steps = integer_member(*job, "steps");
    if (const Json* model = job->find("model"); model && model->is_string()) state.model = model->as_string();
  }
  bool stopped_early = false;
  const Result<Json> summary = read_json((round / run_files::kSummary).string());
  const bool has_summary = summary && summary->is_object();
  if (has_summary) {
    if (const Json* early = summary->find("stopped_early"); early && early->kind() == Json::Kind::Bool)
      stopped_early = early->as_bool();
    if (const Json* model = summary->find("model"); model && model->is_string())
      state.model = model->as_string();
  }
  if (state.model.empty()) {  // of `train`, and not yet at its end
    const Result<Json> plan = read_json((round / run_files::kPlan).string());
    const Json* model = plan ? plan->find("model") : nullptr;
    if (model && model->is_string()) state.model = model->as_string();
  }
  state.holder = lock_holder(folder);
  const std::optional<RunFailure> failure = failure_of(round);
  state.failure = failure;
  if (state.holder) {
    state.phase = RunPhase::Running;
    state.failure.reset();  // an earlier attempt's
  } else if (state.failure) {
    state.phase = RunPhase::Failed;
  } else if (has_summary) {
    state.phase = stopped_early ? RunPhase::Stopped : RunPhase::Done;
  } else if (!state.ranks.empty() || !state.checkpoint.empty()) {
    state.phase = RunPhase::Ended;
  }
  const std::set<int> silent =
      state.phase == RunPhase::Running ? silent_ranks(round, state.ranks) : std::set<int>();
  for (int rank = 0; rank < static_cast<int>(state.ranks.size()); ++rank) {
    RankStatus& own = state.ranks[static_cast<std::size_t>(rank)];
    own.state = state_of(own, failure && failure->rank == rank, silent.contains(rank), state.phase);
  }
  return state;
}

namespace {

constexpr int kDeepest = 4;  // of the folders in which `runs` looks

void find_runs(const std::filesystem::path& folder, int depth, std::vector<std::filesystem::path>& found) {
  if (read_run_state(folder).phase != RunPhase::None) {
    found.push_back(folder);
    return;  // what is below belongs to the run
  }
  if (depth == kDeepest) return;
  std::vector<std::filesystem::path> folders;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.is_directory(error) && !entry.is_symlink(error)) folders.push_back(entry.path());
  std::ranges::sort(folders);
  for (const std::filesystem::path& inner : folders) find_runs(inner, depth + 1, found);
}

}  // namespace

std::vector<std::filesystem::path> runs_below(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  find_runs(folder, 0, found);
  return found;
}

}  // namespace millrace
