// The simulator's richer model: links, ports, blocking sends, overlapped reduces, noise. Everything at its
// default gives exactly the figures of simulate(schedule, shape, costs).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace millrace {

enum class SendMode {
  Overlap,  ///< a send returns at once, the wire works beside the computation
  Block,    ///< the sender computes nothing until its message has left
};

/// One direction of the wire between two ranks. A message occupies it for bytes x s_per_byte and arrives
/// latency_s later.
struct PairWire {
  double latency_s = 0;
  double s_per_byte = 0;
};

/// Lists are indexed by link (order of all_links()), stage or rank; a missing entry means 0 (slowdown: 1).
/// A message takes `ScheduleCosts::transfer + bytes / bandwidth` seconds of its wire and arrives `latency`
/// seconds after it left: messages follow each other closely on a long wire.
struct SimulationOptions {
  std::vector<double> latency;    ///< by link, seconds
  std::vector<double> bytes;      ///< by link: bytes of one activation, and of the gradient that goes back
  std::vector<double> bandwidth;  ///< by link, bytes/s; 0: infinite

  /// The wire between two ranks, for costs that know the bytes of their messages: it takes the place of the
  /// costs' seconds, which are those of a link's slowest pair of ranks with its latency. Null: not known.
  std::function<PairWire(int from, int to)> wire{};

  /// By rank: the number of its host. Messages between hosts take the sending host's outgoing port and the
  /// receiving host's incoming port, one at a time, in the order in which they were posted. Empty: every pair
  /// of ranks has a wire of its own. (With shared ports a faster link may delay the whole: the order of the
  /// queue changes.)
  /// An all-reduce with `ScheduleCosts::reduce_ports` gets the time that messages leave of the ports. It does
  /// not end before its seconds and theirs have passed since it could begin.
  std::vector<int> host;

  Transport transport = Transport::Buffered;  ///< Rendezvous: adjacent transfers are one blocking exchange
  SendMode sends = SendMode::Overlap;         ///< of buffered sends
  /// Buckets of a stage's gradient: bucket i of k is reduced as soon as i/k of the last backward has passed
  /// on every replica. 1: the whole reduce is exposed.
  int reduce_buckets = 1;

  double jitter = 0;       ///< sigma of a log-normal factor (mean 1) on each computation and transfer
  std::uint64_t seed = 0;  ///< the same work gets the same noise under every schedule
  /// Costs by microbatch, for microbatches of different lengths and for turns: of its computations, its
  /// messages, and the update for which it is the last. The list repeats. Empty: all microbatches are alike.
  std::vector<ScheduleCosts> microbatch_costs;
  int microbatches_of_each = 1;  ///< consecutive microbatches that share an entry
  std::vector<double> slowdown;  ///< by rank: factor on its computations (a straggler: 2)

  /// Seconds of single actions instead of their costs, by rank and place in its list. They are the time of a
  /// computation, an update, a reduce (from the last replica's arrival), or a send's message. Negative or
  /// missing: the action's cost.
  std::vector<std::vector<double>> own_seconds;
  std::vector<double> start;  ///< by rank: when it begins, seconds; missing: 0

  bool peaks = true;                    ///< whether peak_stash and peak_versions are wanted
  std::vector<StageBytes> stage_bytes;  ///< by stage, for peak_bytes; empty: they are not wanted
};

/// Finds reasons why the replicas of the stages in `costs.meets` cannot wait for each other; empty: they can.
Problems check_meetings(const Schedule& schedule, const PipelineShape& shape, Transport transport,
                        const ScheduleCosts& costs);

/// Replicas that should meet but cannot (check_meetings) do not wait for each other; no run trains so.
/// Deterministic: equal arguments (and seed), equal result. Throws InternalError on a deadlock under
/// options.transport, or on a transfer without a link.
Simulation simulate(const Schedule& schedule, const PipelineShape& shape, const ScheduleCosts& costs,
                    const SimulationOptions& options);

/// Seconds of a step of a flushing schedule in a run of many: a rank begins the next step when its own list
/// is done, without a barrier, so that ends and beginnings of steps overlap (arXiv 2401.10241, section 2.3).
/// At most the makespan of one step: with GPipe and 1F1B equal to it, with ZB-H2 and ZB-V the bubble at both
/// ends is gone. Other arguments as simulate().
double steady_step(const Schedule& schedule, const PipelineShape& shape, const ScheduleCosts& costs,
                   const SimulationOptions& options = {});

/// Repeats each rank's list of a flushing schedule `steps` times. `shape` gets the microbatches of all steps.
/// The microbatches of a step are rounded up to whole cycles of the replicas, so that each step begins with
/// the first replica.
Schedule repeat_steps(const Schedule& schedule, PipelineShape& shape, int steps);

/// Makes a step of a model that is trained in turns (runtime/model/turns.h). Each rank's list stands once for
/// each of `turns`, which has the costs of each turn. There is no barrier between turns. A message whose
/// transfer is negative in a turn is left out of it. `shape` and `options` are changed to fit the step.
Schedule in_turns(const Schedule& schedule, PipelineShape& shape, SimulationOptions& options,
                  std::vector<ScheduleCosts> turns);

/// Returns the bytes of each rank at its fullest. The list of a rank is followed action by action, over all
/// of its stages: weights of all live versions, state, stash, posted receives (kReceivesAhead), and what a
/// backward needs while it runs. `of_stage` must name all stages of the shape.
std::vector<double> peak_bytes_of(const Schedule& schedule, const PipelineShape& shape,
                                  const std::vector<StageBytes>& of_stage);

/// One piece of the chain of waits that ends at the makespan.
struct CriticalStep {
  Action action;  ///< a computation, reduce or update of `rank`; a transfer: the receive
  RankId rank;
  int link = -1;  ///< of a transfer
  double start = 0;
  double end = 0;
};

/// Returns the actions and transfers that bound the makespan, in order of time, without a gap from 0 to the
/// makespan. Waiting for a busy wire counts as the transfer's. `simulation` must come from this shape and
/// transport. Linear in the number of actions.
std::vector<CriticalStep> critical_path(const Simulation& simulation, const PipelineShape& shape,
                                        Transport transport = Transport::Buffered);

}  // namespace millrace
