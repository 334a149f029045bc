// Each rank owns one segment (a memfd, opened by its peers through /proc): a doorbell, a queue of descriptors
// for each peer, and an arena of message blocks. A sender copies a tensor into a block of its own arena and
// queues its place, and is done; the receiver copies it out and marks the block free. Blocks are reused
// newest first, so that small messages stay in the caches. A rank that waits spins for a moment, unless the
// machine is busy (SpinPolicy), then sleeps on its own doorbell.
#include "runtime/comm/shared_memory.h"

#include <fcntl.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <sstream>
#include <unordered_map>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/here_and_now.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr std::size_t kQueueEntries = 1024;
constexpr std::size_t kReasonBytes = 480;
// Address space of one rank's blocks; memory is taken when a block is first used. Halved where refused.
constexpr std::size_t kArenaBytes = std::size_t{64} << 30;
constexpr std::size_t kLeastArenaBytes = std::size_t{1} << 20;
// Below this a user may meet the limit that made it small, and is told at the start.
constexpr std::size_t kAmpleArenaBytes = std::size_t{1} << 30;
// A futex wake-up takes 30 to 60 us here; a peer that is about to answer is faster. Only while every rank has
// a core of its own.
constexpr std::chrono::microseconds kSpin{200};
// How often a sleeping rank looks whether its peers are still there.
constexpr std::chrono::milliseconds kLifeCheck{100};

struct Descriptor {
  std::uint64_t tag;
  std::uint64_t block;  ///< offset of its Block in the sender's segment
  std::uint64_t bytes;
};

/// From the segment's owner to one peer.
struct Queue {
  alignas(64) std::atomic<std::uint64_t> written{0};
  alignas(64) std::atomic<std::uint64_t> read{0};
  alignas(64) Descriptor entries[kQueueEntries];
};

struct Control {
  alignas(64) std::atomic<std::uint32_t> doorbell{0};
  std::atomic<std::uint32_t> sleepers{0};
  alignas(64) std::atomic<std::uint32_t> aborted{0};
  char reason[kReasonBytes] = {};  ///< written before `aborted`
};

/// In front of every message's bytes. `use` is odd while a message lies in the block; the sender adds one to
/// take it, the receiver to free it, so that a value names one message.
struct alignas(64) Block {
  std::atomic<std::uint64_t> use{0};
  void* data() { return this + 1; }
};

std::size_t page_up(std::size_t bytes) {
  return (bytes + 4095) / 4096 * 4096;
}

/// "file size limit (ulimit -f) of 1048576 bytes", or empty: there is none.
std::string file_size_limit() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return "the file size limit (ulimit -f) is " + std::to_string(limit.rlim_cur) + " bytes";
}

/// A segment counts as a file: to grow it beyond the limit raises SIGXFSZ, which ends a process.
bool is_within_file_size_limit(std::size_t bytes) {
  struct rlimit limit {};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

int futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
  return static_cast<int>(
      ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), operation, value, timeout, nullptr, 0));
}

