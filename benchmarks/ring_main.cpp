// Measures what the trace costs an event: a span into the ring, the same with the two looks at the clock that
// make one, and a span into the list that the loader's threads share. Least of some rounds, because other
// programs only make it slower.
//   benchmark_ring [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "runtime/base/clock.h"
#include "runtime/trace/trace.h"

using namespace millrace;  // NOLINT: a program

namespace {

constexpr int kEvents = 200'000;

/// Nanoseconds of one call of `event`, which takes its number.
template <class Event>
double least_ns(int rounds, Event event) {
  double least = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kEvents; ++i) event(i);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count() / kEvents);
  }
  return least;
}

Span span_of(int i) {
  return {.kind = SpanKind::Forward, .stage = 1, .microbatch = i, .step = i / 8, .start = i, .end = i + 1};
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
  Clock& clock = steady_clock();
  SpanRing ring(1 << 16);
  const double into_ring = least_ns(rounds, [&](int i) { ring.record(span_of(i)); });
  const double with_clock = least_ns(rounds, [&](int i) {
    Span span = span_of(i);
    span.start = clock.now().time_since_epoch().count();
    span.end = clock.now().time_since_epoch().count();
    ring.record(span);
  });
  double into_list = 1e9;
  for (int round = 0; round < rounds; ++round) {
    SpanList list;
    into_list = std::min(into_list, least_ns(1, [&](int i) { list.record(span_of(i)); }));
  }
  std::printf("| event | ns |\n|---|---|\n");
  std::printf("| a span into the ring | %.1f |\n| two looks at the clock and the ring | %.1f |\n", into_ring,
              with_clock);
  std::printf("| a span into the list of the loader's threads | %.1f |\n\n", into_list);
  return ring.recorded() > 0 ? 0 : 1;
}
