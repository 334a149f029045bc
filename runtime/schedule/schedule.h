// A schedule is data: for each rank the list of actions it performs, in order. The checker, the simulator,
// the runtime, the trace and the pictures all read this one list.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/plan/plan.h"
#include "runtime/trace/trace.h"

namespace millrace {

enum class Op {
  Forward,         // F
  Backward,        // B: input and weight gradients at once
  BackwardInput,   // I
  BackwardWeight,  // W
  SendActivation,  // SEND_F
  RecvActivation,  // RECV_F
  SendGradient,    // SEND_B
  RecvGradient,    // RECV_B
  Reduce,          // REDUCE: join the replicas' gradients of a stage
  Update,          // UPDATE: apply the rule, publish a version
};

bool is_transfer(Op op);
bool is_send(Op op);
bool is_receive(Op op);
bool is_compute(Op op);
/// The span that an action leaves in the trace: a receive leaves the wait for it.
SpanKind span_kind(Op op);

/// One action of one rank. For transfers `stage` is the stage of this rank, `peer_stage` and `peer` the other
/// end. Reduce and Update carry the last microbatch that contributed.
struct Action {
  Op op = Op::Forward;
  StageId stage;
  MicrobatchId microbatch;
  StageId peer_stage;
  RankId peer;
  bool operator==(const Action&) const = default;
};

/// A tensor path: stage `from` hands activations to the later stage `to` and gets gradients back.
struct StageLink {
  StageId from;
  StageId to;
  bool operator==(const StageLink&) const = default;
};

/// The input of a generator. Microbatch m runs on replica m mod r of each stage (round robin).
/// A rank may hold several stages ("chunks"): it then appears in several entries of ranks_of_stage.
/// A link whose two ends are on one rank (for a given microbatch) needs no wire: there are no transfers for
/// it; the rank hands the tensor over in memory, and the order of its list satisfies the dependency.
struct PipelineShape {
  int microbatches = 1;
  std::vector<std::vector<RankId>> ranks_of_stage;
  std::vector<StageLink> links;  ///< empty: the chain 0->1->2...
  int update_every = 0;          ///< PipeDream-2BW: microbatches per update; 0: least_update_every
  /// Independent trainings of equal shape that fill the pipeline one after the other, with no flush between
  /// them: array k has microbatches [k n, (k + 1) n), n = microbatches / arrays, weights and an update of its
  /// own on every stage. Flushing schedules; n is a multiple of the replicas of every stage.
  int arrays = 1;