/// One rank's segment, mapped here. The owner holds a lock on it as long as it lives, which says so to others
/// even if its process id is not yet reaped or used again.
class Segment {
 public:
  /// Own segment for `peers` queues.
  static std::unique_ptr<Segment> create(std::size_t peers) {
    std::unique_ptr<Segment> segment(new Segment);
    segment->fd_ = static_cast<int>(::syscall(SYS_memfd_create, kMemfdName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (segment->fd_ < 0) return nullptr;
    for (std::size_t arena = kArenaBytes; arena >= kLeastArenaBytes; arena /= 2) {
      if (segment->map(peers, arena, Size::Set)) break;
    }
    struct flock lock {};
    lock.l_type = F_WRLCK;
    if (!segment->base_ || ::fcntl(segment->fd_, F_ADD_SEALS, kSeals) != 0 ||
        ::fcntl(segment->fd_, F_OFD_SETLK, &lock) != 0)
      return nullptr;
    new (&segment->control()) Control;
    for (std::size_t i = 0; i < peers; ++i) new (&segment->queue(i)) Queue;
    return segment;
  }

  /// `address` is another segment's address(), but comes from the store: nothing is opened for writing, and
  /// nothing mapped, before it is known to be a segment of this user that nobody can cut short. Null if not,
  /// or if it cannot be opened from here.
  static std::unique_ptr<Segment> open(const std::string& address, std::size_t peers) {
    int process = 0, number = 0, length = 0;
    unsigned long long arena = 0;
    if (std::sscanf(address.c_str(), "/proc/%9d/fd/%9d %18llu%n", &process, &number, &arena, &length) != 3 ||
        static_cast<std::size_t>(length) != address.size() || arena < kLeastArenaBytes || arena > kArenaBytes)
      return nullptr;
    const std::string path = address.substr(0, address.find(' '));
    std::unique_ptr<Segment> segment(new Segment);
    // Opening to look has no effect on a device, and does not wait for a pipe.
    const int look = ::open(path.c_str(), O_PATH | O_CLOEXEC);
    struct stat info {};
    const bool plausible = look >= 0 && ::fstat(look, &info) == 0 && S_ISREG(info.st_mode) &&
                           info.st_uid == ::geteuid() && info.st_nlink == 0;
    if (plausible)
      segment->fd_ = ::open(("/proc/self/fd/" + std::to_string(look)).c_str(), O_RDWR | O_CLOEXEC);
    if (look >= 0) ::close(look);
    if (segment->fd_ < 0 || (::fcntl(segment->fd_, F_GET_SEALS) & kSeals) != kSeals) return nullptr;
    if (!segment->map(peers, static_cast<std::size_t>(arena), Size::Expect)) return nullptr;
    return segment;
  }

  ~Segment() {
    if (base_) ::munmap(base_, bytes_);
    if (fd_ >= 0) ::close(fd_);
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::string address() const {
    return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd_) + " " +
           std::to_string(arena_);
  }
  Control& control() { return *reinterpret_cast<Control*>(base_); }
  Queue& queue(std::size_t peer) {
    return *reinterpret_cast<Queue*>(base_ + page_up(sizeof(Control)) + peer * page_up(sizeof(Queue)));
  }
  Block& block(std::uint64_t offset) { return *reinterpret_cast<Block*>(base_ + offset); }
  std::size_t arena_begin() const { return bytes_ - arena_; }
  std::size_t end() const { return bytes_; }
  std::size_t arena_bytes() const { return arena_; }
  /// Returns whether the block that a peer's descriptor names lies in its arena.
  bool holds(const Descriptor& message) const {
    return message.block >= arena_begin() && message.block % alignof(Block) == 0 && message.block < end() &&
           end() - message.block >= sizeof(Block) && message.bytes <= end() - message.block - sizeof(Block);
  }

  bool owner_lives() const {
    struct flock lock {};
    lock.l_type = F_RDLCK;
    return ::fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  }

  /// Wakes whoever sleeps on this segment's doorbell. The count is read by adding nothing: a sleeper that
  /// adds itself later then sees all that was written before this call. (A fence does it too, but the thread
  /// sanitizer knows none.)
  void ring() {
    if (control().sleepers.fetch_add(0, std::memory_order_seq_cst) == 0) return;
    control().doorbell.fetch_add(1, std::memory_order_seq_cst);
    futex(&control().doorbell, FUTEX_WAKE, INT_MAX, nullptr);
  }

 private:
  Segment() = default;
  enum class Size { Set, Expect };
  static constexpr const char* kMemfdName = "millrace";
  static constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

  bool map(std::size_t peers, std::size_t arena, Size size) {
    const std::size_t bytes = page_up(sizeof(Control)) + peers * page_up(sizeof(Queue)) + arena;
    if (size == Size::Set) {
      if (!is_within_file_size_limit(bytes) || ::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) return false;
    } else {
      struct stat info {};
      if (::fstat(fd_, &info) != 0 || static_cast<std::size_t>(info.st_size) != bytes) return false;
    }
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
    if (mapped == MAP_FAILED) return false;
    base_ = static_cast<char*>(mapped);
    bytes_ = bytes;
    arena_ = arena;
    return true;
  }

  int fd_ = -1;
  char* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t arena_ = 0;
};

/// Blocks of this rank's arena by size.
class Arena {
 public:
  explicit Arena(Segment& segment) : segment_(segment), next_(segment.arena_begin()) {}

  /// The offset of a block for so many bytes, marked as used.
  std::uint64_t take(std::size_t bytes) {
    const std::size_t size =
        std::bit_ceil(std::max<std::size_t>(bytes, 4096 - sizeof(Block)) + sizeof(Block));
    auto& blocks = blocks_[size];
    // The newest are the warmest.
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      auto& use = segment_.block(*block).use;
      if (const std::uint64_t now = use.load(std::memory_order_acquire); now % 2 == 0) {
        use.store(now + 1, std::memory_order_relaxed);
        return *block;
      }
    }
    if (next_ + size > segment_.end()) {
      throw OutOfMemory("shared memory: no room for a message of " + std::to_string(bytes) + " bytes",
                        file_size_limit().empty() ? "use --backend tcp, or fewer microbatches"
                                                  : file_size_limit() + ": raise it, or use --backend tcp");
    }
    const std::uint64_t offset = next_;
    next_ += size;
    new (&segment_.block(offset)) Block{.use = 1};
    blocks.push_back(offset);
    return offset;
  }

 private:
  Segment& segment_;
  std::size_t next_;
  std::map<std::size_t, std::vector<std::uint64_t>> blocks_;
};

/// Says whether a wait should spin before it sleeps. Spinning saves a few microseconds of a wake-up, and pays
/// only while this rank has its core to itself. Where other programs want the core, each yield gives them a
/// time slice of some milliseconds, and spinning uses up this rank's own; a rank that sleeps is put back at
/// once when its message comes. A yield that takes long shows that the machine is busy. Thread-safe but for
/// permit().
class SpinPolicy {
 public:
  void permit() { ever_ = true; }
  bool allows(std::chrono::steady_clock::time_point now) const {
    return ever_ && now.time_since_epoch().count() >= busy_until_.load(std::memory_order_relaxed);
  }
  /// Gives the core to whoever wants it. Returns whether spinning may go on.
  bool yield() {
    const auto before = std::chrono::steady_clock::now();
    ::sched_yield();
    const auto now = std::chrono::steady_clock::now();
    if (now - before < kLongYield) return true;
    // Twice as long as last time, unless that is long ago.
    const auto last = std::chrono::nanoseconds(pause_.load(std::memory_order_relaxed));
    const bool again =
        now.time_since_epoch().count() < busy_until_.load(std::memory_order_relaxed) + 2 * last.count();
    const std::chrono::nanoseconds pause =
        again ? std::min<std::chrono::nanoseconds>(2 * last, kLongestPause) : kFirstPause;
    pause_.store(pause.count(), std::memory_order_relaxed);
    busy_until_.store((now + pause).time_since_epoch().count(), std::memory_order_relaxed);
    return false;
  }

