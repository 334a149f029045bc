// Checks that a schedule is valid and cannot deadlock.
#include <algorithm>
#include <string>
#include <utility>

#include "runtime/schedule/lock_step.h"

namespace millrace {
namespace {

constexpr std::size_t kMostProblems = 50;

class Checker {
 public:
  Checker(const Schedule& schedule, const PipelineShape& shape)
      : schedule_(schedule), shape_(shape), messages_(shape), asynchronous_(is_asynchronous(schedule.kind)) {}

  Problems structure() {
    if (static_cast<int>(schedule_.ranks.size()) != shape_.num_ranks()) {
      return {{"",
               "the schedule has " + std::to_string(schedule_.ranks.size()) + " ranks, the shape " +
                   std::to_string(shape_.num_ranks()),
               {}}};
    }
    sent_.assign(messages_.size(), 0);
    received_.assign(messages_.size(), 0);
    if (shape_.arrays < 1 || shape_.microbatches % shape_.arrays != 0)
      return {{"", "the microbatches do not divide among the arrays", {}}};
    versions_ = forward_versions(schedule_, shape_);
    cells_.assign(
        static_cast<std::size_t>(shape_.num_stages()) * static_cast<std::size_t>(shape_.microbatches),
        Cell{});
    for (std::size_t r = 0; r < schedule_.ranks.size(); ++r) rank(r);
    everything_once();
    if (problems_.empty()) limits();
    return std::move(problems_);
  }

 private:
  /// The computations that are done for one microbatch on one stage.
  struct Cell {
    bool forward = false, input = false, weight = false;
  };
  /// One stage of one array on the rank being read.
  struct StageState {
    std::int64_t newest = -1;  ///< last microbatch whose gradients wait for the update, or did
    int pending = 0;           ///< microbatches whose gradients wait for the update
    bool reduced = false;
    int updates = 0;
  };

  std::size_t index(StageId stage, MicrobatchId microbatch) const {
    return static_cast<std::size_t>(stage.value) * static_cast<std::size_t>(shape_.microbatches) +
           static_cast<std::size_t>(microbatch.value);
  }
  StageState& state(const Action& a) { return state(a.stage.value, shape_.array_of(a.microbatch)); }
  StageState& state(int stage, int array) {
    return states_[static_cast<std::size_t>(stage) * static_cast<std::size_t>(shape_.arrays) +
                   static_cast<std::size_t>(array)];
  }
  /// Over all arrays: those of a stage come in their order, on every replica alike.
  struct StageOrder {
    std::int64_t newest_gradient = -1;
    int reduced = -1, updated = -1;  ///< the last array
  };
  StageOrder& order(const Action& a) { return orders_[a.stage.value]; }
  Cell& cell(StageId stage, MicrobatchId microbatch) { return cells_[index(stage, microbatch)]; }
  void fail(std::size_t rank, const Action& action, std::string what) {
    if (problems_.size() < kMostProblems)
      problems_.push_back({"rank " + std::to_string(rank) + ", " + to_string(action), std::move(what), {}});
  }

  void rank(std::size_t r) {
    states_.assign(static_cast<std::size_t>(shape_.num_stages()) * static_cast<std::size_t>(shape_.arrays),
                   StageState{});
    orders_.assign(shape_.num_stages(), StageOrder{});
    const RankId self(static_cast<int>(r));
    for (const Action& a : schedule_.ranks[r]) {
      if (a.stage.value < 0 || a.stage.value >= shape_.num_stages() || a.microbatch.value < 0 ||
          a.microbatch.value >= shape_.microbatches) {
        fail(r, a, "names a stage or microbatch outside the shape");
      } else if (const RankId owner = shape_.rank_of(a.stage, a.microbatch); owner != self) {
        fail(r, a, "belongs to rank " + std::to_string(owner.value));
      } else if (is_transfer(a.op)) {
        transfer(r, a);
      } else if (is_compute(a.op)) {
        compute(r, a);
      } else {
        apply(r, a);
      }
    }
    for (int s = 0; s < shape_.num_stages(); ++s) {
      if (std::ranges::find(shape_.ranks_of_stage[s], self) != shape_.ranks_of_stage[s].end())
        for (int array = 0; array < shape_.arrays; ++array) finish(r, s, array);
    }
  }

