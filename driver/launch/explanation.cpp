#include "driver/launch/explanation.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>

#include "driver/hosts/rank_process.h"
#include "runtime/base/error.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using Kind = FlightRecord::Kind;
using State = FlightRecord::State;

std::int64_t last_sign(const FlightRecord& record) {
  return std::max({record.begun, record.waited, record.ended});
}

const Flight* flight_of(const std::vector<Flight>& flights, int rank) {
  const auto found = std::ranges::find(flights, rank, &Flight::rank);
  return found == flights.end() ? nullptr : &*found;
}

/// Whether `sender` has posted the message that `receive` waits for. It may not have waited for its send yet.
/// Tags are used again, so only a send after the newest that the receiver has taken counts.
bool was_sent(const Flight& receiver, const FlightRecord& receive, const Flight& sender) {
  std::int64_t taken = 0;
  for (const FlightRecord& one : receiver.records)
    if (one.kind == Kind::Receive && one.state == State::Done && one.tag == receive.tag &&
        one.peer == sender.rank)
      taken = std::max(taken, one.ended + receiver.unix_minus_clock_ns);
  return std::ranges::any_of(sender.records, [&](const FlightRecord& one) {
    return one.kind == Kind::Send && one.tag == receive.tag && one.peer == receiver.rank &&
           one.state != State::Failed && one.begun + sender.unix_minus_clock_ns > taken;
  });
}

/// The waits that a rank has not come out of. Of those that failed the first counts: others follow from it.
void add_waits(const Explanation& of, const Flight& flight, std::vector<RankWait>& waits) {
  const FlightRecord* failed = nullptr;
  const auto add = [&](const FlightRecord& record) {
    const std::int64_t until = record.ended > 0 ? record.ended : of.newest_ns - flight.unix_minus_clock_ns;
    RankWait wait{.from = flight.rank,
                  .to = record.peer,
                  .what = std::string(record.text()),
                  .seconds = static_cast<double>(until - record.waited) * 1e-9,
                  .gave_up = record.state == State::Failed};
    const Flight* peer = flight_of(of.flights, record.peer);
    wait.sent = peer && record.kind == Kind::Receive && was_sent(flight, record, *peer);
    waits.push_back(std::move(wait));
  };
  for (const FlightRecord& record : flight.records) {
    if (record.kind == Kind::Action) continue;
    if (record.state == State::Waiting) add(record);
    if (record.state == State::Failed && (!failed || record.ended < failed->ended)) failed = &record;
  }
  if (failed) add(*failed);
}

/// Follows waits to a rank that waits for nobody, or to a circle.
std::vector<int> root_of(const std::vector<RankWait>& waits) {
  std::map<int, int> next;
  for (const RankWait& wait : waits)
    if (!wait.sent) next.try_emplace(wait.from, wait.to);
  if (next.empty()) return {};
  std::map<std::vector<int>, int> votes;
  for (const auto& [start, first] : next) {
    std::vector<int> way{start};
    for (auto at = next.find(start); at != next.end(); at = next.find(way.back())) {
      const auto before = std::ranges::find(way, at->second);
      if (before != way.end()) {
        way.erase(way.begin(), before);
        std::rotate(way.begin(), std::ranges::min_element(way), way.end());
        break;
      }
      way.push_back(at->second);
    }
    if (!next.contains(way.back())) way.erase(way.begin(), way.end() - 1);
    ++votes[way];
  }
  return std::ranges::max_element(votes, {}, [](const auto& one) { return one.second; })->first;
}

const FlightRecord* last_action(const Flight& flight) {
  for (auto record = flight.records.rbegin(); record != flight.records.rend(); ++record)
    if (record->kind == Kind::Action) return &*record;
  return nullptr;
}

/// Says what the root was doing, and since when it gave no sign.
std::string doing(const Explanation& of, const Flight& flight) {
  std::string text;
  if (const FlightRecord* action = last_action(flight))
    text = (action->state == State::Done ? "its last action was " : "it was in action ") +
           std::string(action->text()) + " of step " + std::to_string(action->step);
  std::int64_t newest = 0;
  for (const FlightRecord& record : flight.records) newest = std::max(newest, last_sign(record));
  const double silent = static_cast<double>(of.newest_ns - newest - flight.unix_minus_clock_ns) * 1e-9;
  if (!text.empty()) text += "; ";
  return text + printed("its last sign came %.2f s before the newest of all ranks", std::max(0.0, silent));
}