 private:
  static constexpr std::chrono::microseconds kLongYield{100};  // two context switches take less than 10
  static constexpr std::chrono::milliseconds kFirstPause{10}, kLongestPause{1000};
  bool ever_ = false;
  std::atomic<std::int64_t> busy_until_{0}, pause_{0};  // nanoseconds
};

/// One rank's end.
class SharedMesh {
 public:
  SharedMesh(CommunicatorOptions options, std::vector<int> local, std::unique_ptr<Segment> own)
      : options_(std::move(options)),
        local_(std::move(local)),
        own_(std::move(own)),
        arena_(*own_),
        peers_(local_.size()) {
    me_ = index_of(options_.rank.value);
  }

  /// Waits may spin: the ranks of this host have a core each. To be called before the first message.
  void permit_spinning() { spin_.permit(); }

  bool open_peers(const std::vector<std::string>& addresses) {
    for (std::size_t i = 0; i < local_.size(); ++i) {
      if (i == me_) continue;
      peers_[i] = Segment::open(addresses[i], local_.size());
      if (!peers_[i]) return false;
    }
    return true;
  }

  const CommunicatorOptions& options() const { return options_; }

  /// Copies the message: it is on its way whatever the receiver does.
  void send(const Transfer& t) {
    const std::size_t peer = index_of(t.peer.value), bytes = t.tensor.nbytes();
    for (Segment* end : {own_.get(), peers_[peer].get()}) {
      if (end->control().aborted.load(std::memory_order_acquire) != 0)
        throw_aborted(*end, t, options_.clock.now());
    }
    std::uint64_t block = 0;
    {
      std::lock_guard lock(arena_mutex_);
      block = arena_.take(bytes);
    }
    std::memcpy(own_->block(block).data(), t.tensor.const_data_ptr(), bytes);
    Queue& queue = own_->queue(peer);
    {
      std::unique_lock lock(queue_mutex_);
      const auto has_room = [&] {
        return queue.written.load(std::memory_order_relaxed) - queue.read.load(std::memory_order_acquire) <
               kQueueEntries;
      };
      // A peer that waits, for whatever, takes in what is queued for it; so does this rank meanwhile, so that
      // two full queues empty each other.
      if (!has_room()) {
        wait(t, options_.clock.now(), [&] {
          progress();
          return has_room();
        });
      }
      const std::uint64_t at = queue.written.load(std::memory_order_relaxed);
      queue.entries[at % kQueueEntries] = {t.tag, block, bytes};
      queue.written.store(at + 1, std::memory_order_release);
    }
    peers_[peer]->ring();
  }

