// Ranks run their lists until they wait; whoever ends a wait puts the rank back on the list of the ready
// ones. Without shared resources the order in which ranks run does not matter. Where it does (ports,
// exchanges), messages are taken from a queue ordered by time: no later message can be posted before its
// head, because every rank that still waits will be woken by a message of the queue.
#include "runtime/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/schedule/message.h"

namespace millrace {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();
constexpr int kNobody = -1;

double at_or(const std::vector<double>& values, std::size_t index, double fallback) {
  return index < values.size() ? values[index] : fallback;
}

double cost(const std::vector<double>& costs, std::size_t index) {
  return at_or(costs, index, 0);
}

std::size_t index(StageId stage) {
  return static_cast<std::size_t>(stage.value);
}

/// When the wire from one rank to each of its peers is free again. Few peers: sorted, searched by halving.
class Wires {
 public:
  struct Wire {
    int peer = 0;
    double free = 0;
    std::optional<PairWire> pair{};  // asked for with the first message that needs it
  };
  Wire& to(int peer) {
    const auto at = std::lower_bound(wires_.begin(), wires_.end(), peer,
                                     [](const Wire& wire, int p) { return wire.peer < p; });
    if (at != wires_.end() && at->peer == peer) return *at;
    return *wires_.insert(at, Wire{.peer = peer});
  }

 private:
  std::vector<Wire> wires_;
};

/// One direction of a host's connection to the others: it carries one message at a time.
class Port {
 public:
  double free() const { return passed_.empty() ? 0 : passed_.back().end; }
  void pass(double start, double end) { passed_.push_back({start, end}); }
  /// Returns when `seconds` of an all-reduce have passed between the messages, which it lets go first. It
  /// begins at `from`. Returns `from` if no message is in its way.
  double end_beside_messages(double from, double seconds) const {
    auto message = std::ranges::upper_bound(passed_, from, {}, &Interval::end);
    if (message == passed_.end() || message->start >= from + seconds) return from;
    double end = from + seconds;
    for (; message != passed_.end() && message->start < end; ++message)
      end += message->end - std::max(message->start, from);
    return end;
  }

 private:
  struct Interval {
    double start = 0, end = 0;
  };
  std::vector<Interval> passed_;  // messages, one after the other
};

class Simulator {
 public:
  Simulator(const Schedule& schedule, const PipelineShape& shape, const ScheduleCosts& costs,
            const SimulationOptions& options, bool may_meet)
      : schedule_(schedule),
        shape_(shape),
        costs_(costs),
        options_(options),
        messages_(shape),
        arrival_(messages_.size(), kNotYet),
        ranks_(schedule.ranks.size()),
        barriers_(static_cast<std::size_t>(shape.num_stages())),
        meetings_(barriers_.size()),
        may_meet_(may_meet),
        reductions_(barriers_.size()),
        first_reduction_(std::max(ranks_.size(), messages_.size())) {
    result_.ranks.resize(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      result_.ranks[r].reserve(schedule.ranks[r].size());
      ranks_[r].time = at_or(options.start, r, 0);
    }
    if (options.transport == Transport::Buffered) {
      waiting_.assign(messages_.size(), kNobody);
    } else {
      ends_.resize(messages_.size());
    }
    int hosts = 0;
    for (int host : options.host) hosts = std::max(hosts, host + 1);
    port_out_.resize(hosts);
    port_in_.resize(hosts);
    find_stage_ends();
  }