std::string name_of(const Explanation& of, int rank) {
  const Flight* flight = flight_of(of.flights, rank);
  return "rank " + std::to_string(rank) +
         (flight && flight->stage >= 0 ? " (stage " + std::to_string(flight->stage) + ")" : "");
}

const char* to_string(State state) {
  static constexpr const char* kNames[] = {"begun", "waiting", "done", "failed"};
  return kNames[static_cast<int>(state)];
}
const char* to_string(Kind kind) {
  static constexpr const char* kNames[] = {"action", "send", "receive"};
  return kNames[static_cast<int>(kind)];
}

std::vector<FlightRecord> last_of(const Flight& flight, std::size_t records) {
  const std::size_t count = std::min(records, flight.records.size());
  return {flight.records.end() - static_cast<std::ptrdiff_t>(count), flight.records.end()};
}

/// Lets the waits of a run that goes on, or hangs, last until now. It does nothing if a rank is on another
/// host, whose clock may differ.
void count_until_now(Explanation& of) {
  const auto is_here = [](const Flight& flight) { return ::kill(static_cast<pid_t>(flight.pid), 0) == 0; };
  if (!std::ranges::all_of(of.flights, is_here)) return;
  const std::int64_t now =
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  const double silent = static_cast<double>(std::max<std::int64_t>(0, now - of.newest_ns)) * 1e-9;
  for (RankWait& wait : of.waits)
    if (!wait.gave_up) wait.seconds += silent;
}

}  // namespace

Explanation explain(std::vector<Flight> flights, std::optional<RunFailure> failure) {
  Explanation result{
      .flights = std::move(flights), .waits = {}, .failure = std::move(failure), .root = {}, .why = {}};
  for (const Flight& flight : result.flights)
    for (const FlightRecord& record : flight.records)
      result.newest_ns = std::max(result.newest_ns, last_sign(record) + flight.unix_minus_clock_ns);
  for (const Flight& flight : result.flights) add_waits(result, flight, result.waits);
  const bool told = result.failure && result.failure->exit_code != static_cast<int>(ExitCode::Peer);
  result.root = told ? std::vector{result.failure->rank} : root_of(result.waits);
  if (told) result.why = result.failure->error;
  if (result.root.size() == 1) {
    if (const Flight* flight = flight_of(result.flights, result.root.front()))
      result.why += (result.why.empty() ? "" : "; ") + doing(result, *flight);
    else
      result.why += std::string(result.why.empty() ? "" : "; ") + "it left no record";
  }
  return result;
}

Result<Explanation> explain_run(const fs::path& folder) {
  const fs::path round = newest_round(folder);
  std::vector<Flight> flights;
  Problems unread;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(round, error)) {
    if (!run_files::kFlight.rank_of(entry.path().filename().string())) continue;
    Result<Flight> flight = read_flight(entry.path().string());
    if (flight)
      flights.push_back(*std::move(flight));
    else
      append(unread, flight.problems());
  }
  if (flights.empty() && !unread.empty()) return unread;
  if (flights.empty())
    return Problem{folder.string(), "holds no record of a rank (" + run_files::kFlight.of(0) + ")",
                   "give the output folder of a run that came to its first step"};
  std::ranges::sort(flights, {}, &Flight::rank);
  Explanation result = explain(std::move(flights), failure_of(round));
  result.unread = std::move(unread);
  if (!result.failure && is_locked(folder)) count_until_now(result);
  const Flight* root = result.root.size() == 1 ? flight_of(result.flights, result.root.front()) : nullptr;
  if (root && !result.failure && is_locked(folder) && is_suspended(static_cast<pid_t>(root->pid)))
    result.why += "; process " + std::to_string(root->pid) + " is suspended (SIGSTOP or a debugger)";
  return result;
}