  /// A message that this rank waits for. Guarded by arrivals_mutex_ until `done`.
  struct Receive {
    Transfer transfer;
    bool copies = true;  ///< into the transfer's tensor; else it stays in its block until release()
    std::size_t peer = 0;
    Block* block = nullptr;  ///< that it stays in; written before `done`, as is the next
    std::string error;
    std::atomic<bool> done{false};
  };

  void post(Receive& receive) {
    receive.peer = index_of(receive.transfer.peer.value);
    const Key key{receive.peer, receive.transfer.tag};
    std::lock_guard lock(arrivals_mutex_);
    if (auto early = arrived_.find(key); early != arrived_.end()) {
      take(receive, early->second.front());
      early->second.pop_front();
      if (early->second.empty()) arrived_.erase(early);
    } else {
      posted_[key].push_back(&receive);
    }
  }

  /// Gives up a receive that is not done.
  void forget(Receive& receive) {
    std::lock_guard lock(arrivals_mutex_);
    const auto found = posted_.find({receive.peer, receive.transfer.tag});
    if (found == posted_.end()) return;
    std::erase(found->second, &receive);
    if (found->second.empty()) posted_.erase(found);
  }

  /// The message of a receive that does not copy has been read.
  void release(Receive& receive) {
    if (receive.block) free(*peers_[receive.peer], *std::exchange(receive.block, nullptr));
  }

  /// Takes in what has arrived for this rank. Whoever waits, for whatever, calls this: a rank that waits for
  /// its send to be taken must take what others send it.
  void progress() {
    std::lock_guard lock(arrivals_mutex_);
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
      if (peers_[peer]) drain(peer);
    }
  }

  /// Until `ready()`. Throws PeerError on the deadline, a peer's end or an abort.
  template <class Ready>
  void wait(const Transfer& t, TimePoint start, Ready&& ready) {
    if (const auto begin = std::chrono::steady_clock::now(); spin_.allows(begin)) {
      do {
        for (int i = 0; i < 32; ++i) {
          if (ready()) return;
          _mm_pause();
        }
        // The scheduler may have put the peer on this very core: it would run only after the spin.
      } while (spin_.yield() && std::chrono::steady_clock::now() - begin < kSpin);
    }
    Control& control = own_->control();
    for (;;) {
      control.sleepers.fetch_add(1, std::memory_order_seq_cst);
      const std::uint32_t rung = control.doorbell.load(std::memory_order_seq_cst);
      const bool done = ready();
      if (!done) {
        const timespec timeout{0, std::chrono::nanoseconds(kLifeCheck).count()};
        if (options_.clock.now() - start < options_.deadline)
          futex(&control.doorbell, FUTEX_WAIT, rung, &timeout);
      }
      control.sleepers.fetch_sub(1, std::memory_order_seq_cst);
      if (done || ready()) return;
      throw_if_hopeless(t, start, ready);
    }
  }

  void abort(const std::string& reason) noexcept {
    Control& control = own_->control();
    if (control.aborted.load() == 0) {
      std::strncpy(control.reason, reason.empty() ? "a rank failed" : reason.c_str(), kReasonBytes - 1);
      control.aborted.store(1, std::memory_order_seq_cst);
    }
    own_->ring();
    for (auto& peer : peers_) {
      if (peer) peer->ring();
    }
  }

 private:
  std::size_t index_of(int rank) const {
    const auto found = std::ranges::lower_bound(local_, rank);
    MILLRACE_CHECK(found != local_.end() && *found == rank, "rank " << rank << " is on another host");
    return static_cast<std::size_t>(found - local_.begin());
  }