  Simulation run() {
    for (std::size_t r = ranks_.size(); r-- > 0;) ready_.push_back(r);
    while (!ready_.empty() || !queue_.empty()) {
      if (ready_.empty()) {
        take_from_queue();
      } else {
        const std::size_t r = ready_.back();
        ready_.pop_back();
        advance(r);
      }
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      MILLRACE_CHECK(
          ranks_[r].at == schedule_.ranks[r].size(),
          "deadlock: rank " << r << " is stuck at " << to_string(schedule_.ranks[r][ranks_[r].at]));
      result_.makespan = std::max(result_.makespan, ranks_[r].time);
    }
    for (const Rank& rank : ranks_) {
      const double span = rank.last_end - rank.first_start;
      result_.busy.push_back(rank.busy);
      result_.bubble_fraction.push_back(result_.makespan > 0 ? 1 - rank.busy / result_.makespan : 0);
      result_.span.push_back(std::max(0.0, span));
      result_.span_bubble_fraction.push_back(span > 0 ? 1 - rank.computing / span : 0);
    }
    count_link_bytes();
    result_.arrival = std::move(arrival_);
    return std::move(result_);
  }

 private:
  /// An all-reduce of a stage that the rank has joined.
  struct Beside {
    std::size_t stage = 0;
    double end = kNotYet;
    bool is_awaited = false;
  };
  struct Rank {
    std::size_t at = 0;
    double time = 0;
    double busy = 0;
    double computing = 0;  // of it, forwards and backwards
    double first_start = kNotYet;
    double last_end = -kNotYet;
    double last_backward = 0;         // start of the newest backward: where an overlapped reduce may begin
    std::size_t posted_to = 0;        // rendezvous: end of the exchange that is under way
    std::size_t unfinished = 0;       // transfers of it
    std::vector<std::size_t> stages;  // that it holds; looked up when the first norm is asked for
    int may_update = 0;               // of them, since all ranks have agreed
    std::vector<char> ends_stage;     // by action: all-reduces go on beside what follows it (find_stage_ends)
    std::vector<Beside> beside;       // all-reduces that do
    double reduced = 0;               // when they leave the rank's wires free
    Wires wires;
  };
  struct Barrier {
    double time = 0;         // last arrival
    double first_ready = 0;  // first bucket is there on every replica
    int count = 0;           // barriers passed
    std::vector<std::size_t> waiting;
  };
  /// An all-reduce that all replicas have joined and that takes ports.
  struct Reduction {
    double from = 0;  // when it could begin
    const std::vector<ReducePorts::Port>* ports = nullptr;
    std::vector<std::size_t> members;
  };
  struct Ends {  // of a message under rendezvous
    int sender = kNobody, receiver = kNobody;
    double time = 0;  // when both had posted
  };
  // Time; sending rank (ports) or message (rendezvous), or first_reduction_ + stage: its all-reduce may end.
  using Event = std::tuple<double, std::size_t>;

  void finish(std::size_t r, double start, double end) {
    result_.ranks[r].push_back({schedule_.ranks[r][ranks_[r].at], start, end});
    ranks_[r].time = end;
    ++ranks_[r].at;
  }

  /// A factor of mean 1 that depends on the seed and on what is done, not on when.
  double noise(std::uint64_t what, std::uint64_t which) const {
    if (options_.jitter == 0) return 1;
    RandomStream random(derive_seed(options_.seed, "simulate", what, which));
    return std::exp(options_.jitter * (random.normal() - options_.jitter / 2));
  }

  /// Returns the own seconds of the action at this place of the list; negative if they are not known.
  double own_seconds(std::size_t r, std::size_t place) const {
    return r < options_.own_seconds.size() ? at_or(options_.own_seconds[r], place, -1) : -1;
  }

  const ScheduleCosts& costs_of(MicrobatchId microbatch) const {
    const auto& all = options_.microbatch_costs;
    const std::int64_t run = std::max(1, options_.microbatches_of_each);
    return all.empty() ? costs_ : all[static_cast<std::size_t>(microbatch.value / run) % all.size()];
  }

