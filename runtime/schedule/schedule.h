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
  Reduce,          // REDUCE: sum a stage's gradients over its replicas
  Update,          // UPDATE: change the weights by the update rule; makes a new version
};

bool is_transfer(Op op);
bool is_send(Op op);
bool is_receive(Op op);
bool is_compute(Op op);
/// Returns the kind of the span that an action leaves in the trace. A receive leaves a Wait.
SpanKind span_kind(Op op);

/// One action of one rank. In a transfer, `stage` is this rank's stage, and `peer_stage` and `peer` are the
/// other end. Reduce and Update carry the last microbatch that contributed.
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

/// The input of a generator. Microbatch m runs on replica m mod r of each stage (round robin). A rank that
/// holds several stages ("chunks") appears in several entries of ranks_of_stage. A link may have both ends on
/// one rank for a given microbatch. It then has no transfers: the tensor stays in memory, and the order of
/// the rank's list satisfies the dependency.
struct PipelineShape {
  int microbatches = 1;
  std::vector<std::vector<RankId>> ranks_of_stage;
  std::vector<StageLink> links;  ///< empty: the chain 0->1->2...
  int update_every = 0;          ///< PipeDream-2BW: microbatches per update; 0: least_update_every
  /// The number of job arrays of equal shape that go through the pipeline one after the other, without a
  /// flush between them. Array k has microbatches [k n, (k + 1) n) with n = microbatches / arrays, and
  /// weights and updates of its own on every stage. More than one needs a flushing schedule, and n must be a
  /// multiple of the replicas of every stage.
  int arrays = 1;

