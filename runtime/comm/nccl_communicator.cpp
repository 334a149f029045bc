// NCCL's rules, and what follows from them here:
// - No tags, and the operations of a communicator run in the order they were given. So each *direction* of
// each
//   pair of ranks has a communicator and a stream of its own: a receive that was posted early waits on its
//   own stream and holds up neither sends nor other peers, and no cycle of waits can arise among streams as
//   long as both ends post the messages of a direction in one order. Schedules promise it (check_pair_order).
// - A kernel that waits for a peer occupies the device while it waits: one exchange is one group, so that the
//   messages of an action start together, and communicators are made with few blocks (nccl_library.cpp).
// - Sums must go in the order of ranks: ncclAllReduce chooses its own order, so a sum is sends, receives and
//   additions on the group's stream.
// - A communicator takes memory and time, so only ranks that talk have one: connect() says who does.
// - NCCL connects two ranks at their first message, and the call that posts it is not done before the other
//   rank posts its own. A receive that is posted early would wait for a send that waits for this rank: every
//   line is connected by an exchange of a few bytes when it is made.
// - Calls may hang when a peer is gone. Communicators are non-blocking; the host polls events and the
//   communicators' state, and gives up at the deadline.
// - A call of CUDA may wait for all work of the device, a posted receive among it: the first use of a kernel
//   does. Messages that are posted around such calls go through the host (through_host). If a call waits all
//   the same, a thread of the fabric ends the messages at the deadline.
#include "runtime/comm/nccl_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "runtime/base/all_reduce_route.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/comm/channel.h"
#include "runtime/comm/ordered_sum.h"

namespace millrace {
namespace {

using State = NcclApi::State;

// Polling: spin this long (a message on NVLink takes tens of microseconds), then sleep in between.
constexpr std::chrono::microseconds kPollSpin{200}, kNap{50};
// A peer's abort() is read from the store, which may be a file or a server: seldom.
constexpr std::chrono::milliseconds kAskForAborts{500};
constexpr const char* kHeldUpHint =
    "the first use of a kernel waits for all messages that its GPU was given: "
    "CUDA_MODULE_LOADING=EAGER loads kernels at the start";

/// One NCCL communicator and the stream that it works on.
struct Line {
  NcclApi::Comm comm = nullptr;
  NcclApi::Stream stream = nullptr;
};

/// The state that all communicators of a rank share: the lines, and the abort.
class Fabric {
 public:
  Fabric(const CommunicatorOptions& options, std::shared_ptr<Store> store)
      : options_(options),
        api_(*options.nccl),
        store_(std::move(store)),
        watch_([this](std::stop_token stop) { watch(stop); }) {}

  ~Fabric() {
    watch_.request_stop();
    watch_.join();
    const std::lock_guard lock(mutex_);
    for (const Line& line : lines_) {
      if (aborted_.empty()) api_.destroy(line.comm);
      api_.free_stream(line.stream);
    }
  }
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  int rank() const { return options_.rank.value; }
  NcclApi& api() { return api_; }
  Clock& clock() const { return options_.clock; }
  const CommunicatorOptions& options() const { return options_; }
  const Line& line(Direction direction, int peer) const {
    const auto& lines = direction == Direction::Send ? out_ : in_;
    const auto found = lines.find(peer);
    MILLRACE_CHECK(found != lines.end(),
                   "nobody connected rank "
                       << rank() << (direction == Direction::Send ? " to rank " : " from rank ") << peer);
    return found->second;
  }

  void through_host(std::int64_t messages) {
    while (!open_.empty()) open_.begin()->first->wait();
    through_host_ = messages;
    left_.clear();
  }
  /// Takes the next message or sum on the line. Returns whether it goes through the host.
  bool takes_host(const Line& line) {
    std::int64_t& left = left_.try_emplace(line.comm, through_host_).first->second;
    return left > 0 && left-- > 0;
  }

  /// Notes a receive that was posted and not waited for; close() forgets it.
  void open(Pending& exchange, const Transfer& receive) {
    const std::lock_guard lock(mutex_);
    open_.emplace(&exchange, receive.what.text() + " from rank " + std::to_string(receive.peer.value));
  }
  void close(Pending& exchange) {
    const std::lock_guard lock(mutex_);
    open_.erase(&exchange);
  }

