// Shapes and kinds for properties of all schedules: tests/schedule takes a sample, tests/schedule_slow all.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "runtime/schedule/pair_order.h"
#include "runtime/schedule/schedule.h"
#include "tests/schedule/shapes.h"

namespace millrace {

inline const std::vector<ScheduleKind>& generated_kinds() {
  static const std::vector<ScheduleKind> kinds = schedule_kinds(has_flag);
  return kinds;
}

/// One (kind, places, microbatches, replicas, chunks) that the kind must be able to do.
struct ShapeCase {
  ScheduleKind kind;
  int places, microbatches, replicas, chunks;
  int arrays = 1;  ///< job arrays, each of `microbatches` microbatches
  PipelineShape shape() const {
    const int all = microbatches * arrays;
    PipelineShape shape = is_v_shaped(kind) && chunks == 2 ? v_shape(places, all, replicas)
                                                           : interleaved_shape(places, chunks, all, replicas);
    shape.arrays = arrays;
    return shape;
  }
  std::string name() const {
    return to_string(kind) + " p=" + std::to_string(places) + " m=" + std::to_string(microbatches) +
           " r=" + std::to_string(replicas) + " v=" + std::to_string(chunks) + " k=" + std::to_string(arrays);
  }
};

/// Whether the schedule is defined for the shape: chunks where it has them, and for the asynchronous ones
/// whole cycles of replicas and updates.
inline bool is_defined(const ShapeCase& c) {
  if (c.microbatches < c.replicas) return false;
  if (c.arrays > 1 && (is_asynchronous(c.kind) || c.microbatches % c.replicas != 0)) return false;
  if (is_v_shaped(c.kind)) return c.chunks == 2;
  if (c.chunks > 1 && !allows_chunks(c.kind)) return false;
  if (!is_asynchronous(c.kind)) return true;
  const int unit = c.kind == ScheduleKind::PipeDream2BW ? least_update_every(c.shape()) : c.replicas;
  return c.microbatches % unit == 0;
}

/// Calls `visit` for all kinds and shapes up to the bounds.
inline void for_every_shape(int places, int microbatches, int replicas, int chunks,
                            const std::function<void(const ShapeCase&)>& visit) {
  for (ScheduleKind kind : generated_kinds())
    for (int p = 1; p <= places; ++p)
      for (int m = 1; m <= microbatches; ++m)
        for (int r = 1; r <= replicas; ++r)
          for (int v = 1; v <= chunks; ++v) visit({kind, p, m, r, v});
}

/// Who sends to whom in the lists themselves.
inline RankPairs pairs_in(const Schedule& schedule) {
  RankPairs pairs;
  for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    for (const Action& action : schedule.ranks[rank])
      if (is_send(action.op)) pairs.emplace(RankId(rank), action.peer);
  }
  return pairs;
}

/// Valid under its transport (made for rendezvous: under both), messages of a pair in one order.
inline void expect_valid(const ScheduleKind kind, const PipelineShape& shape, const std::string& name) {
  for (Transport transport : {Transport::Buffered, Transport::Rendezvous}) {
    const Result<Schedule> schedule = make_schedule(kind, shape, transport);
    ASSERT_TRUE(schedule) << name << ": " << to_string(schedule.problems());
    ASSERT_EQ(to_string(check(*schedule, shape, Transport::Buffered)), "") << name << "\n"
                                                                           << to_string(*schedule);
    if (transport == Transport::Rendezvous) {
      ASSERT_EQ(to_string(check(*schedule, shape, transport)), "") << name << "\n" << to_string(*schedule);
    }
    ASSERT_EQ(to_string(check_pair_order(*schedule)), "") << name << "\n" << to_string(*schedule);
    ASSERT_EQ(pairs_in(*schedule), talking_pairs(shape, Passes::ForwardAndBackward)) << name;
  }
}

inline void expect_valid(const ShapeCase& c) {
  if (is_defined(c)) {
    expect_valid(c.kind, c.shape(), c.name());
  } else {
    ASSERT_FALSE(make_schedule(c.kind, c.shape())) << c.name();
  }
}

}  // namespace millrace