  int num_stages() const { return static_cast<int>(ranks_of_stage.size()); }
  int num_ranks() const;  ///< distinct ranks
  int replicas(StageId stage) const;
  /// Returns the least number of microbatches that gives all replicas of a stage equally many, for every
  /// stage.
  int replica_cycle() const;
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
/// Returns a chain with stage s on ranks s*replicas .. s*replicas+replicas-1.
PipelineShape chain_shape(int stages, int microbatches, int replicas = 1);
/// Returns a shape of p*v stages on p*replicas ranks. Stage s is on the ranks of stage s mod p (arXiv
/// 2104.04473).
PipelineShape interleaved_shape(int p, int v, int microbatches, int replicas = 1);
/// Returns a shape of 2p stages with stages r and 2p-1-r on one rank, so that the first and the last stage
/// share a rank (arXiv 2405.15362).
PipelineShape v_shape(int p, int microbatches, int replicas = 1);
/// Returns the shape of a plan, with links from its crossings. The shape has `microbatches` microbatches of
/// one array; 0: the plan's own number, for all its arrays.
PipelineShape shape_of(const Plan& plan, int microbatches = 0);

/// Returns the number of microbatches after which the order of an asynchronous schedule repeats.
int period_of(const PipelineShape& shape);
/// Returns the number of microbatches, in whole periods, that fill an asynchronous pipeline, or drain it.
int filling_of(const PipelineShape& shape);

struct Schedule {
  ScheduleKind kind = ScheduleKind::OneFOneB;
  std::vector<std::vector<Action>> ranks;  ///< index: RankId
};

enum class Transport {
  Buffered,  ///< a send completes at once
  /// A send completes when the peer receives. Adjacent sends and the receives that follow them are one
  /// exchange: all are posted, then the rank waits for all.
  Rendezvous,
};

/// Makes the schedule of a kind. docs/schedules.md describes each order, its idle time, memory and source.
/// The result is valid under `transport`; one for Rendezvous is valid under both. Both ends of a pair of
/// ranks have its messages in one order (pair_order.h). In an asynchronous schedule `shape.microbatches`
/// counts those of the whole run. Flushing schedules end with Reduce and Update of each stage of the rank, in
/// stage order. For any array but the last, these come after the rank's last gradient of that array. Pure.
/// Problems are shapes that do not fit. They have no stages, more replicas than microbatches, chunks that the
/// schedule does not allow, unequal replicas beside chunks, or another placement than the schedule's. An
/// asynchronous number of microbatches must be a multiple of the replicas (2BW: of update_every). Several
/// arrays need a flushing schedule and a suitable number of microbatches. Custom has no generator. AutoOrder
/// is list_schedule with F = I = W and no cap.
Result<Schedule> make_schedule(ScheduleKind kind, const PipelineShape& shape,
                               Transport transport = Transport::Buffered);
/// A schedule as text in PyTorch's format (csv.h).
struct ScheduleFile {
  std::string name;  ///< in messages
  std::string text;
};

/// Makes the schedule that `plan` names, for a shape of that plan. AutoOrder uses the plan's predicted times,
/// so that every rank gets the same order; without predictions F = I = W. Custom needs `file`. Problems are
/// those of make_schedule and read_schedule_csv.
Result<Schedule> schedule_of(const Plan& plan, const PipelineShape& shape, Transport transport,
                             const std::optional<ScheduleFile>& file = std::nullopt);
/// Makes a schedule of forwards alone, for evaluation. Any shape fits, also one with fewer microbatches than
/// replicas. Each rank goes along the diagonals stage + microbatch, so that chunks are pipelined too.
Schedule forward_schedule(const PipelineShape& shape, Transport transport);
/// Makes a schedule for Buffered from the computations of each rank (F, B, I, W; asynchronous: also Reduce,
/// Update). The function adds all transfers, and Reduce and Update at the end of a flushing schedule. A send
/// stands right after the computation that made its tensor. A receive stands right before the computation
/// that needs it, or before a later message of the same pair. Adjacent transfers thus form one exchange.
Schedule lower(ScheduleKind kind, const PipelineShape& shape, std::vector<std::vector<Action>> computations);
/// Breaks circles of blocking sends: it moves a receive up to the place where its rank stands. A schedule
/// without such circles stays as it is, and so does one that cannot run at all. With sends that do not block,
/// an early receive may cost time.
Schedule for_rendezvous(Schedule schedule, const PipelineShape& shape);
/// Returns PipeDream-2BW's least microbatches per update: those in flight at the first stage, rounded up to a
/// multiple of the replicas of every stage.
int least_update_every(const PipelineShape& shape);

/// Returns the weight versions that the forwards (and so the backwards) use. Index: stage *
/// shape.microbatches + microbatch. A version counts the updates of its stage.
///   flushing: 0, the version (of its array) at the start of the step;  PipeDream: the newest (weight
///   stashing); vertical sync: that of the first stage when it forwarded the microbatch; 2BW: max(0, batch -
///   1) with batch = microbatch / update_every, so w(t+1) = w(t) - lr grad f(w(t-1)).
std::vector<std::int64_t> forward_versions(const Schedule& schedule, const PipelineShape& shape);

/// The published bounds that check() enforces. version_limit is the most live versions of a stage: flushing
/// 1; PipeDream its microbatches in flight; vertical sync those of the first stage; 2BW 2. stash_limit is the
/// most stashed (stage, microbatch) pairs of a rank (docs/schedules.md; AutoOrder and Custom: all).
int version_limit(ScheduleKind kind, const PipelineShape& shape, StageId stage);
int stash_limit(ScheduleKind kind, const PipelineShape& shape, RankId rank);

/// Finds every violation of a schedule; empty: it is valid.
/// Actions: one that is missing or stands twice, a dependency that is not met, a backward on another replica
/// than its forward. Transfers: one without its peer, one for a link that needs none, a deadlock under
/// `transport`. Updates: one that misses a gradient or comes between the computations of a step, reduces or
/// updates of a stage that are not in the order of arrays. Versions and memory: a forward whose version is
/// not there yet, more live versions or stashed microbatches than version_limit and stash_limit. Sums: weight
/// gradients of a stage that are not in microbatch order, in which they are summed (Custom may differ).
Problems check(const Schedule& schedule, const PipelineShape& shape, Transport transport);

/// Finds reasons why the replicas of `stages` cannot wait for each other within every forward and backward;
/// empty: they can. Layers wait so if their statistics are over the microbatches of all replicas.
/// Microbatches k r to k r + r - 1 of r replicas are a cycle. Every replica must go through the cycles in one
/// order, and no circle of waits may arise. The schedule must be flushing and valid.
Problems check_replicas_meet(const Schedule& schedule, const PipelineShape& shape, Transport transport,
                             const std::vector<StageId>& stages);

/// The seconds for which the all-reduce of a stage occupies the ports of hosts, whatever else goes on.
struct ReducePorts {
  struct Port {
    int host = 0;        ///< as in SimulationOptions::host
    double seconds = 0;  ///< in each direction
  };
  std::vector<Port> ports;
  /// The all-reduce may begin so long before the last replica's last gradient is there.
  double lead_s = 0;
};

/// Costs for one microbatch in seconds. The index is the stage, or the link in the order of all_links().
struct ScheduleCosts {
  std::vector<double> forward;
  std::vector<double> backward_input;
  std::vector<double> backward_weight;
  std::vector<double> reduce;  ///< the part that computation does not hide; empty: 0
  std::vector<double> update;  ///< empty: 0
  /// An all-reduce goes on from the end of its stage's last gradients, beside other stages of the rank.
  /// False: it begins with the action Reduce.
  bool reduces_beside = false;
  std::vector<double> transfer;  ///< by link; empty: 0
  /// By link, for the gradients that go back; empty: as `transfer`.
  std::vector<double> transfer_back{};
  /// The bytes of the same messages, for SimulationOptions::wire. Empty: not known.
  std::vector<double> transfer_bytes{}, transfer_back_bytes{};
  /// By stage: seconds of the pass over its gradients, where they are clipped by the norm of all gradients.
  /// Then all ranks wait for each other and exchange for `agreement` seconds. Empty: there is no such norm.
  std::vector<double> norm{};
  double agreement = 0;
  /// By stage: whether its replicas wait for each other within every forward and backward
  /// (check_replicas_meet). No replica then ends before the last one to begin has had its time. Empty:
  /// nowhere.
  std::vector<char> meets{};
  /// By stage: what its all-reduce takes of the ports that messages share. Empty: nothing.
  std::vector<ReducePorts> reduce_ports{};