  int num_stages() const { return static_cast<int>(ranks_of_stage.size()); }
  int num_ranks() const;  ///< distinct ranks
  int replicas(StageId stage) const;
  /// Microbatches after which every replica of every stage has had as many as the others of its stage.
  int round() const;
  RankId rank_of(StageId stage, MicrobatchId microbatch) const;
  int array_of(MicrobatchId microbatch) const {
    return arrays == 1 ? 0 : static_cast<int>(microbatch.value / (microbatches / arrays));
  }
  std::vector<StageLink> all_links() const;  ///< `links`, or the chain
  /// Whether the tensors of `link` stay on one rank for `microbatch`.
  bool is_local(const StageLink& link, MicrobatchId microbatch) const;
  /// The stages of each rank, ascending. Index: RankId.
  std::vector<std::vector<StageId>> stages_of_ranks() const;
  bool has_chunks() const;  ///< some rank holds several stages
};
/// Stage s on ranks s*replicas .. s*replicas+replicas-1.
PipelineShape chain_shape(int stages, int microbatches, int replicas = 1);
/// p*v stages, stage s where stage s mod p is: arXiv 2104.04473. p*replicas ranks.
PipelineShape interleaved_shape(int p, int v, int microbatches, int replicas = 1);
/// 2p stages, stages r and 2p-1-r together: first and last stage share a rank. arXiv 2405.15362.
PipelineShape v_shape(int p, int microbatches, int replicas = 1);
/// The shape of a plan for `microbatches` of one array (0: its own count, of all its arrays); links from its
/// crossings.
PipelineShape shape_of(const Plan& plan, int microbatches = 0);

/// Returns the number of microbatches after which the order of an asynchronous schedule repeats.
int turn_of(const PipelineShape& shape);
/// Returns the number of such repetitions that fill an asynchronous pipeline, or drain it.
int filling_of(const PipelineShape& shape);

struct Schedule {
  ScheduleKind kind = ScheduleKind::OneFOneB;
  std::vector<std::vector<Action>> ranks;  ///< index: RankId
};

enum class Transport {
  Buffered,    ///< a send completes at once
  Rendezvous,  ///< a send completes when the peer receives; adjacent sends and the receives that follow them
               ///< are one exchange: all are posted, then it waits for all
};

/// Pure; docs/schedules.md describes each order, its idle time, memory and source. The result is valid under
/// `transport` (made for Rendezvous: under both), and both ends of a pair of ranks have its messages in one
/// order (pair_order.h). In the asynchronous schedules `microbatches` counts those of the whole run. Flushing
/// schedules end with Reduce and Update of each stage of the rank, in stage order; those of an array that is
/// not the last come after the rank's last gradient of it.
/// Problem if the shape does not fit: no stages, replicas > microbatches, chunks where the schedule has none,
/// unequal replicas in schedules with chunks, another placement than the schedule's, an asynchronous count
/// that is not a multiple of the replicas (2BW: of update_every), several arrays in an asynchronous schedule
/// or of other microbatches than they can have. Custom has no generator.
/// AutoOrder: list_schedule with F = I = W and no cap.
Result<Schedule> make_schedule(ScheduleKind kind, const PipelineShape& shape,
                               Transport transport = Transport::Buffered);
/// A schedule as text in PyTorch's format (csv.h).
struct ScheduleFile {
  std::string name;  ///< in messages
  std::string text;
};

/// The schedule that `plan` names, for a shape of that plan. AutoOrder is ordered by the plan's predicted
/// times (the same on every rank), or by F = I = W if it has none; Custom needs `file`. Problem as
/// make_schedule and read_schedule_csv.
Result<Schedule> schedule_of(const Plan& plan, const PipelineShape& shape, Transport transport,
                             const std::optional<ScheduleFile>& file = std::nullopt);
/// Forwards alone, for evaluation: any shape, also with fewer microbatches than replicas. Each rank goes
/// along the diagonals stage + microbatch, so that chunks are pipelined too.
Schedule forward_schedule(const PipelineShape& shape, Transport transport);
/// Computations of each rank (F, B, I, W; asynchronous: also Reduce, Update) made into a schedule for
/// Buffered: Reduce and Update at the end of a flushing one, and all transfers. Receives stand right before
/// the computation that needs them (or a later message of the same pair) and sends right after the one that
/// made them, so that adjacent transfers form one exchange.
Schedule lower(ScheduleKind kind, const PipelineShape& shape, std::vector<std::vector<Action>> computations);
/// Breaks circles of blocking sends: the receive is moved up to the place where its rank stands then. A
/// schedule without such circles stays as it is, and so does one that cannot run at all. With sends that do
/// not block, an early receive may cost time.
Schedule for_rendezvous(Schedule schedule, const PipelineShape& shape);
/// PipeDream-2BW: the microbatches in flight at the first stage, rounded up to a multiple of all replicas.
int least_update_every(const PipelineShape& shape);

/// The weight version that the forward (and so the backward) of a microbatch uses. Index: stage *
/// shape.microbatches + microbatch. A version counts the updates of its stage.
///   flushing: 0, the version (of its array) at the start of the step;  PipeDream: the newest (weight
///   stashing); vertical sync: that of the first stage when it forwarded the microbatch; 2BW: max(0, batch -
///   1) with batch = microbatch / update_every, so w(t+1) = w(t) - lr grad f(w(t-1)).
std::vector<std::int64_t> forward_versions(const Schedule& schedule, const PipelineShape& shape);

/// Published bounds that check() enforces: live versions of a stage (flushing 1; PipeDream its microbatches
/// in flight; vertical sync those of the first stage; 2BW 2), and stashed (stage, microbatch) pairs of a rank
/// (docs/schedules.md; AutoOrder and Custom: all).
int version_limit(ScheduleKind kind, const PipelineShape& shape, StageId stage);
int stash_limit(ScheduleKind kind, const PipelineShape& shape, RankId rank);

/// Every violation: an action missing or twice, a dependency not met, a transfer without its peer or for a
/// link that needs none, backward on another replica than its forward, an update that misses a gradient or
/// comes between the computations of a step, a forward whose version is not there yet, more live versions or
/// stashed microbatches than version_limit and stash_limit, weight gradients of a stage not in microbatch
/// order (as they are summed; Custom may differ), reduces or updates of a stage not in that of arrays,
/// deadlock under `transport`. Empty: it is valid.
Problems check(const Schedule& schedule, const PipelineShape& shape, Transport transport);

/// Whether the replicas of `stages` may wait for each other within every forward and backward, as layers do
/// whose statistics are over the microbatches of all of them: microbatches k r to k r + r - 1 of r replicas
/// are a round; every replica goes through the rounds in one order, and nobody waits in a circle. Flushing
/// schedules that are valid. Empty: they may.
Problems check_rounds(const Schedule& schedule, const PipelineShape& shape, Transport transport,
                      const std::vector<StageId>& stages);

/// Seconds. Index: stage. `transfer_s`/`latency_s`: per microbatch and link, by order of all_links().
struct ScheduleCosts {
  std::vector<double> forward;
  std::vector<double> backward_input;
  std::vector<double> backward_weight;
  std::vector<double> reduce;    ///< exposed part; empty: 0
  std::vector<double> update;    ///< empty: 0
  std::vector<double> transfer;  ///< by link; empty: 0
  /// Likewise of the gradients that come back; empty: as much.
  std::vector<double> transfer_back{};
  /// Seconds, by stage, of the pass over its gradients where they are clipped by the norm of all gradients.
  /// All ranks then wait for each other and exchange for `agreement` seconds. Empty: there is no such norm.
  std::vector<double> norm{};
  double agreement = 0;
  /// Says, by stage, whether its replicas wait for each other within every forward and backward
  /// (check_rounds). Then none ends before the last one to begin has had its time. Empty: no stage does.
  std::vector<char> meets{};

