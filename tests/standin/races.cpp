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
std::multimap<std::uintptr_t, Past> pasts;             // by begin
std::uintptr_t longest = 0;                            // of all pasts
std::map<std::uintptr_t, std::uintptr_t> free_pieces;  // begin and end of what LibTorch's allocator took back

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

/// Calls `visit` for what was done before to a part of the memory, with whether it is ordered before the
/// clock. What it returns true for is forgotten.
template <class Visit>
void visit_pasts(int stream, const Clock& clock, const Access& access, Visit&& visit) {
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
    at = visit(past, ordered) ? pasts.erase(at) : std::next(at);
  }
}

/// Ends the process if the memory is nobody's.
void check_owner(int stream, const std::string& name, const Access& access) {
  const auto begin = reinterpret_cast<std::uintptr_t>(access.address), end = begin + access.bytes;
  auto at = free_pieces.lower_bound(end);
  if (at == free_pieces.begin() || std::prev(at)->second <= begin) return;
  std::ostringstream text;
  text << "race: '" << name << "' on stream " << stream << (access.writes ? " writes " : " reads ")
       << access.bytes << " bytes at " << access.address << " that LibTorch's allocator has taken back";
  say(text.str());
  std::abort();
}

/// Compares one access with what was done before, and keeps it.
void check(int stream, const Clock& clock, const std::string& name, const Access& access) {
  const auto begin = reinterpret_cast<std::uintptr_t>(access.address), end = begin + access.bytes;
  check_owner(stream, name, access);
  visit_pasts(stream, clock, access, [&](const Past& past, bool ordered) {
    if (!ordered && (past.writes || access.writes)) race(past, name, stream, access);
    // What is ordered before this and wholly covered says nothing more.
    return begin <= past.begin && past.end <= end && (access.writes || (ordered && !past.writes));
  });
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

void take_back(int stream, const Access& memory) {
  if (!settings().races) return;
  const std::lock_guard lock(own);
  Clock clock = clocks[stream];
  join(clock, clocks[kHost]);
  visit_pasts(stream, clock, memory, [&](const Past& past, bool ordered) {
    if (!ordered) race(past, "the next owner of memory that is taken back", stream, memory);
    return false;
  });
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.address);
  free_pieces[begin] = begin + memory.bytes;
}

void give_out(const Access& memory) {
  if (!settings().races) return;
  const std::lock_guard lock(own);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.address), end = begin + memory.bytes;
  auto at = free_pieces.lower_bound(begin);
  if (at != free_pieces.begin() && std::prev(at)->second > begin) --at;
  while (at != free_pieces.end() && at->first < end) at = free_pieces.erase(at);
}

void forget(const Block& block) {
  if (!settings().races) return;
  const std::lock_guard lock(own);
  free_pieces.erase(free_pieces.lower_bound(block.begin), free_pieces.lower_bound(block.begin + block.bytes));
  for (auto at = pasts.lower_bound(block.begin); at != pasts.end() && at->first < block.begin + block.bytes;)
    at = pasts.erase(at);
}

}  // namespace standin::races