  void compute(std::size_t r, const Action& a) {
    Cell& done = cell(a.stage, a.microbatch);
    StageState& state = this->state(a);
    if (a.op != Op::Forward && batch_of(a) != state.updates)
      fail(r, a,
           "batch " + std::to_string(batch_of(a)) + " after " + std::to_string(state.updates) +
               " updates of the stage");
    if (a.op == Op::Forward) {
      const std::int64_t version = versions_[index(a.stage, a.microbatch)];
      if (version > state.updates) fail(r, a, "version " + std::to_string(version) + " is not there yet");
      if (!asynchronous_ && state.updates > 0) fail(r, a, "comes after the update of its step");
      if (done.forward) fail(r, a, "appears twice");
      needs(r, a, /*gradient=*/false);
      done.forward = true;
      return;
    }
    if (a.op != Op::BackwardWeight) {
      if (!done.forward) fail(r, a, "comes before its forward");
      if (done.input) fail(r, a, "appears twice");
      needs(r, a, /*gradient=*/true);
      done.input = true;
    }
    if (a.op != Op::BackwardInput) {
      if (!done.input) fail(r, a, "comes before its input gradient");
      if (done.weight) fail(r, a, "appears twice");
      if (state.reduced) fail(r, a, "comes after the reduce");
      std::int64_t& newest = order(a).newest_gradient;
      if (a.microbatch.value < newest && schedule_.kind != ScheduleKind::Custom)
        fail(r, a, "comes after the weight gradient of microbatch " + std::to_string(newest));
      newest = std::max(newest, a.microbatch.value);
      done.weight = true;
      ++state.pending;
      state.newest = std::max(state.newest, a.microbatch.value);
    }
  }

  /// Updates of its stage and replica that come before the backward of `a`.
  std::int64_t batch_of(const Action& a) const {
    if (!asynchronous_) return 0;
    return a.microbatch.value / per_update(a.stage);
  }
  /// Microbatches of all replicas that one update of the stage covers (asynchronous).
  int per_update(StageId stage) const {
    if (!updates_after_several(schedule_.kind)) return shape_.replicas(stage);
    return shape_.update_every > 0 ? shape_.update_every : least_update_every(shape_);
  }

  void apply(std::size_t r, const Action& a) {
    StageState& state = this->state(a);
    const bool replicated = shape_.replicas(a.stage) > 1;
    if (state.pending == 0) fail(r, a, "there are no gradients to apply");
    if (asynchronous_ && state.pending != per_update(a.stage) / shape_.replicas(a.stage))
      fail(r, a, "has the gradients of " + std::to_string(state.pending) + " microbatches");
    if (a.microbatch.value != state.newest)
      fail(r, a, "the last gradient is of microbatch " + std::to_string(state.newest));
    int& last = a.op == Op::Reduce ? order(a).reduced : order(a).updated;
    const int array = shape_.array_of(a.microbatch);
    if (array < last) fail(r, a, "comes after that of array " + std::to_string(last));
    last = std::max(last, array);
    if (a.op == Op::Reduce) {
      if (!replicated) fail(r, a, "the stage has one replica");
      if (state.reduced) fail(r, a, "appears twice");
      state.reduced = true;
      return;
    }
    if (replicated && !state.reduced) fail(r, a, "comes before its reduce");
    state.reduced = false;
    state.pending = 0;
    ++state.updates;
  }

  /// Bounded memory.
  void limits() {
    const Peaks peaks = peaks_of(schedule_, shape_);
    const auto stages = shape_.stages_of_ranks();
    for (std::size_t r = 0; r < schedule_.ranks.size(); ++r) {
      const std::string where = "rank " + std::to_string(r);
      const int stash = stash_limit(schedule_.kind, shape_, RankId(static_cast<int>(r)));
      if (peaks.stash[r] > stash)
        problems_.push_back({where,
                             "stashes " + std::to_string(peaks.stash[r]) + " microbatches, " +
                                 to_string(schedule_.kind) + " at most " + std::to_string(stash),
                             {}});
      int versions = 1;
      for (StageId stage : stages[r])
        versions = std::max(versions, version_limit(schedule_.kind, shape_, stage));
      if (peaks.versions[r] > versions)
        problems_.push_back({where,
                             "holds " + std::to_string(peaks.versions[r]) + " weight versions, " +
                                 to_string(schedule_.kind) + " at most " + std::to_string(versions),
                             {}});
    }
  }

  void finish(std::size_t r, int stage, int array) {
    const StageState& state = this->state(stage, array);
    const std::string where = "rank " + std::to_string(r) + ", stage " + std::to_string(stage) +
                              (shape_.arrays > 1 ? ", array " + std::to_string(array) : "");
    if (state.pending > 0) problems_.push_back({where, "gradients are left without an update", {}});
    if (!asynchronous_ && state.updates != 1)
      problems_.push_back(
          {where,
           "has " + std::to_string(state.updates) + " updates in a flushing schedule, expected 1",
           {}});
  }

  /// Checks that a computation's inputs were received, or made on this rank, before it.
  void needs(std::size_t r, const Action& a, bool gradient) {
    for (const StageLink& link : gradient ? messages_.out_of(a.stage) : messages_.into(a.stage)) {
      const StageId peer = gradient ? link.to : link.from;
      if (shape_.is_local(link, a.microbatch)) {
        const Cell& made = cell(peer, a.microbatch);
        if (!(gradient ? made.input : made.forward))
          fail(r, a, "its tensor of stage " + std::to_string(peer.value) + " was not made before");
        continue;
      }
      const Action recv{gradient ? Op::RecvGradient : Op::RecvActivation, a.stage, a.microbatch, peer, {}};
      if (!received_[messages_.of(recv)])
        fail(r, a, "its tensor from stage " + std::to_string(peer.value) + " was not received before");
    }
  }