  /// Takes the messages that `peer` has queued for this rank, into the tensors that wait for them, or aside.
  void drain(std::size_t peer) {
    Queue& queue = peers_[peer]->queue(me_);
    std::uint64_t at = queue.read.load(std::memory_order_relaxed);
    const std::uint64_t end = queue.written.load(std::memory_order_acquire);
    if (at == end) return;
    const std::uint64_t begin = at;
    for (; at != end; ++at) {
      const Descriptor message = queue.entries[at % kQueueEntries];
      const Key key{peer, message.tag};
      if (auto waiting = posted_.find(key); waiting != posted_.end()) {
        take(*waiting->second.front(), message);
        waiting->second.pop_front();
        if (waiting->second.empty()) posted_.erase(waiting);
      } else {
        arrived_[key].push_back(message);
      }
    }
    queue.read.store(end, std::memory_order_release);
    // The sender may wait for room.
    if (end - begin >= kQueueEntries) peers_[peer]->ring();
  }

  void take(Receive& receive, const Descriptor& message) {
    Segment& from = *peers_[receive.peer];
    const at::Tensor& tensor = receive.transfer.tensor;
    if (!from.holds(message)) {
      receive.error = "got a message that does not lie in its sender's memory";
      receive.done.store(true, std::memory_order_release);
      return;
    }
    Block& block = from.block(message.block);
    if (message.bytes != tensor.nbytes()) {
      receive.error =
          "got " + std::to_string(message.bytes) + " bytes, expected " + std::to_string(tensor.nbytes());
    } else if (receive.copies) {
      std::memcpy(tensor.mutable_data_ptr(), block.data(), message.bytes);
    } else {
      receive.block = &block;
    }
    if (!receive.block) free(from, block);
    receive.done.store(true, std::memory_order_release);
  }

  static void free(Segment& sender, Block& block) {
    block.use.fetch_add(1, std::memory_order_release);
    sender.ring();
  }

  [[noreturn]] void throw_aborted(Segment& segment, const Transfer& t, TimePoint start) const {
    std::string reason(segment.control().reason, ::strnlen(segment.control().reason, kReasonBytes));
    throw PeerError(wait_message(options_.rank.value, t, options_.clock, start, "aborted: " + reason));
  }

  template <class Ready>
  void throw_if_hopeless(const Transfer& t, TimePoint start, Ready&& ready) {
    for (std::size_t i = 0; i < local_.size(); ++i) {
      Segment& segment = i == me_ ? *own_ : *peers_[i];
      if (segment.control().aborted.load(std::memory_order_acquire) != 0) {
        // Messages that were sent before the abort still count.
        if (ready()) return;
        throw_aborted(segment, t, start);
      }
      if (i != me_ && local_[i] == t.peer.value && !segment.owner_lives()) {
        if (ready()) return;
        throw PeerError(wait_message(options_.rank.value, t, options_.clock, start,
                                     "connection lost (the peer's process ended)"),
                        kPeerEndedHint);
      }
    }
    if (options_.clock.now() - start >= options_.deadline && !ready()) {
      throw PeerError(wait_message(options_.rank.value, t, options_.clock, start, "no message"), kLateHint);
    }
  }

  struct Key {
    std::size_t peer;
    std::uint64_t tag;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& k) const {
      return (k.tag * 0x9e3779b97f4a7c15ull) ^ (k.peer * 0xbf58476d1ce4e5b9ull);
    }
  };

  CommunicatorOptions options_;
  std::vector<int> local_;
  std::size_t me_ = 0;
  std::unique_ptr<Segment> own_;
  std::mutex arena_mutex_;  // guards arena_
  Arena arena_;
  std::vector<std::unique_ptr<Segment>> peers_;  // by index in local_; null: this rank
  std::mutex queue_mutex_;                       // guards this rank's writing into its queues
  std::mutex arrivals_mutex_;                    // guards what follows and the reading of others' queues
  std::unordered_map<Key, std::deque<Descriptor>, KeyHash> arrived_;  // before anybody asked
  std::unordered_map<Key, std::deque<Receive*>, KeyHash> posted_;
  SpinPolicy spin_;
};