  double duration(std::size_t r, const Action& a) const {
    if (const double own = own_seconds(r, ranks_[r].at); own >= 0) return own;
    const std::size_t s = index(a.stage);
    const ScheduleCosts& costs = costs_of(a.microbatch);
    double seconds = 0;
    switch (a.op) {
      case Op::Forward:
        seconds = cost(costs.forward, s);
        break;
      case Op::Backward:
        seconds = cost(costs.backward_input, s) + cost(costs.backward_weight, s);
        break;
      case Op::BackwardInput:
        seconds = cost(costs.backward_input, s);
        break;
      case Op::BackwardWeight:
        seconds = cost(costs.backward_weight, s);
        break;
      default:
        seconds = cost(costs.update, s);
    }
    return seconds * at_or(options_.slowdown, r, 1) *
           noise(s * 16 + static_cast<std::uint64_t>(a.op), static_cast<std::uint64_t>(a.microbatch.value));
  }

  std::size_t message_of(const Action& a) const {
    const std::int64_t message = messages_.of(a);
    MILLRACE_CHECK(message >= 0, to_string(a) << " belongs to no link of the shape");
    return static_cast<std::size_t>(message);
  }

  /// Runs rank `r` until it waits.
  void advance(std::size_t r) {
    Rank& rank = ranks_[r];
    while (rank.at < schedule_.ranks[r].size()) {
      const Action& a = schedule_.ranks[r][rank.at];
      if (is_transfer(a.op)) {
        if (options_.transport == Transport::Rendezvous) {
          if (!post_exchange(r)) return;
        } else if (!is_send(a.op)) {
          if (!receive(r, a)) return;
        } else if (takes_ports(r, a)) {
          queue_.push({rank.time, r});
          return;
        } else {
          send(r, a);
        }
      } else if (a.op == Op::Reduce) {
        if (!reduce(r, a)) return;
      } else if (meets(a)) {
        if (!meet(r, a)) return;
      } else if (a.op == Op::Update && !costs_.norm.empty() && !agree(r, costs_of(a.microbatch))) {
        return;
      } else {
        compute(r, a);
      }
    }
  }

  /// Its layers exchange with those of the other replicas.
  bool meets(const Action& a) const {
    const std::vector<char>& stages = costs_of(a.microbatch).meets;
    return may_meet_ && index(a.stage) < stages.size() && stages[index(a.stage)] &&
           (a.op == Op::Forward || a.op == Op::Backward || a.op == Op::BackwardInput) &&
           shape_.replicas(a.stage) > 1;
  }

  /// All begin when the last replica has come, as the first exchange lets none go on before. True if the rank
  /// went past it.
  bool meet(std::size_t r, const Action& a) {
    Barrier& meeting = meetings_[index(a.stage)];
    meeting.time = std::max(meeting.time, ranks_[r].time);
    meeting.waiting.push_back(r);
    if (meeting.waiting.size() < static_cast<std::size_t>(shape_.replicas(a.stage))) return false;
    const Barrier met = std::exchange(meeting, {});
    double seconds = 0;
    for (const std::size_t member : met.waiting)
      seconds = std::max(seconds, duration(member, schedule_.ranks[member][ranks_[member].at]));
    for (const std::size_t member : met.waiting) {
      ranks_[member].time = met.time;
      compute(member, schedule_.ranks[member][ranks_[member].at], seconds);
      if (member != r) ready_.push_back(member);
    }
    return true;
  }

  void compute(std::size_t r, const Action& a) { compute(r, a, duration(r, a)); }
  void compute(std::size_t r, const Action& a, double seconds) {
    Rank& rank = ranks_[r];
    rank.busy += seconds;
    if (is_compute(a.op)) {
      rank.computing += seconds;
      rank.first_start = std::min(rank.first_start, rank.time);
      rank.last_end = rank.time + seconds;
      if (a.op != Op::Forward) rank.last_backward = rank.time;
    }
    const bool ends_stage = !rank.ends_stage.empty() && rank.ends_stage[rank.at];
    finish(r, rank.time, rank.time + seconds);
    if (ends_stage) join_reduce(r, a);
  }

  // ---- messages
  // ---------------------------------------------------------------------------------------------

  bool takes_ports(std::size_t from, const Action& send) const {
    const auto to = static_cast<std::size_t>(send.peer.value);
    return from < options_.host.size() && to < options_.host.size() &&
           options_.host[from] != options_.host[to];
  }

