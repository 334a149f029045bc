// The kinds of schedules: one row each. Flags, help texts, the planner and the tests read this table.
// runtime/schedule/generators.h has the table of their action orders.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// The kinds of schedules. docs/schedules.md describes each, with its costs and its source.
enum class ScheduleKind {
  GPipe,
  OneFOneB,
  PipeDream,       ///< asynchronous, an update after each backward
  Interleaved,     ///< 1F1B over several stages per rank, stage s at position s mod p
  ZeroBubbleH1,    ///< backward split in two, memory of 1F1B; chunks as Interleaved
  ZeroBubbleH2,    ///< twice the memory, idle only at both ends
  ZeroBubbleV,     ///< stages r and 2p-1-r on one rank, memory of 1F1B
  VHalf,           ///< placed as ZeroBubbleV, half the memory of 1F1B
  VMin,            ///< placed as ZeroBubbleV, a third of the memory of 1F1B
  DualPipeV,       ///< placed as ZeroBubbleV, forwards overlapped with backwards
  PipeDreamVSync,  ///< PipeDream; a microbatch sees the same version in all stages
  PipeDream2BW,    ///< asynchronous, an update every k microbatches, two versions
  AutoOrder,       ///< ordered from measured costs (list_schedule)
  SpreadTables,    ///< any placement, replica cycle by replica cycle (spread_tables_plan)
  Custom,          ///< read from a file; flushing
};

/// When weights are updated.
enum class UpdateMoment {
  Flush,         ///< after a step, when no microbatch is in flight
  AfterEach,     ///< after each backward
  AfterSeveral,  ///< after k microbatches, while others are in flight
};

/// The number of stages on a rank.
enum class Chunks {
  One,
  OneOrMore,
  Several,  ///< 2 by default
  TwoInV,   ///< stages r and 2p-1-r
};

/// The source of the action order. `Placement`: a rule for plans with placements that flags cannot express.
enum class OrderSource { Rule, Costs, File, Placement };

struct ScheduleTraits {
  ScheduleKind kind;
  std::string_view name;
  UpdateMoment updates = UpdateMoment::Flush;
  Chunks chunks = Chunks::One;
  /// Whether weight gradients have a separate pass, so that a backward is two actions.
  bool splits_backward = false;
  OrderSource order = OrderSource::Rule;
};

/// The table, in the order of ScheduleKind's values.
inline constexpr auto kScheduleKinds = std::to_array<ScheduleTraits>({
    {ScheduleKind::GPipe, "gpipe"},
    {ScheduleKind::OneFOneB, "1f1b"},
    {ScheduleKind::PipeDream, "pipedream", UpdateMoment::AfterEach},
    {ScheduleKind::Interleaved, "interleaved", UpdateMoment::Flush, Chunks::Several},
    {ScheduleKind::ZeroBubbleH1, "zb-h1", UpdateMoment::Flush, Chunks::OneOrMore, true},
    {ScheduleKind::ZeroBubbleH2, "zb-h2", UpdateMoment::Flush, Chunks::One, true},
    {ScheduleKind::ZeroBubbleV, "zb-v", UpdateMoment::Flush, Chunks::TwoInV, true},
    {ScheduleKind::VHalf, "v-half", UpdateMoment::Flush, Chunks::TwoInV, true},
    {ScheduleKind::VMin, "v-min", UpdateMoment::Flush, Chunks::TwoInV, true},
    {ScheduleKind::DualPipeV, "dualpipev", UpdateMoment::Flush, Chunks::TwoInV, true},
    {ScheduleKind::PipeDreamVSync, "pipedream-vsync", UpdateMoment::AfterEach},
    {ScheduleKind::PipeDream2BW, "pipedream-2bw", UpdateMoment::AfterSeveral},
    {ScheduleKind::AutoOrder, "auto-order", UpdateMoment::Flush, Chunks::OneOrMore, true, OrderSource::Costs},
    {ScheduleKind::SpreadTables, "spread-tables", UpdateMoment::Flush, Chunks::OneOrMore, false,
     OrderSource::Placement},
    {ScheduleKind::Custom, "custom", UpdateMoment::Flush, Chunks::OneOrMore, false, OrderSource::File},
});

constexpr const ScheduleTraits& traits_of(ScheduleKind kind) {
  return kScheduleKinds[static_cast<std::size_t>(kind)];
}
static_assert([] {
  for (std::size_t i = 0; i < kScheduleKinds.size(); ++i)
    if (kScheduleKinds[i].kind != static_cast<ScheduleKind>(i)) return false;
  return kScheduleKinds.back().kind == ScheduleKind::Custom;
}());

/// Returns whether a command's `--schedule` accepts it.
constexpr bool has_flag(const ScheduleTraits& row) {
  return row.order == OrderSource::Rule || row.order == OrderSource::Costs;
}
/// Returns whether a schedule updates weights while microbatches are in flight.
constexpr bool is_asynchronous(ScheduleKind kind) {
  return traits_of(kind).updates != UpdateMoment::Flush;
}
constexpr bool updates_after_each(ScheduleKind kind) {
  return traits_of(kind).updates == UpdateMoment::AfterEach;
}
constexpr bool updates_after_several(ScheduleKind kind) {
  return traits_of(kind).updates == UpdateMoment::AfterSeveral;
}
constexpr bool is_v_shaped(ScheduleKind kind) {
  return traits_of(kind).chunks == Chunks::TwoInV;
}
/// Returns whether a rank may hold several stages.
constexpr bool allows_chunks(ScheduleKind kind) {
  return traits_of(kind).chunks != Chunks::One;
}
/// Returns whether a rank must hold several stages.
constexpr bool needs_chunks(ScheduleKind kind) {
  return traits_of(kind).chunks == Chunks::Several || is_v_shaped(kind);
}
/// Returns the default number of stages on a rank.
constexpr int default_chunks(ScheduleKind kind) {
  return needs_chunks(kind) ? 2 : 1;
}

/// Returns the kinds for which `is` returns true, in table order.
template <class Is>
std::vector<ScheduleKind> schedule_kinds(Is is) {
  std::vector<ScheduleKind> kinds;
  for (const ScheduleTraits& row : kScheduleKinds) {
    if (is(row)) kinds.push_back(row.kind);
  }
  return kinds;
}

/// Returns the names for help texts: "gpipe, 1f1b, interleaved, ...".
std::string names_of(const std::vector<ScheduleKind>& kinds);
/// Returns the asynchronous or the flushing kinds that a flag can name.
std::vector<ScheduleKind> named_kinds(bool asynchronous);

std::string to_string(ScheduleKind kind);
Result<ScheduleKind> parse_schedule_kind(std::string_view text, const std::string& where);

}  // namespace millrace
