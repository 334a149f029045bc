// Ways to spread the ranks of a cluster over the stages of a pipeline, before anything is known of the cuts.
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
  std::vector<std::vector<RankId>> ranks;  // by stage
  // The members that follow are by stage.
  StashCounts stash;
  std::vector<double> rounds;            // microbatches of the replica that has most; a share if asynchronous
  std::vector<Bytes> memory;             // of its smallest rank, shared by its chunks; 0: unlimited
  std::vector<std::vector<int>> sheets;  // distinct kinds of device, by the cost model's number
  std::vector<AllReduceCost> reduces;
  std::vector<std::vector<ClusterLink>>
      hops;            // to the next stage: distinct links; none if there are many pairs
  double floor_s = 0;  // no cut of any graph with this much compute is faster (docs/planning.md)

  int stages() const { return static_cast<int>(ranks.size()); }
};

/// `chain`: every stage needs the one before it, so that fill and drain count in `floor_s`.
/// Problem if the schedule does not exist for these replicas.
Result<Layout> make_layout(CostModel& model, const PlannerOptions& options, ScheduleKind kind,
                           int microbatches, std::vector<std::vector<RankId>> ranks, double compute_s,
                           bool chain);

/// Layouts of the schedules that hold several stages on each rank: for every number of places that divides
/// the ranks, each schedule (or the option's) and 2 to 4 stages per rank (or the option's), placed as the
/// schedule wants them. Those with more stages than `layers` are left out.
std::vector<Layout> chunked_layouts(CostModel& model, const PlannerOptions& options,
                                    const std::vector<int>& microbatches, int ranks, int layers,
                                    double compute_s);

/// Every way to give each stage at least one of `ranks` ranks, fewer stages first. Above ten ranks a choice:
/// even ones and those with one wide first or last stage, for at most 24 numbers of stages.
inline constexpr int kRanksForEveryReplication = 10;
std::vector<std::vector<int>> replications(int ranks, int most_stages, const PlannerOptions& options);

/// Orders in which stages take devices: the cluster's own; other orders of the hosts where hosts differ (all
/// of them up to 24, else by speed, memory and nearness); one device of each host in turn where hosts are
/// equal (replicas of a stage on different hosts, neighbouring stages on the same one); where links were
/// measured pair by pair, orders that follow the quickest ones.
std::vector<std::vector<RankId>> device_orders(const ClusterSpec& cluster);

/// The memory limit of a rank: the option's, else its own; 0: unlimited.
Bytes memory_limit(const PlannerOptions& options, const ClusterSpec& cluster, RankId rank);

}  // namespace millrace