class SharedReceive final : public Arrival {
 public:
  SharedReceive(std::shared_ptr<SharedMesh> mesh, Transfer transfer, bool copies) : mesh_(std::move(mesh)) {
    receive_.transfer = std::move(transfer);
    receive_.copies = copies;
    mesh_->post(receive_);
  }
  ~SharedReceive() override {
    if (!receive_.done.load(std::memory_order_acquire)) mesh_->forget(receive_);
    mesh_->release(receive_);
  }

  void wait() override {
    const auto start = mesh_->options().clock.now();
    const auto ready = [&] {
      if (!receive_.done.load(std::memory_order_acquire)) mesh_->progress();
      return receive_.done.load(std::memory_order_acquire);
    };
    if (!ready()) mesh_->wait(receive_.transfer, start, ready);
    if (!receive_.error.empty())
      throw PeerError(wait_message(mesh_->options().rank.value, receive_.transfer, mesh_->options().clock,
                                   start, receive_.error));
  }

  at::Tensor message() const override {
    const at::Tensor& like = receive_.transfer.tensor;
    return at::from_blob(receive_.block->data(), like.sizes(), like.options());
  }

 private:
  std::shared_ptr<SharedMesh> mesh_;
  SharedMesh::Receive receive_;
};

class SharedMemoryChannel final : public Channel {
 public:
  explicit SharedMemoryChannel(std::shared_ptr<SharedMesh> mesh) : mesh_(std::move(mesh)) {}
  int rank() const override { return mesh_->options().rank.value; }
  int size() const override { return mesh_->options().size; }
  std::chrono::milliseconds deadline() const override { return mesh_->options().deadline; }
  Clock& clock() const override { return mesh_->options().clock; }
  bool buffers_sends() const override { return true; }
  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (transfer.direction == Direction::Send) {
      mesh_->send(transfer);
      return std::make_unique<NothingPending>();
    }
    return std::make_unique<SharedReceive>(mesh_, transfer, /*copies=*/true);
  }
  std::unique_ptr<Arrival> receive(const Transfer& transfer) override {
    return std::make_unique<SharedReceive>(mesh_, transfer, /*copies=*/false);
  }
  void abort(const std::string& reason) noexcept override { mesh_->abort(reason); }

 private:
  std::shared_ptr<SharedMesh> mesh_;
};

}  // namespace

std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot;
}

std::string shared_memory_domain() {
  struct stat processes {};
  ::stat("/proc/self/ns/pid", &processes);
  return host_identity() + "/" + std::to_string(processes.st_ino) + "/" + std::to_string(::geteuid());
}

std::shared_ptr<Channel> make_shared_memory_channel(const CommunicatorOptions& options,
                                                    const std::vector<int>& local, Store& store) {
  auto own = Segment::create(local.size());
  if (const std::string limit = file_size_limit();
      !limit.empty() && (!own || own->arena_bytes() < kAmpleArenaBytes)) {
    log_warning("shared memory: " + limit +
                (own ? ": messages of this rank have " + std::to_string(own->arena_bytes()) + " bytes at most"
                     : ": too little for it"));
  }
  const auto agreed = [&](const char* key, const std::string& says, const auto& decide) {
    return agree(store, key, local, options.rank.value, says, options.rendezvous_deadline, options.clock,
                 decide);
  };
  const std::vector<std::string> addresses =
      split(agreed("shm", own ? own->address() : "", joined_lines), '\n');
  const bool all_made = std::ranges::none_of(addresses, [](const std::string& a) { return a.empty(); });
  std::shared_ptr<SharedMesh> mesh;
  if (all_made) {
    mesh = std::make_shared<SharedMesh>(options, local, std::move(own));
    if (!mesh->open_peers(addresses)) mesh.reset();
  }
  // A rank that opened the others' memory says which cores it may use: a launcher may have pinned it.
  std::string own_cores;
  for (const int core : core_numbers_here()) own_cores += std::to_string(core) + " ";
  const std::string opened = agreed("shm-open", mesh ? "yes " + own_cores : "no", [](const auto& said) {
    std::set<std::string> cores;
    for (const std::string& one : said) {
      std::istringstream words(one);
      std::string word;
      words >> word;
      if (word != "yes") return std::string("no");
      while (words >> word) cores.insert(word);
    }
    return std::string(cores.size() >= said.size() ? "cores" : "yes");
  });
  if (opened == "no") return nullptr;
  if (opened == "cores") mesh->permit_spinning();
  return std::make_shared<SharedMemoryChannel>(std::move(mesh));
}

}  // namespace millrace