  /// Joins two ranks, this one among them, in one direction; once.
  void join_pair(int from, int to) {
    const int peer = from == rank() ? to : from;
    auto& lines = from == rank() ? out_ : in_;
    if (lines.contains(peer)) return;
    lines[peer] = join(std::to_string(from) + "-" + std::to_string(to), {from, to}, Ways::FirstToSecond);
  }

  enum class Ways { FirstToSecond, All };

  /// A connected line between `members` (ranks of the job, ascending or sender first), this rank among them.
  /// Collective.
  Line join(const std::string& name, const std::vector<int>& members, Ways ways) {
    const auto start = options_.clock.now();
    const int index = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
    const std::string key = "nccl/" + name;
    if (index == 0) store_->set(key, api_.unique_id());
    const std::string id = store_->get(key, options_.rendezvous_deadline);
    Line line{.stream = api_.new_stream()};
    const NcclApi::Answer begun = api_.init(line.comm, id, static_cast<int>(members.size()), index);
    throw_if_failed(begun, "joining " + name);
    {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    }
    settle({line}, start, options_.rendezvous_deadline,
           "joining ranks " + name + " (" + std::to_string(members.size()) + " ranks)");
    connect(line, name, index, static_cast<int>(members.size()), ways);
    return line;
  }

  /// Operations of one group on `lines`; `post` gives them to NCCL. Returns when NCCL has taken them.
  template <class Post>
  void group(const std::vector<Line>& lines, const std::string& what, Post&& post) {
    const auto start = options_.clock.now();
    {
      const std::lock_guard lock(mutex_);
      throw_if_aborted(what);
      throw_if_failed(api_.group_start(), what);
      std::optional<NcclApi::Answer> failed;
      post([&](const NcclApi::Answer& answer) {
        if (answer.state == State::Failed && !failed) failed = answer;
      });
      const NcclApi::Answer ended = api_.group_end();  // also after a failure: groups nest
      throw_if_failed(failed.value_or(ended), what);
    }
    settle(lines, start, options_.deadline, what);
  }

  /// Polls until the event is reached. `message(what)` makes the text of an error.
  template <class Message>
  void await(const NcclApi::Event& event, const Line& line, TimePoint start, Message&& message) {
    TimePoint asked = start;
    for (;;) {
      if (api_.reached(event)) {
        // An aborted communicator's kernels end too, without their data.
        const std::lock_guard lock(mutex_);
        if (!aborted_.empty()) throw PeerError(message("aborted: " + aborted_));
        return;
      }
      const auto now = options_.clock.now();
      {
        const std::lock_guard lock(mutex_);
        active_ = now;
        if (!aborted_.empty()) throw PeerError(message("aborted: " + aborted_));
        const NcclApi::Answer answer = api_.state(line.comm);
        if (answer.state == State::Failed)
          throw PeerError(message("NCCL: " + answer.text), "NCCL_DEBUG=WARN in the environment says more");
      }
      if (now - start >= options_.deadline)
        throw PeerError(message("no message"), std::string(kLateHint) + "; " + kHeldUpHint);
      if (now - asked >= kAskForAborts) {
        asked = now;
        ask_for_aborts();
      }
      pause(now - start);
    }
  }

  /// The rank's thread is here, and not in a call of CUDA.
  void is_active() {
    const std::lock_guard lock(mutex_);
    active_ = clock().now();
  }

  void abort(const std::string& reason) noexcept {
    const std::string text = reason.empty() ? "a rank failed" : reason;
    if (!abort_own(text)) return;
    try {
      store_->set(kAborted, "rank " + std::to_string(rank()) + ": " + text);
    } catch (const std::exception&) {
      // The store's server ended first; the launcher and the deadlines remain.
    }
  }

