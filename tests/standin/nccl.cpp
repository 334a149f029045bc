// NCCL between processes of one machine, over shared memory: what runtime/comm/nccl_library.cpp calls. What
// the real library leaves undefined is an error here. A message ends when both sides have it; nothing is
// buffered.
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "counts.h"
#include "standin.h"

namespace {

constexpr std::size_t kRing = 256 << 10;
constexpr int kMostRanks = 64;

/// One direction of two ranks. All zeros at first.
struct Line {
  std::atomic<std::uint64_t> connected;      ///< bit 0: the sender is there, bit 1: the receiver
  std::atomic<std::uint64_t> written, read;  ///< bytes so far
  unsigned char data[kRing];
};
/// The memory of a communicator. All zeros at first; the last rank to join takes its name away.
struct Shared {
  struct Member {
    std::atomic<int> there;
    int pid, gpu;
  };
  std::atomic<int> size, joined, left;
  Member members[kMostRanks];
  Line lines[1];  // size * size
};
std::size_t bytes_of(int size) {
  return sizeof(Shared) + sizeof(Line) * static_cast<std::size_t>(size * size - 1);
}

thread_local std::string last_error;

ncclResult_t fails(ncclResult_t result, const std::string& text) {
  last_error = text;
  standin::say("NCCL: " + text);
  return result;
}

void nap() {
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

struct Communicator {
  ~Communicator() {
    if (shared) munmap(shared, bytes_of(size));
  }
  Line& line(int from, int to) const { return shared->lines[from * size + to]; }
  std::string name() const { return "rank " + std::to_string(rank) + " of " + std::to_string(size); }
  void fail(ncclResult_t result, const std::string& text) {
    const std::lock_guard lock(text_lock);
    error = name() + ": " + text;
    standin::say("NCCL: " + error);
    state = result;
  }

  std::string file;
  int size = 0, rank = 0, device = 0, gpu = 0;
  Shared* shared = nullptr;
  std::atomic<ncclResult_t> state{ncclInProgress};
  std::atomic<bool> aborted{false}, finalized{false}, in_use{false};
  std::atomic<int> outstanding{0};  // groups on their way
  std::set<std::pair<int, bool>> connected;
  cudaStream_t stream = nullptr;
  std::mutex text_lock;
  std::string error;
};
using Owned = std::shared_ptr<Communicator>;

std::mutex alive_lock;
std::map<ncclComm_t, Owned>& alive() {
  static auto* const all = new std::map<ncclComm_t, Owned>;
  return *all;
}

Owned find(ncclComm_t handle) {
  const std::lock_guard lock(alive_lock);
  const auto at = alive().find(handle);
  return at == alive().end() ? nullptr : at->second;
}

/// One call at a time for a communicator.
class Use {
 public:
  Use(ncclComm_t handle, const char* function) : owned_(find(handle)) {
    if (!owned_)
      result_ = fails(ncclInvalidArgument, std::string(function) + ": no such communicator, or it is gone");
    else if (owned_->in_use.exchange(true))
      result_ = fails(ncclInvalidUsage, std::string(function) + ": two threads call for one communicator");
    else
      mine_ = true;
  }
  ~Use() {
    if (mine_) owned_->in_use = false;
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ncclResult_t result() const { return result_; }
  const Owned& operator*() const { return owned_; }
  Communicator* operator->() const { return owned_.get(); }

 private:
  Owned owned_;
  ncclResult_t result_ = ncclSuccess;
  bool mine_ = false;
};

/// A send or a receive of a group, and how far it is.
struct Operation {
  bool sends = false;
  unsigned char* memory = nullptr;
  std::uint64_t bytes = 0;
  int peer = 0;
  std::uint64_t done = 0;  ///< of the header and the bytes
  std::uint64_t header = 0;
};
constexpr std::uint64_t kHeader = sizeof(std::uint64_t);

/// Moves what can be moved now. Whether anything was.
bool move(Communicator& comm, Operation& op) {
  Line& line = op.sends ? comm.line(comm.rank, op.peer) : comm.line(op.peer, comm.rank);
  const std::uint64_t total = kHeader + op.bytes;
  bool moved = false;
  op.header = op.sends ? op.bytes : op.header;
  while (op.done < total) {
    const std::uint64_t at = op.sends ? line.written.load() : line.read.load();
    const std::uint64_t other = op.sends ? line.read.load() : line.written.load();
    const std::uint64_t room = op.sends ? kRing - (at - other) : other - at;
    const bool in_header = op.done < kHeader;
    const std::uint64_t left = in_header ? kHeader - op.done : total - op.done;
    const std::uint64_t n = std::min({room, left, kRing - at % kRing});
    if (n == 0) return moved;
    unsigned char* mine =
        in_header ? reinterpret_cast<unsigned char*>(&op.header) + op.done : op.memory + (op.done - kHeader);
    unsigned char* theirs = line.data + at % kRing;
    if (op.sends)
      std::memcpy(theirs, mine, n);
    else
      std::memcpy(mine, theirs, n);
    (op.sends ? line.written : line.read) = at + n;
    op.done += n;
    moved = true;
    if (!op.sends && op.done == kHeader && op.header != op.bytes) {
      comm.fail(ncclInvalidUsage, "receives " + std::to_string(op.bytes) + " bytes from rank " +
                                      std::to_string(op.peer) + ", which sends " + std::to_string(op.header));
      return true;
    }
  }
  return moved;
}

/// The kernel of a group: ends when every message is through, or when somebody ends the communicator.
void transfer(Communicator& comm, std::vector<Operation> ops) {
  const auto is_through = [&](const Operation& op) {
    if (op.done < kHeader + op.bytes) return false;
    if (!op.sends) return true;
    const Line& line = comm.line(comm.rank, op.peer);
    return line.read.load() == line.written.load();  // the receiver has it all
  };
  while (!comm.aborted && comm.state != ncclInvalidUsage) {
    bool moved = false, through = true;
    for (auto op = ops.begin(); op != ops.end(); ++op) {
      // Messages of one direction go one after the other.
      const bool is_next = std::none_of(ops.begin(), op, [&](const Operation& earlier) {
        return earlier.sends == op->sends && earlier.peer == op->peer &&
               earlier.done < kHeader + earlier.bytes;
      });
      if (is_next) moved |= move(comm, *op);
      through &= is_through(*op);
    }
    if (through) break;
    if (!moved) nap();
  }
  --comm.outstanding;
}

struct Posted {
  Owned comm;
  Operation op;
  cudaStream_t stream;
};
thread_local int depth = 0;
thread_local std::vector<Posted> posted;
thread_local ncclResult_t group_error = ncclSuccess;

void launch(const Owned& comm, const std::vector<Operation>& ops) {
  standin::Work work{.name = "NCCL", .run = [comm, ops] { transfer(*comm, ops); }, .waits = true};
  for (const Operation& op : ops) {
    work.name += (op.sends ? " send to " : " receive from ") + std::to_string(op.peer);
    work.accesses.push_back({op.memory, op.bytes, !op.sends});
  }
  if (standin::give(comm->stream, std::move(work)) != cudaSuccess) {
    --comm->outstanding;
    comm->fail(ncclUnhandledCudaError, "the stream is gone");
  }
}

/// Gives a communicator's part of a group to its stream. Two ranks are connected at their first message:
/// until the other side posts its own, the communicator is in progress and nothing is on the stream.
void start(const Owned& comm, const std::vector<Operation>& ops) {
  std::vector<std::pair<int, bool>> missing;
  for (const Operation& op : ops)
    if (comm->connected.insert({op.peer, op.sends}).second) missing.push_back({op.peer, op.sends});
  ++comm->outstanding;
  if (missing.empty() && !standin::settings().nccl_slow) return launch(comm, ops);
  comm->state = ncclInProgress;
  std::thread([comm, ops, missing] {
    for (const auto& [peer, sends] : missing)
      (sends ? comm->line(comm->rank, peer) : comm->line(peer, comm->rank)).connected |= sends ? 1 : 2;
    for (const auto& [peer, sends] : missing) {
      const Line& line = sends ? comm->line(comm->rank, peer) : comm->line(peer, comm->rank);
      while (line.connected != 3 && !comm->aborted) nap();
    }
    if (comm->aborted) {
      --comm->outstanding;
      return;
    }
    if (standin::settings().nccl_slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    launch(comm, ops);
    ncclResult_t expected = ncclInProgress;
    comm->state.compare_exchange_strong(expected, ncclSuccess);
  }).detach();
}

std::uint64_t width(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

ncclResult_t post(bool sends, const void* memory, std::size_t count, ncclDataType_t type, int peer,
                  ncclComm_t handle, cudaStream_t stream) {
  const char* const function = sends ? "ncclSend" : "ncclRecv";
  if (const cudaError_t wanted = standin::count_call(function); wanted != cudaSuccess) {
    const auto result = static_cast<ncclResult_t>(wanted);
    if (depth > 0) group_error = result;
    return fails(result, std::string(function) + " fails, as STANDIN_FAIL wants");
  }
  const Use comm(handle, function);
  if (comm.result() != ncclSuccess) return comm.result();
  const auto refused = [&](const std::string& why) {
    if (depth > 0) group_error = ncclInvalidUsage;
    return fails(ncclInvalidUsage, std::string(function) + " of " + comm->name() + ": " + why);
  };
  const std::uint64_t bytes = count * width(type);
  if (comm->finalized) return refused("the communicator is finalized");
  if (comm->state != ncclSuccess) return refused("the communicator is still in progress, or has failed");
  if (width(type) == 0) return refused("of this type the stand-in knows nothing");
  if (peer < 0 || peer >= comm->size || peer == comm->rank)
    return refused("rank " + std::to_string(peer) + " is no peer");
  const standin::Block block = standin::block_of(memory);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  if (block.bytes == 0 || block.device != comm->device || begin + bytes > block.begin + block.bytes)
    return refused("the buffer is not memory of the communicator's GPU");
  if (stream == nullptr || standin::device_of(stream) != comm->device)
    return refused("the stream is not one of the communicator's GPU");
  if (comm->stream && comm->stream != stream)
    return refused("the communicator was used on another stream before");
  comm->stream = stream;
  if (!sends) standin::counts::add(standin::counts::Kind::Wait, "a message of NCCL");
  posted.push_back({*comm,
                    {.sends = sends,
                     .memory = static_cast<unsigned char*>(const_cast<void*>(memory)),
                     .bytes = bytes,
                     .peer = peer},
                    stream});
  if (depth > 0) return ncclSuccess;
  ++depth;
  return ncclGroupEnd();
}

/// Joins the ranks of an id: each maps the same memory and waits until all have.
void join(const Owned& comm) {
  const int file = shm_open(comm->file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const std::size_t bytes = bytes_of(comm->size);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0)
    return comm->fail(ncclSystemError, "no shared memory " + comm->file);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return comm->fail(ncclSystemError, "no shared memory " + comm->file);
  Shared& shared = *(comm->shared = static_cast<Shared*>(memory));
  int nobody = 0;
  if (!shared.size.compare_exchange_strong(nobody, comm->size) && nobody != comm->size)
    return comm->fail(ncclInvalidArgument, "another rank says there are " + std::to_string(nobody));
  auto& member = shared.members[comm->rank];
  member.pid = getpid();
  member.gpu = comm->gpu;
  if (member.there.exchange(1) != 0) return comm->fail(ncclInvalidArgument, "another rank has this number");
  if (++shared.joined == comm->size) shm_unlink(comm->file.c_str());
  while (shared.joined < comm->size) {
    if (comm->aborted) return;
    nap();
  }
  for (int other = 0; other < comm->size; ++other) {
    if (other == comm->rank || shared.members[other].gpu != comm->gpu) continue;
    return comm->fail(ncclInvalidUsage, "Duplicate GPU detected: rank " + std::to_string(other) +
                                            " is on GPU " + std::to_string(comm->gpu) + ", too");
  }
  comm->state = ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const char* other = std::getenv("STANDIN_NCCL_VERSION");
  *version = other ? std::atoi(other) : NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  const std::string name = "/standin-nccl-" + std::to_string(getpid()) + "-" + std::to_string(random()) +
                           "-" + std::to_string(random());
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}
const char* ncclGetLastError(ncclComm_t handle) {
  if (const Owned comm = find(handle)) {
    const std::lock_guard lock(comm->text_lock);
    if (!comm->error.empty()) last_error = comm->error;
  }
  return last_error.c_str();
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (const cudaError_t wanted = standin::count_call("ncclCommInitRankConfig"); wanted != cudaSuccess)
    return fails(static_cast<ncclResult_t>(wanted), "ncclCommInitRankConfig fails, as STANDIN_FAIL wants");
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size)
    return fails(ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(size));
  if (!config || config->magic != 0xcafebeef || config->blocking != 0)
    return fails(ncclInvalidArgument, "only communicators that do not block are here");
  if (std::strncmp(id.internal, "/standin-nccl-", 14) != 0)
    return fails(ncclInvalidArgument, "the id is not of ncclGetUniqueId");
  const auto comm = std::make_shared<Communicator>();
  comm->file = id.internal;
  comm->size = size;
  comm->rank = rank;
  comm->device = standin::current_device();
  comm->gpu = standin::physical_device(comm->device);
  *handle = reinterpret_cast<ncclComm_t>(comm.get());
  {
    const std::lock_guard lock(alive_lock);
    alive()[*handle] = comm;
  }
  std::thread(join, comm).detach();
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  const Use comm(handle, "ncclCommGetAsyncError");
  if (comm.result() == ncclSuccess) *state = comm->state;
  return comm.result();
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const Owned comm = find(handle);
  if (!comm) return fails(ncclInvalidArgument, "ncclCommAbort: no such communicator, or it is gone");
  comm->aborted = true;
  const std::lock_guard lock(alive_lock);
  alive().erase(handle);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const Use comm(handle, "ncclCommFinalize");
  if (comm.result() != ncclSuccess) return comm.result();
  if (comm->state != ncclSuccess || comm->finalized.exchange(true))
    return fails(ncclInvalidUsage, "ncclCommFinalize: in progress, failed, or finalized already");
  comm->state = ncclInProgress;
  std::thread([owned = *comm] {
    while (owned->outstanding > 0 && !owned->aborted) nap();
    ++owned->shared->left;
    while (owned->shared->left < owned->size && !owned->aborted) nap();
    if (!owned->aborted) owned->state = ncclSuccess;
  }).detach();
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  const Use comm(handle, "ncclCommDestroy");
  if (comm.result() != ncclSuccess) return comm.result();
  if (!comm->finalized || comm->state != ncclSuccess)
    return fails(ncclInvalidUsage, "ncclCommDestroy: finalize it and wait first");
  const std::lock_guard lock(alive_lock);
  alive().erase(handle);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return fails(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--depth > 0) return ncclSuccess;
  const std::vector<Posted> group = std::exchange(posted, {});
  standin::counts::add(standin::counts::Kind::Wait, "a group of NCCL");
  if (const ncclResult_t error = std::exchange(group_error, ncclSuccess); error != ncclSuccess) return error;
  std::vector<std::pair<Owned, std::vector<Operation>>> parts;  // in the order of their first operations
  for (const Posted& one : group) {
    auto at =
        std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return part.first == one.comm; });
    if (at == parts.end()) at = parts.insert(parts.end(), {one.comm, {}});
    at->second.push_back(one.op);
  }
  bool working = false;
  for (const auto& [comm, ops] : parts) {
    start(comm, ops);
    working |= comm->state == ncclInProgress;
  }
  return working ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclSend(const void* memory, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post(true, memory, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* memory, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post(false, memory, count, type, peer, comm, stream);
}
}
