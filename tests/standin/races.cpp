#include "races.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <sstream>

namespace standin::races {
namespace {

/// A read or a write of a part of memory, the newest of its stream there.
struct Past {
  std::uintptr_t begin = 0, end = 0;
  int stream = 0;
  std::uint64_t tick = 0;
  bool writes = false;
  std::string name;
};

std::mutex own;  // forget() comes without the streams' lock
std::map<int, Clock> clocks;
std::multimap<std::uintptr_t, Past> pasts;  // by begin
std::uintptr_t longest = 0;                 // of all pasts

void join(Clock& clock, const Clock& other) {
  for (const auto& [stream, tick] : other) clock[stream] = std::max(clock[stream], tick);
}

[[noreturn]] void race(const Past& past, const std::string& name, int stream, const Access& access) {
  std::ostringstream text;
  text << "race: '" << name << "' on stream " << stream << (access.writes ? " writes " : " reads ")
       << access.bytes << " bytes at " << access.address << " that '" << past.name << "' on stream "
       << past.stream << (past.writes ? " writes" : " reads")
       << "; no event, wait or synchronisation orders stream " << stream << " behind it";
  say(text.str());
  std::abort();
}

/// Compares one access with what was done before, and keeps it.
void check(int stream, const Clock& clock, const std::string& name, const Access& access) {
  const auto begin = reinterpret_cast<std::uintptr_t>(access.address), end = begin + access.bytes;
  auto at = pasts.lower_bound(begin > longest ? begin - longest : 0);
  while (at != pasts.end() && at->first < end) {
    const Past& past = at->second;
    if (past.end <= begin) {
      ++at;
      continue;
    }
    const auto known = clock.find(past.stream);
    const bool ordered = past.stream == stream || (known != clock.end() && known->second >= past.tick);
    if (!ordered && (past.writes || access.writes)) race(past, name, stream, access);
    // What is ordered before this and wholly covered says nothing more.
    const bool covered =
        begin <= past.begin && past.end <= end && (access.writes || (ordered && !past.writes));
    at = covered ? pasts.erase(at) : std::next(at);
  }
  const Past now{begin, end, stream, clock.at(stream), access.writes, name};
  longest = std::max(longest, end - begin);
  pasts.emplace(begin, now);
}

}  // namespace

void launch(int stream, const std::string& name, const std::vector<Access>& accesses) {
  if (!settings().races) return;
  const std::lock_guard lock(own);
  Clock& clock = clocks[stream];
  join(clock, clocks[kHost]);
  ++clock[stream];
  for (const Access& access : accesses)
    if (access.bytes > 0) check(stream, clock, name, access);
}

Clock clock_of(int stream) {
  if (!settings().races) return {};
  const std::lock_guard lock(own);
  Clock clock = clocks[stream];
  join(clock, clocks[kHost]);
  return clock;
}

void stream_joins(int stream, const Clock& clock) {
  if (!settings().races) return;
  const std::lock_guard lock(own);
  join(clocks[stream], clock);
}

void host_joins(const Clock& clock) {
  if (!settings().races) return;
  const std::lock_guard lock(own);
  join(clocks[kHost], clock);
}

void host_joins(int stream) {
  if (settings().races) host_joins(clock_of(stream));
}

void forget(const Block& block) {
  if (!settings().races) return;
  const std::lock_guard lock(own);
  for (auto at = pasts.lower_bound(block.begin); at != pasts.end() && at->first < block.begin + block.bytes;)
    at = pasts.erase(at);
}

}  // namespace standin::races
