// NCCL without a GPU. Streams are queues; the thread that asks for an event processes them. The rules are the
// strictest of the real library. The first message between two ranks is taken when both have posted it. A
// send waits for its receive. Operations of a stream never overtake each other. The k-th send to a peer
// always meets the peer's k-th receive, and a mismatch in order is an error here.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl_api.h"
#include "runtime/comm/nccl_communicator.h"
#include "runtime/comm/store.h"

namespace millrace {

/// The wires between the ranks of one process. Thread-safe.
class FakeNcclWorld {
 public:
  using Answer = NcclApi::Answer;
  using State = NcclApi::State;

  using Way = std::pair<std::string, std::pair<int, int>>;  // communicator, (from, to)
  struct Comm {
    std::string id;
    int rank = 0, size = 1;
    std::set<Way> posted;  ///< ways on which this rank has a message behind it
    std::string failed;
    bool aborted = false;
  };
  struct Transfer {
    bool send = false, done = false;
    at::Tensor tensor;
    int peer = 0;
    std::uint64_t tag = 0;
    Comm* comm = nullptr;
  };
  struct EventState {
    bool reached = false;
  };
  struct Operation {
    std::vector<std::shared_ptr<Transfer>> group;  // one launch
    std::function<void()> work;
    std::shared_ptr<EventState> wait, reach;
  };
  struct Stream {
    std::deque<Operation> operations;
  };

  struct Counts {
    int groups = 0, sends = 0, receives = 0, aborts = 0, destroys = 0;
    int communicators = 0;  ///< of all ranks
    int idle = 0;           ///< ids of communicators that nothing went through after their connection
  };
  Counts counts() {
    const std::lock_guard lock(mutex_);
    Counts counts = counts_;
    counts.communicators = static_cast<int>(comms_.size());
    counts.idle = static_cast<int>(joined_.size() - used_.size());
    return counts;
  }
  /// From now on every communicator answers with this error.
  void fail_all(const std::string& text) {
    const std::lock_guard lock(mutex_);
    failure_ = text;
  }

 private:
  friend class FakeNccl;

  /// Works off what can be: caller holds mutex_.
  void progress() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& stream : streams_) moved = advance(*stream) || moved;
    }
  }

  bool advance(Stream& stream) {
    bool moved = false;
    while (!stream.operations.empty() && finish(stream.operations.front())) {
      stream.operations.pop_front();
      moved = true;
    }
    return moved;
  }

  bool finish(Operation& operation) {
    if (operation.wait && !operation.wait->reached) return false;
    // Everything in the group is on offer now; it ends when all have met.
    for (auto& transfer : operation.group) offer(transfer);
    for (auto& transfer : operation.group) {
      if (!transfer->done && !transfer->comm->aborted) return false;
    }
    if (operation.work) operation.work();
    if (operation.reach) operation.reach->reached = true;
    return true;
  }

  void offer(const std::shared_ptr<Transfer>& mine) {
    if (mine->done || !offered_.insert(mine.get()).second) return;
    const int me = mine->comm->rank;
    const std::pair<int, int> way = mine->send ? std::pair(me, mine->peer) : std::pair(mine->peer, me);
    auto& [sends, receives] = wires_[{mine->comm->id, way}];
    (mine->send ? sends : receives).push_back(mine);
    while (!sends.empty() && !receives.empty()) {
      Transfer &from = *sends.front(), &to = *receives.front();
      if (from.tag != to.tag || from.tensor.nbytes() != to.tensor.nbytes()) {
        from.comm->failed = to.comm->failed =
            "order: sent tag " + std::to_string(from.tag) + " with " + std::to_string(from.tensor.nbytes()) +
            " bytes, received tag " + std::to_string(to.tag) + " with " + std::to_string(to.tensor.nbytes());
        return;
      }
      std::memcpy(to.tensor.mutable_data_ptr(), from.tensor.const_data_ptr(), from.tensor.nbytes());
      from.done = to.done = true;
      for (Transfer* t : {&from, &to}) offered_.erase(t);
      sends.pop_front();
      receives.pop_front();
    }
  }

  using Wire = std::pair<std::deque<std::shared_ptr<Transfer>>, std::deque<std::shared_ptr<Transfer>>>;
  std::mutex mutex_;  // guards all of it
  int next_id_ = 0;
  std::map<std::string, std::set<int>> joined_;  // key: id
  std::set<std::string> used_;                   // ids
  std::vector<std::unique_ptr<Comm>> comms_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<Way, Wire> wires_;
  std::map<Way, std::set<int>> posted_;  // ranks that have ever posted there
  std::set<Transfer*> offered_;
  std::string failure_;
  Counts counts_;
};

