#include "experiments/report/run_messages.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <tuple>

namespace millrace {
namespace {

// Readings of one clock pair by ranks of one host differ by less; hosts booted at one moment do not exist.
constexpr std::int64_t kSameClock = 50'000'000;  // ns

}  // namespace

std::vector<std::int64_t> clock_offsets(const RunData& run) {
  std::vector<std::int64_t> offsets(run.ranks.size());
  std::int64_t least = INT64_MAX, most = INT64_MIN;
  for (const RankRun& rank : run.ranks) {
    if (rank.spans.empty()) continue;
    if (!rank.unix_offset_ns) return offsets;
    least = std::min(least, *rank.unix_offset_ns);
    most = std::max(most, *rank.unix_offset_ns);
  }
  if (least > most || most - least < kSameClock) return offsets;
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = run.ranks[i].unix_offset_ns.value_or(0);
  return offsets;
}

std::vector<Span> step_spans(const RankRun& rank) {
  std::vector<std::pair<std::int64_t, std::int64_t>> evaluations;  // one behind the other
  for (const Span& span : rank.spans)
    if (span.kind == SpanKind::Eval) evaluations.emplace_back(span.start, span.end);
  std::ranges::sort(evaluations);
  std::vector<Span> spans;
  std::ranges::copy_if(rank.spans, std::back_inserter(spans), [&](const Span& span) {
    const auto behind =
        std::ranges::upper_bound(evaluations, span.start, {}, [](const auto& e) { return e.first; });
    return span.kind == SpanKind::Eval || behind == evaluations.begin() ||
           span.end > std::prev(behind)->second;
  });
  return spans;
}

std::vector<RunMessage> messages_of(const RunData& run, MessagesOf which) {
  const std::vector<std::int64_t> offsets = clock_offsets(run);
  using Key = std::tuple<std::int64_t, std::int64_t, int, int>;  // step, microbatch, from, to
  std::map<Key, std::vector<std::int64_t>> sent, received;
  for (std::size_t i = 0; i < run.ranks.size(); ++i) {
    const int rank = run.ranks[i].rank;
    const std::vector<Span> of_steps =
        which == MessagesOf::Steps ? step_spans(run.ranks[i]) : std::vector<Span>();
    for (const Span& span : which == MessagesOf::Steps ? of_steps : run.ranks[i].spans) {
      if (span.peer < 0 || span.microbatch < 0) continue;
      if (span.kind == SpanKind::Send)
        sent[{span.step, span.microbatch, rank, span.peer}].push_back(span.start + offsets[i]);
      if (span.kind == SpanKind::Recv || span.kind == SpanKind::Wait)
        received[{span.step, span.microbatch, span.peer, rank}].push_back(span.end + offsets[i]);
    }
  }
  std::vector<RunMessage> messages;
  for (const auto& [key, from] : sent) {
    const auto to = received.find(key);
    if (to == received.end()) continue;
    for (std::size_t k = 0; k < std::min(from.size(), to->second.size()); ++k) {
      if (to->second[k] <= from[k]) continue;
      messages.push_back({.from = std::get<2>(key),
                          .to = std::get<3>(key),
                          .microbatch = std::get<1>(key),
                          .step = std::get<0>(key),
                          .sent = from[k],
                          .arrived = to->second[k]});
    }
  }
  std::ranges::stable_sort(messages, {}, &RunMessage::sent);
  return messages;
}

}  // namespace millrace