  /// When the message that `from` sends at `place` of its list has left, if it may start at `time`, and when
  /// it arrives.
  std::pair<double, double> carry(std::size_t from, std::size_t place, std::size_t message, double time) {
    const Action& send = schedule_.ranks[from][place];
    const auto to = static_cast<std::size_t>(send.peer.value);
    if (from == to) return {time, time};
    const std::size_t link = messages_.link_of(message);
    const double bandwidth = cost(options_.bandwidth, link);
    const ScheduleCosts& costs = costs_of(send.microbatch);
    Wires::Wire& wire = ranks_[from].wires.to(send.peer.value);
    double seconds = cost(costs.transfers(send.op), link), latency = cost(options_.latency, link);
    if (const std::vector<double>& bytes = costs.bytes_of_transfers(send.op);
        options_.wire && link < bytes.size()) {
      if (!wire.pair) wire.pair = options_.wire(static_cast<int>(from), send.peer.value);
      seconds = bytes[link] * wire.pair->s_per_byte;
      latency += wire.pair->latency_s;
    }
    if (bandwidth > 0) seconds += cost(options_.bytes, link) / bandwidth;
    seconds *= noise(15, message);
    if (const double own = own_seconds(from, place); own >= 0) {
      seconds = own;
      latency = cost(options_.latency, link);
    }
    double start = std::max(wire.free, time);
    if (takes_ports(from, send)) {
      Port& out = port_out_[options_.host[from]];
      Port& in = port_in_[options_.host[to]];
      start = std::max({start, out.free(), in.free()});
      for (Port* port : {&out, &in}) port->pass(start, start + seconds);
    }
    wire.free = start + seconds;
    return {wire.free, wire.free + latency};
  }

  void send(std::size_t r, const Action& a) {
    const std::size_t message = message_of(a);
    const double now = ranks_[r].time;
    const auto [left, arrival] = carry(r, ranks_[r].at, message, now);
    arrival_[message] = arrival;
    finish(r, now, options_.sends == SendMode::Block ? left : now);
    if (waiting_[message] == kNobody) return;
    ready_.push_back(static_cast<std::size_t>(waiting_[message]));
    waiting_[message] = kNobody;
  }

  bool receive(std::size_t r, const Action& a) {
    const std::size_t message = message_of(a);
    if (arrival_[message] == kNotYet) {
      waiting_[message] = static_cast<int>(r);
      return false;
    }
    finish(r, ranks_[r].time, std::max(ranks_[r].time, arrival_[message]));
    return true;
  }

  /// Rendezvous: posts the exchange at the rank's place. True if nothing of it waits.
  bool post_exchange(std::size_t r) {
    Rank& rank = ranks_[r];
    const auto& actions = schedule_.ranks[r];
    const std::size_t end = exchange_end(actions, rank.at);
    for (rank.posted_to = rank.at; rank.posted_to < end; ++rank.posted_to) {
      const Action& a = actions[rank.posted_to];
      result_.ranks[r].push_back({a, rank.time, rank.time});
      if (a.peer.value == static_cast<int>(r)) continue;
      Ends& ends = ends_[message_of(a)];
      (is_send(a.op) ? ends.sender : ends.receiver) = static_cast<int>(r);
      ends.time = std::max(ends.time, rank.time);
      ++rank.unfinished;
      if (ends.sender != kNobody && ends.receiver != kNobody) queue_.push({ends.time, message_of(a)});
    }
    if (rank.unfinished > 0) return false;
    rank.at = rank.posted_to;
    return true;
  }