/// One rank's. Owns (as a GPU would) the float32 tensors; others are the host's.
class FakeNccl final : public NcclApi {
 public:
  explicit FakeNccl(std::shared_ptr<FakeNcclWorld> world) : world_(std::move(world)) {}

  bool owns(const at::Tensor& tensor) const override { return tensor.scalar_type() == at::kFloat; }
  at::Tensor scratch() override { return scratch_.emplace_back(at::zeros({4}, at::kFloat)); }
  std::string unique_id() override {
    const std::lock_guard lock(world_->mutex_);
    return "id" + std::to_string(world_->next_id_++);
  }
  Answer init(Comm& comm, const std::string& id, int size, int rank) override {
    const std::lock_guard lock(world_->mutex_);
    world_->comms_.push_back(
        std::make_unique<FakeNcclWorld::Comm>(FakeNcclWorld::Comm{.id = id, .rank = rank, .size = size}));
    comm = world_->comms_.back().get();
    world_->joined_[id].insert(rank);
    return {State::Working, {}};
  }
  Answer state(Comm handle) override {
    const std::lock_guard lock(world_->mutex_);
    auto& comm = of(handle);
    if (!world_->failure_.empty()) return {State::Failed, world_->failure_};
    if (!comm.failed.empty()) return {State::Failed, comm.failed};
    bool done = static_cast<int>(world_->joined_[comm.id].size()) == comm.size;
    for (const FakeNcclWorld::Way& way : comm.posted) done = done && world_->posted_[way].size() == 2;
    return {done ? State::Done : State::Working, {}};
  }
  void abort(Comm handle) noexcept override {
    const std::lock_guard lock(world_->mutex_);
    ++world_->counts_.aborts;
    of(handle).aborted = true;
  }
  void destroy(Comm handle) noexcept override {
    const std::lock_guard lock(world_->mutex_);
    ++world_->counts_.destroys;
    of(handle).aborted = true;
  }
  Answer group_start() override {
    MILLRACE_CHECK(!in_group_);
    in_group_ = true;
    return {};
  }
  Answer group_end() override {
    MILLRACE_CHECK(in_group_);
    in_group_ = false;
    const std::lock_guard lock(world_->mutex_);
    ++world_->counts_.groups;
    for (const auto& [stream, transfers] : group_) {
      for (const auto& t : transfers) {
        const int me = t->comm->rank;
        const FakeNcclWorld::Way way{t->comm->id, t->send ? std::pair(me, t->peer) : std::pair(t->peer, me)};
        t->comm->posted.insert(way);
        world_->posted_[way].insert(me);
      }
    }
    for (auto& [stream, transfers] : group_)
      static_cast<FakeNcclWorld::Stream*>(stream)->operations.push_back({.group = std::move(transfers)});
    group_.clear();
    return {State::Working, {}};
  }
  Answer send(const at::Tensor& tensor, int peer, std::uint64_t tag, Comm comm, Stream stream) override {
    return transfer(true, tensor, peer, tag, comm, stream);
  }
  Answer receive(const at::Tensor& tensor, int peer, std::uint64_t tag, Comm comm, Stream stream) override {
    return transfer(false, tensor, peer, tag, comm, stream);
  }
  Stream new_stream() override {
    const std::lock_guard lock(world_->mutex_);
    world_->streams_.push_back(std::make_unique<FakeNcclWorld::Stream>());
    return world_->streams_.back().get();
  }
  void free_stream(Stream) noexcept override {}  // streams are freed with the world
  Event mark(Stream stream) override {
    const std::lock_guard lock(world_->mutex_);
    auto event = std::make_shared<FakeNcclWorld::EventState>();
    if (stream)
      static_cast<FakeNcclWorld::Stream*>(stream)->operations.push_back({.reach = event});
    else
      event->reached = true;  // the CPU has done what it was told
    return event;
  }
  void follow(Stream stream, const Event& event) override {
    const std::lock_guard lock(world_->mutex_);
    static_cast<FakeNcclWorld::Stream*>(stream)->operations.push_back(
        {.wait = std::static_pointer_cast<FakeNcclWorld::EventState>(event)});
  }
  bool reached(const Event& event) override {
    const std::lock_guard lock(world_->mutex_);
    world_->progress();
    return static_cast<FakeNcclWorld::EventState*>(event.get())->reached;
  }
  void run(Stream stream, std::function<void()> ops) override {
    const std::lock_guard lock(world_->mutex_);
    static_cast<FakeNcclWorld::Stream*>(stream)->operations.push_back({.work = std::move(ops)});
  }

