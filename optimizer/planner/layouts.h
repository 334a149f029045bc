// Ways to spread the ranks of a cluster over the stages of a pipeline, before the cuts are known.
// LibTorch-free.
#pragma once

#include <vector>

#include "optimizer/cost/cost_model.h"
#include "optimizer/planner/planner.h"

namespace millrace {

/// Stages on consecutive devices of a device order, under one schedule and microbatch count.
struct Layout {
  ScheduleKind kind = ScheduleKind::OneFOneB;
  int microbatches = 1;
  int chunks = 1;                          ///< stages of each rank
  std::vector<std::vector<RankId>> ranks;  // indexed by stage, like the members that follow
  StashCounts stash;
  // Microbatches of the replica that has most. In an asynchronous schedule: microbatches / replicas.
  std::vector<double> rounds;
  std::vector<Bytes> memory;  // the limit of the stage's smallest rank, divided by its chunks; 0: unlimited
  std::vector<std::vector<int>> sheets;  // the cost model's numbers of the stage's distinct kinds of device
  std::vector<AllReduceCost> reduces;
  std::vector<std::vector<ClusterLink>> hops;  // distinct links to the next stage; empty: too many pairs
  double floor_s = 0;  // seconds of a step; no cut of a graph with this much compute takes less (planning.md)

  int stages() const { return static_cast<int>(ranks.size()); }
};

/// Makes a layout of stages on `ranks`. `compute_s` is the compute of one microbatch. With `chain` every
/// stage needs the one before it, so that fill and drain count in `floor_s`. Returns a Problem if the
/// schedule does not exist for these replicas.
Result<Layout> make_layout(CostModel& model, const PlannerOptions& options, ScheduleKind kind,
                           int microbatches, std::vector<std::vector<RankId>> ranks, double compute_s,
                           bool chain);

/// Returns the layouts of the schedules that hold several stages on each rank. It tries every number of
/// places that divides the ranks, each schedule (or the option's) and 2 to 4 stages per rank (or the
/// option's). Stages are placed as the schedule needs. Layouts with more stages than `layers` are left out.
std::vector<Layout> chunked_layouts(CostModel& model, const PlannerOptions& options,
                                    const std::vector<int>& microbatches, int ranks, int layers,
                                    double compute_s);

/// Returns every way to give each stage at least one of `ranks` ranks, fewer stages first. Above ten ranks it
/// is a selection: even ways, and ways with one wide first or last stage, for at most 24 numbers of stages.
inline constexpr int kRanksForEveryReplication = 10;
std::vector<std::vector<int>> replications(int ranks, int most_stages, const PlannerOptions& options);

/// Returns orders in which stages take devices:
/// - the cluster's own order;
/// - if hosts differ, other orders of the hosts: all up to 24, else orders by speed, memory and nearness;
/// - if hosts have equally many devices, one device of each host after the other, so that replicas of a stage
///   are on different hosts and neighbouring stages on the same one;
/// - if links were measured pair by pair, orders that follow the quickest links.
std::vector<std::vector<RankId>> device_orders(const ClusterSpec& cluster);

/// Returns the memory limit of a rank in bytes: the option's, else the rank's own; 0: unlimited.
Bytes memory_limit(const PlannerOptions& options, const ClusterSpec& cluster, RankId rank);

}  // namespace millrace