  /// Returns the seconds of sending or receiving an activation or a gradient, by link.
  const std::vector<double>& transfers(Op op) const {
    const bool back = op == Op::SendGradient || op == Op::RecvGradient;
    return back && !transfer_back.empty() ? transfer_back : transfer;
  }
};

/// The most that each rank holds, by the order of its list alone (no times). Index: RankId.
struct Peaks {
  std::vector<int> stash;  ///< (stage, microbatch) pairs forwarded whose weight gradient is still to come
  std::vector<int>
      versions;  ///< live weight versions of a stage, the current one included; most of its stages
};
Peaks peaks_of(const Schedule& schedule, const PipelineShape& shape);

struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
};

struct Simulation {
  double makespan = 0;
  std::vector<std::vector<TimedAction>> ranks;
  std::vector<double> busy;                  ///< compute seconds per rank
  std::vector<double> bubble_fraction;       ///< 1 - busy / makespan
  std::vector<int> peak_stash;               ///< see Peaks
  std::vector<int> peak_versions;            ///< see Peaks
  std::vector<double> span;                  ///< seconds from a rank's first computation to its last
  std::vector<double> span_bubble_fraction;  ///< 1 - computing / span: how the zero-bubble papers count
  std::vector<double> peak_bytes;            ///< per rank; empty unless SimulationOptions has bytes per stage
  std::vector<double> arrival;               ///< of each message (message.h)
  std::vector<double> link_bytes;            ///< by link, both directions; empty unless bytes were given
};

/// Runs the lists with buffered sends; the wire between two ranks carries one message at a time in each
/// direction and overlaps computation. Throws InternalError on a deadlock (check first). Linear in the number
/// of actions. simulate.h has a richer model (latency, contention, jitter, ...) with these figures at its
/// zero.
Simulation simulate(const Schedule& schedule, const PipelineShape& shape, const ScheduleCosts& costs);

/// `2F0`, `1SEND_F0>0@2` (own stage 1, microbatch 0, to stage 0? no: `>peer_stage@peer_rank`), `0UPDATE3`.
/// One line per rank, actions joined by spaces. parse(to_string(s)) == s.
std::string to_string(const Action& action);
std::string to_string(const Schedule& schedule);
Result<Schedule> parse_schedule(std::string_view text, const std::string& name);

/// Terminal picture: one row per rank: F, B, I, W, R(educe), U(pdate), '.' for idle; small letters for every
/// second stage of a rank. gantt.h has the SVG.
std::string draw_text(const Simulation& simulation, int columns = 100);

}  // namespace millrace