 private:
  FakeNcclWorld::Comm& of(Comm handle) {
    auto& comm = *static_cast<FakeNcclWorld::Comm*>(handle);
    MILLRACE_CHECK(!comm.aborted, "a communicator is used after its end");
    return comm;
  }

  Answer transfer(bool send, const at::Tensor& tensor, int peer, std::uint64_t tag, Comm handle,
                  Stream stream) {
    const std::lock_guard lock(world_->mutex_);
    MILLRACE_CHECK(in_group_, "one exchange is one group");
    ++(send ? world_->counts_.sends : world_->counts_.receives);
    if (std::ranges::none_of(scratch_, [&](const at::Tensor& one) { return one.is_same(tensor); }))
      world_->used_.insert(of(handle).id);
    auto made = std::make_shared<FakeNcclWorld::Transfer>(FakeNcclWorld::Transfer{
        .send = send, .tensor = tensor, .peer = peer, .tag = tag, .comm = &of(handle)});
    const auto same = std::ranges::find(group_, stream, [](const auto& entry) { return entry.first; });
    if (same == group_.end())
      group_.push_back({stream, {std::move(made)}});
    else
      same->second.push_back(std::move(made));
    return {State::Working, {}};
  }

  std::shared_ptr<FakeNcclWorld> world_;
  bool in_group_ = false;
  std::vector<at::Tensor> scratch_;  // of connections
  std::vector<std::pair<Stream, std::vector<std::shared_ptr<FakeNcclWorld::Transfer>>>> group_;
};

/// Connects all ranks with all, each from a thread of its own.
inline void connect_all(const std::vector<std::unique_ptr<Communicator>>& ranks) {
  std::vector<std::jthread> threads;
  for (const auto& rank : ranks) {
    threads.emplace_back([&] { rank->connect(all_traffic(rank->size())); });
  }
}

/// Makes communicators as make_local_communicators does, with NCCL's logic for float32 tensors. Nothing is
/// connected yet.
inline std::vector<std::unique_ptr<Communicator>> make_fake_nccl_communicators(
    int size, std::chrono::milliseconds deadline,
    std::shared_ptr<FakeNcclWorld> world = std::make_shared<FakeNcclWorld>()) {
  auto store = make_memory_store();
  auto hosts = make_local_communicators(size, deadline);
  std::vector<std::unique_ptr<Communicator>> result(hosts.size());
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    CommunicatorOptions options{.backend = Backend::Nccl, .rank = RankId(static_cast<int>(r)), .size = size};
    options.deadline = deadline;
    options.rendezvous_deadline = std::chrono::milliseconds(20'000);
    options.nccl = std::make_shared<FakeNccl>(world);
    result[r] = make_nccl_communicator(options, std::move(hosts[r]), store);
  }
  return result;
}

}  // namespace millrace