 private:
  void connect(const Line& line, const std::string& name, int index, int size, Ways ways) {
    const auto start = options_.clock.now();
    const std::string what = "connecting ranks " + name;
    std::vector<at::Tensor> tensors;  // until the messages are through
    if (ways == Ways::All) load_kernels_of_sums(line, tensors.emplace_back(api_.scratch()));
    group({line}, what, [&](auto&& taken) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer == index) continue;
        if (ways == Ways::All || index == 0)
          taken(api_.send(tensors.emplace_back(api_.scratch()), peer, 0, line.comm, line.stream));
        if (ways == Ways::All || index == 1)
          taken(api_.receive(tensors.emplace_back(api_.scratch()), peer, 0, line.comm, line.stream));
      }
    });
    await(api_.mark(line.stream), line, start, [&](const std::string& problem) {
      return "rank " + std::to_string(rank()) + ": " + what + ": " + problem;
    });
  }

  /// Uses the kernels of sums once, before any message of training is posted.
  void load_kernels_of_sums(const Line& line, const at::Tensor& some) {
    api_.follow(line.stream, api_.mark(nullptr));
    api_.run(line.stream, [some] {
      const at::NoGradGuard no_grad;
      for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
        const at::Tensor one = some.to(type), part = one.narrow(0, 1, 2);  // kernels differ by alignment
        for (const at::Tensor& each : {one, part})
          for (const std::size_t parts : {2, 3}) sum_in_order(std::vector<at::Tensor>(parts, each), each);
      }
    });
  }

  static constexpr const char* kAborted = "nccl/aborted";

  /// Looks on while the rank's thread is elsewhere. A call of CUDA that waits for a posted receive is ended
  /// at the deadline, or when another rank gives up: without its messages the call comes back. This thread
  /// calls CUDA in abort() only, because that call may hold CUDA's lock.
  void watch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      wake_.wait_for(lock, stop, kAskForAborts, [] { return false; });
      const auto away = clock().now() - active_;
      if (stop.stop_requested() || !aborted_.empty() || away < kAskForAborts) continue;
      const std::string waits = open_.empty() ? "" : open_.begin()->second;
      lock.unlock();
      if (away >= options_.deadline && !waits.empty())
        abort("the rank has done nothing for " +
              std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(away).count()) +
              " ms while it was to have " + waits + ". Its GPU may be held up: " + kHeldUpHint);
      else
        ask_for_aborts();
      lock.lock();
    }
  }

  void pause(TimePoint::duration waited) {
    if (waited < kPollSpin)
      std::this_thread::yield();
    else
      clock().sleep_until(clock().now() + kNap);
  }

  /// Every line's comm has taken what was given to it.
  void settle(const std::vector<Line>& lines, TimePoint start, std::chrono::milliseconds deadline,
              const std::string& what) {
    for (const Line& line : lines) {
      for (;;) {
        {
          const std::lock_guard lock(mutex_);
          throw_if_aborted(what);
          const NcclApi::Answer answer = api_.state(line.comm);
          throw_if_failed(answer, what);
          if (answer.state == State::Done) break;
        }
        const auto waited = options_.clock.now() - start;
        if (waited >= deadline) {
          throw PeerError(
              "rank " + std::to_string(rank()) + ": " + what + ": NCCL is not done after " +
                  std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(waited).count()) +
                  " ms",
              "did all ranks start? NCCL_DEBUG=INFO in the environment shows how far it came");
        }
        pause(waited);
      }
    }
  }

  void throw_if_aborted(const std::string& what) const {
    if (!aborted_.empty())
      throw PeerError("rank " + std::to_string(rank()) + ": " + what + ": aborted: " + aborted_);
  }

  void throw_if_failed(const NcclApi::Answer& answer, const std::string& what) const {
    if (answer.state == State::Failed)
      throw PeerError("rank " + std::to_string(rank()) + ": " + what + ": NCCL: " + answer.text,
                      "NCCL_DEBUG=WARN in the environment says more");
  }

  void ask_for_aborts() {
    std::string reason;
    try {
      reason = store_->get(kAborted, std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      return;  // nobody aborted, or the store is gone: the deadline decides
    }
    abort_own(reason);
  }

  bool abort_own(const std::string& reason) noexcept {
    const std::lock_guard lock(mutex_);
    if (!aborted_.empty()) return false;
    aborted_ = reason;
    // All at once: each call may wait for the device, which the messages of the others hold up.
    std::vector<std::jthread> aborts;
    for (const Line& line : lines_) aborts.emplace_back([this, comm = line.comm] { api_.abort(comm); });
    return true;
  }

  CommunicatorOptions options_;
  NcclApi& api_;  // options_ keeps it
  std::shared_ptr<Store> store_;
  std::map<int, Line> out_, in_;                // by peer
  std::int64_t through_host_ = 0;               // see there
  std::map<NcclApi::Comm, std::int64_t> left_;  // of them, by line that was used since
  std::mutex mutex_;  // guards what follows, and every use of a comm against abort()
  std::vector<Line> lines_;
  std::string aborted_;  // the first reason; the comms are freed then
  std::map<Pending*, std::string>
      open_;  // receives that were posted and not waited for; the rank's thread writes
  TimePoint active_ = clock().now();  // the rank's thread was here
  std::condition_variable_any wake_;
  std::jthread watch_;  // last
};

