#include "runtime/comm/clock_offset.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>

#include <ATen/ops/zeros.h>

#include "runtime/base/files.h"
#include "runtime/base/run_folder.h"

namespace millrace {
namespace {

constexpr int kRoundTrips = 16;
constexpr std::uint64_t kTag = 1;  // nothing else is under way

std::int64_t now_ns(const Clock& clock) {
  return clock.now().time_since_epoch().count();
}

/// FNV-1a, cut to what a double holds exactly.
double number_of_name(const std::string& name) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return static_cast<double>(hash >> 12);
}

/// Rank 0's side: says when a message came and when the answer went.
void answer(Communicator& ranks, const Clock& clock, int peer) {
  for (int i = 0; i < kRoundTrips; ++i) {
    const at::Tensor question = at::zeros({1}, at::kLong), times = at::zeros({2}, at::kLong);
    const Transfer receive{Direction::Receive, RankId(peer), kTag, question, "a question for the time"};
    ranks.exchange({&receive, 1})->wait();
    auto* values = times.mutable_data_ptr<std::int64_t>();
    values[0] = now_ns(clock);
    const Transfer send{Direction::Send, RankId(peer), kTag, times, "the time"};
    values[1] = now_ns(clock);
    ranks.exchange({&send, 1})->wait();
  }
}

ClockOffset ask(Communicator& ranks, const Clock& clock) {
  ClockOffset best{.ns = 0, .round_trip_ns = std::numeric_limits<std::int64_t>::max()};
  for (int i = 0; i < kRoundTrips; ++i) {
    const at::Tensor question = at::zeros({1}, at::kLong), times = at::zeros({2}, at::kLong);
    const std::array<Transfer, 2> transfers{
        Transfer{Direction::Receive, RankId(0), kTag, times, "the time"},
        Transfer{Direction::Send, RankId(0), kTag, question, "a question for the time"}};
    const std::int64_t asked = now_ns(clock);
    ranks.exchange(transfers)->wait();
    const std::int64_t answered = now_ns(clock);
    const auto* values = times.const_data_ptr<std::int64_t>();
    const std::int64_t there = values[0] - asked, back = values[1] - answered;
    const std::int64_t round_trip = there - back;
    if (round_trip < best.round_trip_ns) best = {.ns = back + round_trip / 2, .round_trip_ns = round_trip};
  }
  return best;
}

}  // namespace

std::string name_of_steady_clock() {
  const Result<std::string> boot = read_file("/proc/sys/kernel/random/boot_id");
  std::array<char, 64> space{};  // CLOCK_MONOTONIC may be shifted in a time namespace
  const ssize_t length = ::readlink("/proc/self/ns/time", space.data(), space.size());
  return (boot ? *boot : host_name()) +
         std::string(space.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
}

ClockOffset measure_clock_offset(Communicator& ranks, const Clock& clock, const std::string& name) {
  const int size = ranks.size(), own = ranks.rank().value;
  if (size == 1) return {};
  at::Tensor names = at::zeros({size}, at::kDouble);
  names.mutable_data_ptr<double>()[own] = number_of_name(name);
  ranks.all_reduce(names, "names of clocks")->wait();
  const auto* of_rank = names.const_data_ptr<double>();
  const auto first_with = [&](int rank) {
    return static_cast<int>(std::find(of_rank, of_rank + size, of_rank[rank]) - of_rank);
  };
  const at::Tensor offsets =
      at::zeros({size, 2}, at::kLong);  // ns, round trip: of the first rank of each clock
  auto* values = offsets.mutable_data_ptr<std::int64_t>();
  bool several = false;
  for (int rank = 1; rank < size; ++rank) {
    if (const int first = first_with(rank); first == 0 || first != rank) continue;
    several = true;
    if (own == 0) answer(ranks, clock, rank);
    if (own != rank) continue;
    const ClockOffset offset = ask(ranks, clock);
    values[2 * rank] = offset.ns;
    values[2 * rank + 1] = offset.round_trip_ns;
  }
  if (several) ranks.all_reduce(offsets, "offsets of clocks")->wait();
  const int first = first_with(own);
  return {.ns = values[2 * first], .round_trip_ns = values[2 * first + 1]};
}

}  // namespace millrace
