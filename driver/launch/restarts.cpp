#include "driver/launch/restarts.h"

#include <algorithm>
#include <climits>
#include <numeric>

#include "driver/flags/compute_specs.h"
#include "driver/launch/run_state.h"
#include "runtime/base/error.h"
#include "runtime/base/here_and_now.h"
#include "runtime/base/numbers.h"
#include "runtime/base/quantities.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/plan/plan.h"
#include "runtime/saved/rescued.h"

namespace millrace {
namespace {

constexpr int kFruitless = 3;
constexpr double kLeastTime = 10;          // seconds of a run
constexpr const char* kWhere = "restart";  // what messages of a changed job name
constexpr std::chrono::milliseconds kFirstDelay{1000}, kLongestDelay{60'000};

/// Whether another try may end better: a process was killed, a peer or a host was lost, or a run failed in a
/// way that has no code of its own. Wrong input, a damaged checkpoint and numbers that are not finite stay.
bool may_be_mended(const LaunchOutcome& outcome) {
  if (outcome.first_failure < 0) return false;
  const RankExit& first = outcome.exits.at(static_cast<std::size_t>(outcome.first_failure));
  return !first.lost.empty() || first.signal != 0 || first.status == static_cast<int>(ExitCode::RunFailed) ||
         first.status == static_cast<int>(ExitCode::Peer);
}

/// The hosts, by position, that a rank was on when its host was lost.
std::vector<std::size_t> lost_hosts(const LaunchOutcome& outcome, const JobSpec& job) {
  std::vector<std::size_t> lost;
  for (const RankExit& exit : outcome.exits) {
    if (exit.lost.empty()) continue;
    int first = 0;
    for (std::size_t host = 0; host < job.hosts.ranks.size(); first += job.hosts.ranks[host++]) {
      if (exit.rank >= first && exit.rank < first + job.hosts.ranks[host] &&
          std::ranges::find(lost, host) == lost.end())
        lost.push_back(host);
    }
  }
  return lost;
}

/// The furthest step that a rank says it came to; -1: none says so.
std::int64_t furthest_step(const JobSpec& job) {
  const std::filesystem::path round = newest_round(job.output_dir);
  std::int64_t step = -1;
  for (int rank = 0; rank < job.ranks; ++rank)
    step = std::max(step, number_of<std::int64_t>(status_of(round, rank).step).value_or(-1));
  return step;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

}  // namespace

std::optional<std::int64_t> keep_what_is_left(const LaunchOutcome& outcome, const JobSpec& job) {
  if (job.restarts.most == 0 || outcome.first_failure < 0) return std::nullopt;
  const std::filesystem::path round = newest_round(job.output_dir);
  // The run resumes after this step, so every log must have it.
  return publish_rescued(round / run_files::kCheckpoints,
                         [&](std::int64_t step) { return complete_logs(round, step - 1); });
}

Restarts::Restarts(const JobSpec& job) : spares_(job.restarts.spares) {
  if (const std::string* limit = job.find("time-limit")) time_limit_ = parse_duration(*limit);
}

std::optional<Restarts::Again> Restarts::after(const LaunchOutcome& outcome, const JobSpec& job) {
  if (!may_be_mended(outcome)) return std::nullopt;
  const auto kept = std::ranges::count_if(outcome.exits, &RankExit::is_kept);
  return again(job, lost_hosts(outcome, job), static_cast<int>(kept));
}

std::optional<Restarts::Again> Restarts::after_failed_start(const JobSpec& job,
                                                            const std::vector<std::size_t>& unready) {
  return made_ > 0 ? again(job, unready) : std::nullopt;  // the first start tells the user what is wrong
}

std::optional<Restarts::Again> Restarts::again(const JobSpec& job, const std::vector<std::size_t>& lost,
                                               int kept) {
  if (made_ >= job.restarts.most) {
    if (made_ > 0) why_not_ = "no restart is left of --max-restarts " + std::to_string(made_);
    return std::nullopt;
  }
  const RunState state = read_run_state(job.output_dir);
  const std::int64_t step = furthest_step(job);
  fruitless_ = step > furthest_ ? 0 : fruitless_ + 1;
  furthest_ = std::max(furthest_, step);
  if (fruitless_ >= kFruitless) {
    breaker_ = true;
    why_not_ = "three starts in a row came no further than the ones before";
    return std::nullopt;
  }
  Again again{.delay = std::min(kFirstDelay * (1 << std::min(fruitless_, 6)), kLongestDelay),
              .overrides = {},
              .text = {}};
  const std::string* resume = job.find("resume");
  const bool is_named = resume && *resume != kResumeAuto;
  // Until the ranks have taken the folder, what is in it is another run's.
  const bool has_folder = !state.ranks.empty();
  const bool as_told =
      (is_named && !(has_folder && can_go_on(job.output_dir))) || (!has_folder && job.find("overwrite"));
  if (!as_told) again.overrides.push_back({"resume", kResumeAuto, kWhere});
  if (has_folder || !as_told) again.overrides.push_back({"overwrite", "false", kWhere});
  std::string from = state.checkpoint.empty() ? "the start" : state.checkpoint;
  if (as_told) from = is_named ? *resume : "the start";
  if (kept > 0 && fruitless_ == 0) again.delay = {};
  if (time_limit_ && *time_limit_ - Seconds(process_age() + again.delay).count() < kLeastTime) {
    why_not_ = "the time limit leaves too little for a restart";
    return std::nullopt;
  }
  const std::string when =
      again.delay.count() == 0 ? "at once" : "in " + std::to_string(again.delay.count() / 1000) + " s";
  again.text = "millrace launch: restart " + std::to_string(++made_) + " of " +
               std::to_string(job.restarts.most) + " " + when + ", from " + from;
  if (kept > 0)
    again.text +=
        "; " + std::to_string(kept) + " of " + std::to_string(job.ranks) + " ranks keep their processes";
  replace(job, lost, again);
  return again;
}

void Restarts::replace(const JobSpec& job, const std::vector<std::size_t>& lost, Again& again) {
  std::vector<std::string> all, left;
  std::vector<int> places;  // of those that are left
  for (std::size_t host = 0; host < job.hosts.entries.size(); ++host) {
    HostEntry entry = job.hosts.entries[host];
    const int ranks = job.hosts.ranks.at(host);
    const bool is_lost = std::ranges::find(lost, host) != lost.end();
    const bool is_replaced = is_lost && !spares_.empty();
    if (is_replaced) {
      again.text += "; " + spares_.front().login() + " takes the place of " + entry.login();
      entry = spares_.front();
      spares_.erase(spares_.begin());
    }
    all.push_back(in_list(entry, ranks));
    if (is_lost && !is_replaced) continue;
    left.push_back(all.back());
    places.push_back(ranks);
  }
  if (lost.empty()) return;
  again.overrides.push_back({"hosts", joined(all), kWhere});
  if (left.size() == all.size()) return;
  for (const std::string& file : job.restarts.smaller_plans) {
    const Result<Plan> plan = Plan::load(file);
    std::size_t used = 0;
    for (int ranks = plan ? plan->num_ranks() : INT_MAX; ranks > 0 && used < left.size();)
      ranks -= places[used++];
    if (!plan || std::accumulate(places.begin(), places.end(), 0) < plan->num_ranks()) continue;
    left.resize(used);
    again.text += "; " + file + " on " + joined(left);
    again.overrides.back().value = joined(left);
    again.overrides.push_back({"plan", file, kWhere});
    again.overrides.push_back({"ranks", std::to_string(plan->num_ranks()), kWhere});
    // `auto` would be the plans beside this one.
    again.overrides.push_back({"smaller-plans", joined(job.restarts.smaller_plans), kWhere});
    return;
  }
  again.text += "; there is no spare host and no smaller plan that fits: the lost host is tried again";
}

}  // namespace millrace