/// The end of a group of messages: an event on each line that it used. Keeps the tensors.
class NcclExchange final : public Pending {
 public:
  struct Part {
    Transfer transfer;
    Line line;
    NcclApi::Event done;
  };
  /// `near`: what `on_host` moves. A sender's tensor is kept as long as NCCL would keep it, so that steps
  /// take the same memory either way.
  NcclExchange(std::shared_ptr<Fabric> fabric, std::vector<Part> parts, std::vector<Transfer> near,
               std::unique_ptr<Pending> on_host)
      : fabric_(std::move(fabric)),
        parts_(std::move(parts)),
        near_(std::move(near)),
        on_host_(std::move(on_host)) {
    for (const Part& part : parts_)
      if (part.transfer.direction == Direction::Receive) fabric_->open(*this, part.transfer);
  }
  NcclExchange(const NcclExchange&) = delete;
  NcclExchange& operator=(const NcclExchange&) = delete;
  ~NcclExchange() override { fabric_->close(*this); }

  void wait() override {
    const auto start = fabric_->clock().now();
    for (const Part& part : parts_) {
      fabric_->await(part.done, part.line, start, [&](const std::string& what) {
        return wait_message(fabric_->rank(), part.transfer, fabric_->clock(), start, what);
      });
    }
    parts_.clear();
    fabric_->close(*this);
    if (on_host_) on_host_->wait();
    on_host_.reset();
    near_.clear();
  }

 private:
  std::shared_ptr<Fabric> fabric_;
  std::vector<Part> parts_;
  std::vector<Transfer> near_;
  std::unique_ptr<Pending> on_host_;
};

/// The end of a sum. Keeps the tensors that the stream still reads and writes.
class NcclSum final : public Pending {
 public:
  NcclSum(std::shared_ptr<Fabric> fabric, Line line, NcclApi::Event done, std::vector<at::Tensor> tensors,
          std::string what)
      : fabric_(std::move(fabric)),
        line_(line),
        done_(std::move(done)),
        tensors_(std::move(tensors)),
        what_(std::move(what)) {}

  void wait() override {
    if (!done_) return;
    const auto start = fabric_->clock().now();
    fabric_->await(done_, line_, start, [&](const std::string& what) {
      const double seconds = std::chrono::duration<double>(fabric_->clock().now() - start).count();
      return "rank " + std::to_string(fabric_->rank()) + ": " + what_ + " with the other replicas: " + what +
             " after " + std::to_string(seconds) + " s";
    });
    done_.reset();
    tensors_.clear();
  }