std::string to_text(const Explanation& e, std::size_t records) {
  std::string text;
  if (e.root.empty()) {
    text = "no rank waits for another\n";
  } else if (e.root.size() > 1) {
    text = "ranks wait for each other:";
    for (const int rank : e.root) text += " " + std::to_string(rank) + " for";
    text += " " + std::to_string(e.root.front()) + "\n";
  } else {
    text = "at the root: " + name_of(e, e.root.front()) + ": " + escaped(e.why) + "\n";
  }
  for (const RankWait& wait : e.waits)
    text += "  " + name_of(e, wait.from) + (wait.gave_up ? " gave up after " : " waits since ") +
            printed("%.2f s", wait.seconds) + " for rank " + std::to_string(wait.to) + ": " +
            escaped(wait.what) + (wait.sent ? " (which was sent)" : "") + "\n";
  for (const Problem& problem : e.unread) text += "not read: " + to_string(problem) + "\n";
  for (const Flight& flight : e.flights) {
    text += "\n" + name_of(e, flight.rank) + ", process " + std::to_string(flight.pid) + ", the last of " +
            std::to_string(flight.records.size()) + " records; seconds before the newest sign of all ranks\n";
    for (const FlightRecord& record : last_of(flight, records)) {
      const double before =
          static_cast<double>(e.newest_ns - record.begun - flight.unix_minus_clock_ns) * 1e-9;
      text += printed("  %9.4f  step %-6lld %-7s ", before, static_cast<long long>(record.step),
                      to_string(record.kind));
      if (record.kind != Kind::Action)
        text += std::string(record.kind == Kind::Send ? "to" : "from") +
                printed(" rank %d, %lld bytes ", record.peer, static_cast<long long>(record.bytes));
      text += escaped(record.text()) + (record.what[0] ? ": " : "") + to_string(record.state);
      if (record.ended > 0)
        text += printed(" in %.3f ms", static_cast<double>(record.ended - record.begun) * 1e-6);
      text += "\n";
    }
  }
  return text;
}

Json to_json(const Explanation& e, std::size_t records) {
  Json root = Json::array(), waits = Json::array(), ranks = Json::array(), unread = Json::array();
  for (const Problem& problem : e.unread) unread.push_back(to_string(problem));
  for (const int rank : e.root) root.push_back(rank);
  for (const RankWait& wait : e.waits)
    waits.push_back(Json::object({{"from", wait.from},
                                  {"to", wait.to},
                                  {"what", wait.what},
                                  {"seconds", wait.seconds},
                                  {"gave_up", wait.gave_up},
                                  {"sent", wait.sent}}));
  for (const Flight& flight : e.flights) {
    Json last = Json::array();
    for (const FlightRecord& record : last_of(flight, records)) {
      const auto seconds = [&](std::int64_t ns) {
        return ns > 0 ? Json(static_cast<double>(ns + flight.unix_minus_clock_ns) * 1e-9) : Json();
      };
      Json one = Json::object({{"kind", to_string(record.kind)},
                               {"state", to_string(record.state)},
                               {"what", std::string(record.text())},
                               {"step", record.step},
                               {"begun", seconds(record.begun)},
                               {"waited", seconds(record.waited)},
                               {"ended", seconds(record.ended)}});
      if (record.kind != Kind::Action) {
        one["peer"] = static_cast<std::int64_t>(record.peer);
        one["bytes"] = record.bytes;
      }
      last.push_back(std::move(one));
    }
    ranks.push_back(Json::object(
        {{"rank", flight.rank}, {"stage", flight.stage}, {"pid", flight.pid}, {"last", std::move(last)}}));
  }
  return Json::object({{"format", "millrace-explanation-1"},
                       {"root", std::move(root)},
                       {"why", e.why},
                       {"exit_code", e.failure ? Json(e.failure->exit_code) : Json()},
                       {"hint", e.failure ? Json(e.failure->hint) : Json()},
                       {"waits", std::move(waits)},
                       {"ranks", std::move(ranks)},
                       {"unread", std::move(unread)}});
}

}  // namespace millrace