  /// Returns the seconds of sending or receiving an activation or a gradient, by link.
  const std::vector<double>& transfers(Op op) const {
    const bool back = op == Op::SendGradient || op == Op::RecvGradient;
    return back && !transfer_back.empty() ? transfer_back : transfer;
  }
  /// Returns their bytes.
  const std::vector<double>& bytes_of_transfers(Op op) const {
    const bool back = op == Op::SendGradient || op == Op::RecvGradient;
    return back ? transfer_back_bytes : transfer_bytes;
  }
};

/// The most that each rank holds, by the order of its list alone (no times). Index: RankId.
struct Peaks {
  std::vector<int> stash;  ///< (stage, microbatch) pairs forwarded whose weight gradient is still to come
  std::vector<int>
      versions;  ///< live weight versions of a stage, the current one included; most of its stages
};
Peaks peaks_of(const Schedule& schedule, const PipelineShape& shape);

/// Messages that a rank waits for at a time, of all its stages. It posts their receives before it needs them.
inline constexpr int kReceivesAhead = 4;

/// Counts what a rank holds of a stage while a backward of the stage runs, in microbatches.
struct StageMoment {
  int stashed = 1;      ///< from the forward to the end of the backward; the running one is among them
  int open = 0;         ///< of these, between the gradients of their inputs and those of their weights
  int activations = 0;  ///< whose receives are posted
  int gradients = 0;    ///< the same of the gradients that come back
  Op op =
      Op::Backward;  ///< what runs: a Backward, BackwardInput (not yet open) or BackwardWeight (still open)
  auto operator<=>(const StageMoment&) const = default;
};
/// Returns by stage the moments at which a rank can be fullest, sorted. Empty for a stage without a backward.
std::vector<std::vector<StageMoment>> fullest_moments(const Schedule& schedule, const PipelineShape& shape);

/// The bytes that a stage holds. Each is 0 where it is not known.
struct StageBytes {
  double weights = 0;           ///< of one version
  double state = 0;             ///< gradients, update rule, batches loaded ahead: once for each array
  double stash = 0;             ///< of a microbatch, from its forward to the end of its backward
  double half_done = 0;         ///< the same between the gradient of its inputs and that of its weights
  double incoming = 0;          ///< of a message to the stage, and of the gradient that it sends back
  double outgoing = 0;          ///< of a message from the stage, and of the gradient that comes back
  double workspace = 0;         ///< of a backward beyond the stash, while it runs
  double split_workspace = 0;   ///< the same of a backward to the inputs alone
  double weight_workspace = 0;  ///< the same of the half that follows
  double reduced = 0;           ///< received by the all-reduce, from the last backward to the update
  double exchanged = 0;  ///< tied parameters that move between stages, from the update to the next forward
  double workspace_of(Op op) const {
    return op == Op::BackwardInput    ? split_workspace
           : op == Op::BackwardWeight ? weight_workspace
                                      : workspace;
  }
};

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

/// Simulates the lists with buffered sends. The wire between two ranks carries one message at a time in each
/// direction, beside the computation. Throws InternalError on a deadlock (call check first). Linear in the
/// number of actions. simulate.h has a richer model (latency, contention, jitter, ...) whose defaults give
/// these figures.
Simulation simulate(const Schedule& schedule, const PipelineShape& shape, const ScheduleCosts& costs);

/// Text of actions: `2F0` is the forward of microbatch 0 in stage 2. `1SEND_F0>2@3` sends the activation of
/// microbatch 0 from stage 1 to stage 2 on rank 3 (`>peer_stage@peer_rank`). A schedule has one line for each
/// rank, with actions joined by spaces. parse_schedule reads to_string's text back.
std::string to_string(const Action& action);
std::string to_string(const Schedule& schedule);
Result<Schedule> parse_schedule(std::string_view text, const std::string& name);

/// Returns a picture for a terminal with one row for each rank: F, B, I, W, R(educe), U(pdate), '.' for idle.
/// Every second stage of a rank has small letters. gantt.h draws SVG.
std::string draw_text(const Simulation& simulation, int columns = 100);

}  // namespace millrace