  void take_from_queue() {
    const auto [time, which] = queue_.top();
    queue_.pop();
    if (which >= first_reduction_) return end_reduction(time, which - first_reduction_);
    if (options_.transport == Transport::Buffered) {
      send(which, schedule_.ranks[which][ranks_[which].at]);
      ready_.push_back(which);
      return;
    }
    const Ends& ends = ends_[which];
    const auto sender = static_cast<std::size_t>(ends.sender),
               receiver = static_cast<std::size_t>(ends.receiver);
    const double arrival = carry(sender, posted(sender, which), which, time).second;
    arrival_[which] = arrival;
    for (std::size_t r : {sender, receiver}) {
      Rank& rank = ranks_[r];
      result_.ranks[r][posted(r, which)].end = arrival;
      if (--rank.unfinished > 0) continue;
      for (; rank.at < rank.posted_to; ++rank.at)
        rank.time = std::max(rank.time, result_.ranks[r][rank.at].end);
      ready_.push_back(r);
    }
  }

  /// The place of the exchange under way on `r` that moves `message`.
  std::size_t posted(std::size_t r, std::size_t message) const {
    std::size_t place = ranks_[r].at;
    while (messages_.of(schedule_.ranks[r][place]) != static_cast<std::int64_t>(message)) ++place;
    return place;
  }

  // ---- reduces
  // ----------------------------------------------------------------------------------------------

  /// A reduce starts when all replicas have arrived (its buckets, when they are there). True if the rank went
  /// past it. A stage has one open barrier: nobody passes the k-th before all have reached it.
  bool reduce(std::size_t r, const Action& a) {
    Rank& rank = ranks_[r];
    if (!rank.ends_stage.empty()) return await_reduce(r, a);
    Barrier& barrier = barriers_[index(a.stage)];
    const int buckets = std::max(1, options_.reduce_buckets);
    barrier.time = std::max(barrier.time, rank.time);
    barrier.first_ready =
        std::max(barrier.first_ready, rank.last_backward + (rank.time - rank.last_backward) / buckets);
    barrier.waiting.push_back(r);
    if (barrier.waiting.size() < static_cast<std::size_t>(shape_.replicas(a.stage))) return false;
    double seconds = cost(costs_of(a.microbatch).reduce, index(a.stage)) *
                     noise(index(a.stage) * 16 + static_cast<std::uint64_t>(Op::Reduce),
                           static_cast<std::uint64_t>(barrier.count));
    if (const double own = own_seconds(r, rank.at); own >= 0) seconds = own;
    const double end = buckets == 1
                           ? barrier.time + seconds
                           : std::max(barrier.time + seconds / buckets, barrier.first_ready + seconds);
    const Barrier met = std::exchange(barrier, {.count = barrier.count + 1});
    if (own_seconds(r, rank.at) < 0 && takes_ports(a, met, end)) return false;
    for (std::size_t member : met.waiting) {
      finish(member, ranks_[member].time, end);
      if (member != r) ready_.push_back(member);
    }
    return true;
  }

  /// True if the all-reduce that `met` starts, and that ends at `end` by itself, shares ports with messages.
  bool takes_ports(const Action& reduce, const Barrier& met, double end) {
    const std::vector<ReducePorts>& all = costs_of(reduce.microbatch).reduce_ports;
    const std::size_t stage = index(reduce.stage);
    if (options_.host.empty() || stage >= all.size() || all[stage].ports.empty()) return false;
    reductions_[stage] = {met.time - all[stage].lead_s, &all[stage].ports, met.waiting};
    queue_.push({end, first_reduction_ + stage});
    return true;
  }

  /// All messages that were posted before `time` are known. The all-reduce ends now, or later if they delay
  /// it.
  void end_reduction(double time, std::size_t stage) {
    const Reduction& reduction = reductions_[stage];
    double end = time;
    for (const auto& [host, seconds] : *reduction.ports) {
      for (const Port* port : {&port_out_[host], &port_in_[host]})
        end = std::max(end, port->end_beside_messages(reduction.from, seconds));
    }
    if (end > time) return queue_.push({end, first_reduction_ + stage});
    for (const std::size_t member : reduction.members) {
      const bool goes_on_beside = !ranks_[member].ends_stage.empty();
      if (!goes_on_beside) finish(member, ranks_[member].time, end);
      if (!goes_on_beside || end_beside(member, stage, end)) ready_.push_back(member);
    }
  }

