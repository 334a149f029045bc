// The families of schedules: orders of computations only. Internal to this folder.
// In all of them `places` is p, a place is a rank within one replica of the pipeline, and microbatches are
// counted within the replica (0, 1, 2 ...); make_schedule.cpp maps them to ranks and adds the rest.
#pragma once

#include <vector>

#include "runtime/schedule/schedule.h"

namespace millrace {

using Order = std::vector<Action>;

inline Action computation(Op op, int stage, std::int64_t microbatch) {
  return {.op = op, .stage = StageId(stage), .microbatch = MicrobatchId(microbatch)};
}

/// One stage on one rank, as seen by schedules without chunks. Replicas may differ from stage to stage.
struct Place {
  int stage = 0;
  int microbatches = 1;  ///< of this replica
  int warm_up = 0;       ///< forwards before the first backward, PipeDream's rule (pipedream.md 5.2)
  /// The largest warm_up of all stages, since a later stage with fewer replicas may have more.
  int most_warm_up = 0;
  int update_every = 0;  ///< own microbatches per update (asynchronous)
};

/// Returns floor((ranks - 1 - ranks of earlier stages) / replicas of the stage).
int warm_up_of(const PipelineShape& shape, StageId stage);
int most_warm_up(const PipelineShape& shape);  ///< of all stages

Order gpipe(const Place& place);           // one_f_one_b.cpp
Order one_f_one_b(const Place& place);     // one_f_one_b.cpp
Order zero_bubble_h1(const Place& place);  // zero_bubble.cpp
Order zero_bubble_h2(const Place& place);  // zero_bubble.cpp
Order asynchronous(const Place& place);    // asynchronous.cpp; contains Update

/// Several stages per place: the orders of all places of one replica. `chunks` is v.
std::vector<Order> interleaved(int places, int chunks, int microbatches);     // interleaved.cpp
std::vector<Order> interleaved_h1(int places, int chunks, int microbatches);  // interleaved.cpp
/// Returns the microbatches of each group of the interleaved schedules. Groups are of PyTorch's size m /
/// max(1, m div p) if that divides m. Otherwise their sizes differ by at most one, larger first.
std::vector<int> group_sizes(int places, int microbatches);
std::vector<Order> zero_bubble_v(int places, int chunks, int microbatches);  // v_schedules.cpp
std::vector<Order> v_half(int places, int chunks, int microbatches);         // v_schedules.cpp
std::vector<Order> v_min(int places, int chunks, int microbatches);          // v_schedules.cpp
std::vector<Order> dual_pipe_v(int places, int chunks, int microbatches);    // v_schedules.cpp

std::vector<Order> spread_tables(const PipelineShape& shape);  // spread_tables.cpp; of all ranks

/// The numbers on which a bound of a rank's stash depends.
struct StashShape {
  int places = 1;        ///< p
  int chunks = 1;        ///< stages of the rank
  int first = 0;         ///< its first stage
  int microbatches = 1;  ///< of its replica
  int warm_up = 0;       ///< Place's, of the first stage
  int most_warm_up = 0;

  int group() const { return group_sizes(places, microbatches)[0]; }  ///< microbatches of the largest group
};

/// The generator of a kind. It makes the order of one rank, the orders of all places of one replica at once,
/// or those of all ranks.
struct Generator {
  ScheduleKind kind;
  Order (*one_stage)(const Place&) = nullptr;
  std::vector<Order> (*chunks)(int places, int chunks, int microbatches) = nullptr;
  /// Returns the most (stage, microbatch) pairs that a rank stashes at a time; null: all pairs of its step.
  int (*most_stashed)(const StashShape&) = nullptr;
  std::vector<Order> (*all_ranks)(const PipelineShape&) = nullptr;
};

inline int one_more_than_warm_up(const StashShape& s) {
  return s.warm_up + 1;
}

/// The generators of all kinds whose order follows from a rule.
inline constexpr Generator kGenerators[] = {
    {ScheduleKind::GPipe, gpipe, nullptr, nullptr},
    {ScheduleKind::OneFOneB, one_f_one_b, nullptr, one_more_than_warm_up},
    {ScheduleKind::PipeDream, asynchronous, nullptr, one_more_than_warm_up},
    {ScheduleKind::PipeDreamVSync, asynchronous, nullptr, one_more_than_warm_up},
    {ScheduleKind::PipeDream2BW, asynchronous, nullptr, one_more_than_warm_up},
    {ScheduleKind::Interleaved, nullptr, interleaved,
     [](const StashShape& s) {
       return (s.chunks - 1) * s.group() + (s.chunks > 1 ? 2 : 1) * (s.places - 1 - s.first) + 1;
     }},
    {ScheduleKind::ZeroBubbleH1, zero_bubble_h1, interleaved_h1,
     [](const StashShape& s) {
       return s.chunks == 1 ? s.most_warm_up + 1 : (s.chunks - 1) * s.group() + s.places;
     }},
    {ScheduleKind::ZeroBubbleH2, zero_bubble_h2, nullptr,
     [](const StashShape& s) { return 2 * s.most_warm_up + 1; }},
    {ScheduleKind::ZeroBubbleV, nullptr, zero_bubble_v, [](const StashShape& s) { return 2 * s.places; }},
    {ScheduleKind::VHalf, nullptr, v_half, [](const StashShape& s) { return s.places + 2; }},
    {ScheduleKind::VMin, nullptr, v_min, [](const StashShape& s) { return 2 * (s.places + 4) / 3; }},
    {ScheduleKind::DualPipeV, nullptr, dual_pipe_v, [](const StashShape& s) { return 2 * s.places + 1; }},
    {ScheduleKind::SpreadTables, nullptr, nullptr, nullptr, spread_tables},
};

/// Ends a flushing step: appends Reduce (unless the order has it already) and Update of each stage, in stage
/// order. All replicas have the same order, because a reduce waits for all of them. (lower.cpp)
void finish_step(const PipelineShape& shape, Order& order);

/// Puts the weight gradients into given orders of F and I, with list_schedule.cpp's engine. A W runs when its
/// rank would idle at least as long as W takes, or must free a stashed microbatch for the next forward. `cap`
/// limits the stashed (stage, microbatch) pairs of each rank. Returns an empty list if the order deadlocks
/// under the cap.
std::vector<Order> place_weights(const std::vector<Order>& orders, const PipelineShape& shape,
                                 const ScheduleCosts& costs, const std::vector<int>& cap);

}  // namespace millrace