  void transfer(std::size_t r, const Action& a) {
    const std::int64_t message = messages_.of(a);
    if (message < 0) return fail(r, a, "no link joins these stages");
    const RankId peer = shape_.rank_of(a.peer_stage, a.microbatch);
    if (peer != a.peer) fail(r, a, "the peer must be rank " + std::to_string(peer.value));
    if (peer.value == static_cast<int>(r)) fail(r, a, "both stages are on this rank: no transfer is needed");
    if (is_send(a.op)) {
      if (sent_[message]++) fail(r, a, "is sent twice");
      const Cell& made = cell(a.stage, a.microbatch);
      if (!(a.op == Op::SendActivation ? made.forward : made.input))
        fail(r, a, "comes before the computation that makes it");
    } else if (received_[message]++) {
      fail(r, a, "is received twice");
    }
  }

  void everything_once() {
    for (int s = 0; s < shape_.num_stages(); ++s) {
      for (std::int64_t m = 0; m < shape_.microbatches; ++m) {
        const Cell& done = cell(StageId(s), MicrobatchId(m));
        if (!done.forward) missing(s, "forward", m);
        if (!done.input) missing(s, "input gradient", m);
        if (!done.weight) missing(s, "weight gradient", m);
        if (problems_.size() > kMostProblems) return;
      }
    }
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const MicrobatchId microbatch(messages_.microbatch_of(i));
      const StageLink& link = messages_.links()[messages_.link_of(i)];
      const int expected = shape_.is_local(link, microbatch) ? 0 : 1;
      if (sent_[i] == expected && received_[i] == expected) continue;
      problems_.push_back({"link " + std::to_string(link.from.value) + " to " + std::to_string(link.to.value),
                           "a message of microbatch " + std::to_string(microbatch.value) + " is sent " +
                               std::to_string(sent_[i]) + " and received " + std::to_string(received_[i]) +
                               " times",
                           {}});
      if (problems_.size() > kMostProblems) return;
    }
  }
  void missing(int stage, const char* what, std::int64_t microbatch) {
    problems_.push_back(
        {"stage " + std::to_string(stage),
         std::string("the ") + what + " of microbatch " + std::to_string(microbatch) + " is missing",
         {}});
  }

  const Schedule& schedule_;
  const PipelineShape& shape_;
  MessageIndex messages_;
  const bool asynchronous_;
  std::vector<std::int64_t> versions_;
  Problems problems_;
  std::vector<int> sent_, received_;
  std::vector<Cell> cells_;
  std::vector<StageState> states_;
  std::vector<StageOrder> orders_;  // by stage
};

Problems deadlock(const Schedule& schedule, const PipelineShape& shape, Transport transport,
                  std::vector<char> meets = {}) {
  auto ranks = schedule.ranks;  // LockStep may move receives; here it only reads
  LockStep lock_step(ranks, shape, transport, std::move(meets));
  if (lock_step.run()) return {};
  Problems problems;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::size_t at = lock_step.positions()[r];
    if (at >= ranks[r].size()) continue;
    problems.push_back({"rank " + std::to_string(r),
                        "is stuck at " + to_string(ranks[r][at]) + " (action " + std::to_string(at + 1) +
                            " of " + std::to_string(ranks[r].size()) + ")",
                        transport == Transport::Rendezvous
                            ? "sends block here: adjacent transfers must form one exchange"
                            : ""});
  }
  return problems;
}

}  // namespace

Problems check_replicas_meet(const Schedule& schedule, const PipelineShape& shape, Transport transport,
                             const std::vector<StageId>& stages) {
  Problems problems;
  std::vector<char> meets(shape.num_stages(), 0);
  for (const StageId stage : stages) {
    const auto& replicas = shape.ranks_of_stage[stage.value];
    if (replicas.size() < 2) continue;
    meets[stage.value] = 1;
    const std::string where = "stage " + std::to_string(stage.value);
    const auto count = static_cast<std::int64_t>(replicas.size());
    if (shape.microbatches % count != 0) {
      problems.push_back({where,
                          std::to_string(shape.microbatches) + " microbatches do not make whole cycles of " +
                              std::to_string(count) + " replicas",
                          "give a multiple of the replicas"});
      continue;
    }
    const auto order = [&](RankId rank) {
      std::vector<std::pair<Op, std::int64_t>> result;
      for (const Action& a : schedule.ranks[rank.value]) {
        if (a.stage == stage && is_compute(a.op)) result.emplace_back(a.op, a.microbatch.value / count);
      }
      return result;
    };
    const auto first = order(replicas.front());
    if (std::ranges::any_of(replicas, [&](RankId rank) { return order(rank) != first; }))
      problems.push_back({where, "its replicas go through the microbatches in different orders", {}});
  }
  if (!problems.empty()) return problems;
  return deadlock(schedule, shape, transport, std::move(meets));
}

Problems check(const Schedule& schedule, const PipelineShape& shape, Transport transport) {
  if (Problems problems = Checker(schedule, shape).structure(); !problems.empty()) return problems;
  return deadlock(schedule, shape, transport);
}

}  // namespace millrace