  /// Finds the actions that end the gradients of a stage, if a rank holds several replicated stages: the
  /// all-reduce of each goes on beside the others. Does nothing if all-reduces wait for their turn in the
  /// list.
  void find_stage_ends() {
    if (!costs_.reduces_beside || costs_.reduce.empty() || options_.reduce_buckets > 1) return;
    std::vector<int> held(ranks_.size(), 0);
    for (const std::vector<RankId>& ranks : shape_.ranks_of_stage)
      for (const RankId rank : ranks) held[static_cast<std::size_t>(rank.value)] += ranks.size() > 1;
    if (std::ranges::none_of(held, [](int stages) { return stages > 1; })) return;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const std::vector<Action>& list = schedule_.ranks[r];
      std::vector<std::size_t> open;  // stages whose Reduce comes later in the list
      std::vector<char> ends(list.size(), 0);
      for (std::size_t at = list.size(); at-- > 0;) {
        const auto found = std::ranges::find(open, index(list[at].stage));
        if (list[at].op == Op::Reduce) {
          if (found != open.end()) return forget_stage_ends();  // job arrays: two of one stage
          open.push_back(index(list[at].stage));
        } else if (is_compute(list[at].op) && list[at].op != Op::Forward && found != open.end()) {
          ends[at] = 1;
          open.erase(found);
        }
      }
      ranks_[r].ends_stage = std::move(ends);
    }
  }
  void forget_stage_ends() {
    for (Rank& rank : ranks_) rank.ends_stage.clear();
  }

  static Beside* beside(Rank& rank, std::size_t stage) {
    const auto found = std::ranges::find(rank.beside, stage, &Beside::stage);
    return found == rank.beside.end() ? nullptr : &*found;
  }

  /// The rank has all gradients of a stage. The last replica starts the all-reduce, after those that the same
  /// ranks have under way.
  void join_reduce(std::size_t r, const Action& a) {
    Barrier& barrier = barriers_[index(a.stage)];
    barrier.time = std::max({barrier.time, ranks_[r].time, ranks_[r].reduced});
    barrier.waiting.push_back(r);
    ranks_[r].beside.push_back({.stage = index(a.stage)});
    if (barrier.waiting.size() < static_cast<std::size_t>(shape_.replicas(a.stage))) return;
    const double end = barrier.time + cost(costs_of(a.microbatch).reduce, index(a.stage)) *
                                          noise(index(a.stage) * 16 + static_cast<std::uint64_t>(Op::Reduce),
                                                static_cast<std::uint64_t>(barrier.count));
    const Barrier met = std::exchange(barrier, {.count = barrier.count + 1});
    for (const std::size_t member : met.waiting)
      ranks_[member].reduced = std::max(ranks_[member].reduced, end);
    if (takes_ports(a, met, end)) return;
    for (const std::size_t member : met.waiting)
      if (end_beside(member, index(a.stage), end) && member != r) ready_.push_back(member);
  }
  /// True if the rank waits for the end.
  bool end_beside(std::size_t member, std::size_t stage, double end) {
    ranks_[member].reduced = std::max(ranks_[member].reduced, end);
    Beside* joined = beside(ranks_[member], stage);
    joined->end = end;
    return joined->is_awaited;
  }

  /// The action Reduce of an all-reduce that went on beside others.
  bool await_reduce(std::size_t r, const Action& a) {
    if (!beside(ranks_[r], index(a.stage))) join_reduce(r, a);
    Beside* joined = beside(ranks_[r], index(a.stage));
    if (joined->end == kNotYet) {
      joined->is_awaited = true;
      return false;
    }
    const double end = std::max(ranks_[r].time, joined->end);
    ranks_[r].beside.erase(ranks_[r].beside.begin() + (joined - ranks_[r].beside.data()));
    finish(r, ranks_[r].time, end);
    return true;
  }