 private:
  std::shared_ptr<Fabric> fabric_;
  Line line_;
  NcclApi::Event done_;
  std::vector<at::Tensor> tensors_;
  std::string what_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<Fabric> fabric, std::unique_ptr<Communicator> host,
                   std::vector<int> members, const std::string& name)
      : fabric_(std::move(fabric)), host_(std::move(host)), members_(std::move(members)), name_(name) {}

  RankId rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  bool buffers_sends() const override { return false; }
  bool is_ordered() const override { return true; }

  /// All ranks go through the pairs in one order, because joining two ranks waits for both.
  void connect(const Traffic& traffic) override {
    for (const auto& [first, second] : traffic.messages) {
      const int from = members_.at(first.value), to = members_.at(second.value);
      if (from == fabric_->rank() || to == fabric_->rank()) fabric_->join_pair(from, to);
    }
    if (traffic.sums && size() > 1 && !sums_.comm)
      sums_ = fabric_->join("group " + name_, members_, Fabric::Ways::All);
  }

  std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers) override {
    fabric_->is_active();
    std::vector<Transfer> near;
    std::vector<NcclExchange::Part> far;
    for (const Transfer& transfer : transfers) {
      if (!api().owns(transfer.tensor)) {
        near.push_back(transfer);
      } else if (transfer.tensor.numel() > 0) {
        MILLRACE_CHECK(transfer.tensor.is_contiguous());
        Transfer global = transfer;
        global.peer = RankId(members_.at(transfer.peer.value));
        const Line line = fabric_->line(global.direction, global.peer.value);
        if (fabric_->takes_host(line))
          near.push_back(transfer);
        else
          far.push_back({.transfer = std::move(global), .line = line});
      }
    }
    auto on_host = near.empty() ? nullptr : host_->exchange(near);
    if (!far.empty()) post(far);
    return std::make_unique<NcclExchange>(fabric_, std::move(far), std::move(near), std::move(on_host));
  }

  std::unique_ptr<Pending> all_reduce(at::Tensor tensor, std::string what) override {
    if (!api().owns(tensor)) return host_->all_reduce(std::move(tensor), std::move(what));
    MILLRACE_CHECK(tensor.is_contiguous());
    if (size() == 1 || tensor.numel() == 0) return std::make_unique<NothingPending>();
    MILLRACE_CHECK(sums_.comm != nullptr, "nobody connected the ranks of " << name_ << " for: " << what);
    fabric_->is_active();
    if (fabric_->takes_host(sums_)) return host_->all_reduce(std::move(tensor), std::move(what));
    const at::NoGradGuard no_grad;
    const at::Tensor flat = tensor.view({-1});
    api().follow(sums_.stream, api().mark(nullptr));
    const bool direct = size() == 2 || static_cast<std::int64_t>(flat.nbytes()) <= kDirectSumBytes;
    std::vector<at::Tensor> kept = direct ? sum_whole(flat, what) : sum_by_chunks(flat, what);
    kept.push_back(std::move(tensor));
    return std::make_unique<NcclSum>(fabric_, sums_, api().mark(sums_.stream), std::move(kept),
                                     std::move(what));
  }

  void broadcast(at::Tensor tensor, RankId root) override {
    if (!api().owns(tensor)) return host_->broadcast(std::move(tensor), root);
    std::vector<Transfer> transfers;
    if (rank() == root) {
      for (int peer = 0; peer < size(); ++peer) {
        if (RankId(peer) != root)
          transfers.push_back({Direction::Send, RankId(peer), 0, tensor, "broadcast"});
      }
    } else {
      transfers.push_back({Direction::Receive, root, 0, tensor, "broadcast"});
    }
    exchange(transfers)->wait();
  }

  void barrier() override { host_->barrier(); }

  std::unique_ptr<Communicator> subgroup(const std::vector<RankId>& ranks, const std::string& name) override {
    std::vector<int> members;
    for (RankId r : ranks) members.push_back(members_.at(r.value));
    return std::make_unique<NcclCommunicator>(fabric_, host_->subgroup(ranks, name), std::move(members),
                                              name_ + "/" + name);
  }

  void abort(const std::string& reason) noexcept override {
    fabric_->abort(reason);
    host_->abort(reason);
  }

  void through_host(std::int64_t messages) { fabric_->through_host(messages); }

 private:
  NcclApi& api() const { return fabric_->api(); }

  /// One group for all messages; each line then has an event behind its last one.
  void post(std::vector<NcclExchange::Part>& parts) {
    const NcclApi::Event ready = api().mark(nullptr);
    std::vector<Line> lines;
    for (const auto& part : parts) {
      if (std::ranges::any_of(lines, [&](const Line& l) { return l.comm == part.line.comm; })) continue;
      lines.push_back(part.line);
      api().follow(part.line.stream,
                   ready);  // also before receives: what used the memory before is done then
    }
    fabric_->group(lines, parts.front().transfer.what.text(), [&](auto&& taken) {
      for (const auto& part : parts) {
        const Transfer& t = part.transfer;
        // The sender is rank 0 of the two ranks of a line.
        if (t.direction == Direction::Send)
          taken(api().send(t.tensor, 1, t.tag, part.line.comm, part.line.stream));
        else
          taken(api().receive(t.tensor, 0, t.tag, part.line.comm, part.line.stream));
      }
    });
    for (auto& part : parts) part.done = api().mark(part.line.stream);
  }

  /// Sends `mine[peer]` to each peer and receives into `theirs[peer]`, as one group on the sums' line.
  void all_to_all(const std::vector<at::Tensor>& mine, const std::vector<at::Tensor>& theirs,
                  const std::string& what) {
    fabric_->group({sums_}, what, [&](auto&& taken) {
      for (int peer = 0; peer < size(); ++peer) {
        const auto p = static_cast<std::size_t>(peer);
        if (RankId(peer) == rank()) continue;
        if (mine[p].numel() > 0) taken(api().send(mine[p], peer, 0, sums_.comm, sums_.stream));
        if (theirs[p].numel() > 0) taken(api().receive(theirs[p], peer, 0, sums_.comm, sums_.stream));
      }
    });
  }

  /// Every rank gets every rank's whole tensor and adds. Returns what the stream still needs.
  std::vector<at::Tensor> sum_whole(const at::Tensor& flat, const std::string& what) {
    const auto n = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank().value);
    std::vector<at::Tensor> received(n);
    for (std::size_t p = 0; p < n; ++p) received[p] = p == me ? flat : at::empty_like(flat);
    all_to_all(std::vector<at::Tensor>(n, flat), received, what);
    api().run(sums_.stream, [=] { sum_in_order(received, flat); });
    return received;
  }

  /// Each rank adds up one chunk, then everybody gets every chunk.
  std::vector<at::Tensor> sum_by_chunks(const at::Tensor& flat, const std::string& what) {
    const auto n = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank().value);
    const std::int64_t chunk = (flat.numel() + size() - 1) / size();
    std::vector<at::Tensor> chunks(n), received(n);
    for (std::size_t p = 0; p < n; ++p) {
      const std::int64_t begin = std::min<std::int64_t>(static_cast<std::int64_t>(p) * chunk, flat.numel());
      chunks[p] = flat.narrow(0, begin, std::min(chunk, flat.numel() - begin));
    }
    for (std::size_t p = 0; p < n; ++p) received[p] = p == me ? chunks[p] : at::empty_like(chunks[me]);
    all_to_all(chunks, received, what);
    const at::Tensor own = chunks[me];
    api().run(sums_.stream, [=] { sum_in_order(received, own); });
    all_to_all(std::vector<at::Tensor>(n, own), chunks, what);
    return received;
  }

  std::shared_ptr<Fabric> fabric_;
  std::unique_ptr<Communicator> host_;
  std::vector<int> members_;  // ranks of the job
  std::string name_;
  Line sums_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const CommunicatorOptions& options,
                                                     std::unique_ptr<Communicator> host,
                                                     std::shared_ptr<Store> store) {
  MILLRACE_CHECK(options.nccl != nullptr);
  std::vector<int> members;
  for (int r = 0; r < options.size; ++r) members.push_back(r);
  return std::make_unique<NcclCommunicator>(std::make_shared<Fabric>(options, std::move(store)),
                                            std::move(host), std::move(members), "all");
}

void through_host(Communicator& communicator, std::int64_t messages) {
  if (auto* const nccl = dynamic_cast<NcclCommunicator*>(&communicator)) nccl->through_host(messages);
}

}  // namespace millrace