  /// Before the first update of a step: the norms of the rank's stages, then a wait for all other ranks. True
  /// if the rank may update.
  bool agree(std::size_t r, const ScheduleCosts& costs) {
    Rank& rank = ranks_[r];
    if (rank.stages.empty()) {
      for (std::size_t s = 0; s < shape_.ranks_of_stage.size(); ++s)
        if (std::ranges::count(shape_.ranks_of_stage[s], RankId(static_cast<int>(r))))
          rank.stages.push_back(s);
    }
    if (rank.may_update > 0) return --rank.may_update, true;
    double norm = 0;
    for (const std::size_t s : rank.stages) norm += cost(costs.norm, s);
    rank.time += norm;
    rank.busy += norm;
    agreement_.time = std::max(agreement_.time, rank.time);
    agreement_.waiting.push_back(r);
    if (agreement_.waiting.size() < ranks_.size()) return false;
    const Barrier met = std::exchange(agreement_, {});
    for (std::size_t member : met.waiting) {
      ranks_[member].time = met.time + costs.agreement;
      ranks_[member].may_update = static_cast<int>(ranks_[member].stages.size());
      if (member != r) ready_.push_back(member);
    }
    return --rank.may_update, true;
  }

  void count_link_bytes() {
    if (options_.bytes.empty()) return;
    result_.link_bytes.assign(messages_.links().size(), 0);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      for (const Action& a : schedule_.ranks[r]) {
        if (!is_send(a.op) || a.peer.value == static_cast<int>(r)) continue;
        const std::size_t link = messages_.link_of(message_of(a));
        result_.link_bytes[link] += cost(options_.bytes, link);
      }
    }
  }

  const Schedule& schedule_;
  const PipelineShape& shape_;
  const ScheduleCosts& costs_;
  const SimulationOptions& options_;
  MessageIndex messages_;
  std::vector<double> arrival_;  // by message
  std::vector<Rank> ranks_;
  std::vector<Barrier> barriers_;      // by stage
  std::vector<Barrier> meetings_;      // by stage: of computations whose replicas meet
  bool may_meet_;                      // false: the lists do not let them
  std::vector<Reduction> reductions_;  // by stage: the newest
  std::size_t first_reduction_;        // among the events
  Barrier agreement_;
  std::vector<int> waiting_;              // by message: the rank that waits for it
  std::vector<Ends> ends_;                // by message
  std::vector<Port> port_out_, port_in_;  // by host
  std::vector<std::size_t> ready_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  Simulation result_;
};

}  // namespace

Problems check_meetings(const Schedule& schedule, const PipelineShape& shape, Transport transport,
                        const ScheduleCosts& costs) {
  std::vector<StageId> stages;
  for (std::size_t s = 0; s < costs.meets.size(); ++s)
    if (costs.meets[s]) stages.emplace_back(static_cast<int>(s));
  if (stages.empty()) return {};
  if (is_asynchronous(schedule.kind))
    return {Problem{to_string(schedule.kind), "its replicas take turns, so that no two run at the same time",
                    "use a schedule that flushes"}};
  return check_replicas_meet(schedule, shape, transport, stages);
}

Simulation simulate(const Schedule& schedule, const PipelineShape& shape, const ScheduleCosts& costs,
                    const SimulationOptions& options) {
  const bool may_meet = check_meetings(schedule, shape, options.transport, costs).empty();
  Simulation simulation = Simulator(schedule, shape, costs, options, may_meet).run();
  if (options.peaks) {
    Peaks peaks = peaks_of(schedule, shape);
    simulation.peak_stash = std::move(peaks.stash);
    simulation.peak_versions = std::move(peaks.versions);
  }
  if (!options.stage_bytes.empty())
    simulation.peak_bytes = peak_bytes_of(schedule, shape, options.stage_bytes);
  return simulation;
}

Simulation simulate(const Schedule& schedule, const PipelineShape& shape, const ScheduleCosts& costs) {
  return simulate(schedule, shape, costs, SimulationOptions{});
}

}  // namespace millrace
