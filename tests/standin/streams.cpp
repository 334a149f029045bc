// Streams and events. An idle stream does its work at once, on the caller's thread. Work that must wait, and
// all work when STANDIN_LATE is set, goes to a thread of the stream.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "counts.h"
#include "entry.h"
#include "races.h"
#include "standin.h"

namespace standin {
namespace {

using Time = std::chrono::steady_clock::time_point;

struct Stream {
  int device = 0;
  int number = 0;
  std::deque<Work> queue;
  bool running = false;
  bool has_thread = false;
  bool closed = false;
  int asked = 0;  ///< how many wait for it: then nothing is late
  std::minstd_rand random;
};

/// What an event was recorded behind.
struct Moment {
  std::shared_ptr<Stream> stream;
  bool done = false;
  Time time;
  Clock clock;
};

struct Event {
  int device = 0;
  bool timed = true;
  std::shared_ptr<Moment> last;
};

/// Used until the process ends, by threads that nobody joins.
struct Everything {
  std::mutex lock;
  std::condition_variable changed;
  std::map<int, std::shared_ptr<Stream>> defaults;  // by GPU
  std::map<cudaStream_t, std::shared_ptr<Stream>> streams;
  std::set<cudaEvent_t> events;
  int made = 0;
};
Everything& all() {
  static auto* const one = new Everything;
  return *one;
}

std::shared_ptr<Stream> make_stream(int device) {
  auto stream = std::make_shared<Stream>();
  stream->device = device;
  stream->number = all().made++;
  stream->random.seed(
      static_cast<unsigned>(settings().seed * 7919 + static_cast<std::uint64_t>(stream->number) + 1));
  return stream;
}

/// Null if there is no such stream. The lock is held. `device` is that of a default stream.
std::shared_ptr<Stream> find(cudaStream_t handle, int device = current_device()) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    auto& stream = all().defaults[device];
    if (!stream) stream = make_stream(device);
    return stream;
  }
  const auto at = all().streams.find(handle);
  return at == all().streams.end() ? nullptr : at->second;
}

bool is_idle(const Stream& stream) {
  return stream.queue.empty() && !stream.running;
}

/// Mostly short, now and then long enough for the host to go on far.
std::chrono::microseconds lateness(Stream& stream) {
  const unsigned drawn = static_cast<unsigned>(stream.random());
  return std::chrono::microseconds(drawn % 8 == 0 ? drawn % 20000 : drawn % 500);
}

void work_off(const std::shared_ptr<Stream>& stream) {
  std::unique_lock lock(all().lock);
  for (;;) {
    all().changed.wait(lock, [&] { return !stream->queue.empty() || stream->closed; });
    if (stream->queue.empty()) return;
    if (settings().late) all().changed.wait_for(lock, lateness(*stream), [&] { return stream->asked > 0; });
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->running = true;
    lock.unlock();
    work.run();
    work = {};
    lock.lock();
    stream->running = false;
    all().changed.notify_all();
  }
}

/// Waits until `is_done`, and makes the stream hurry.
template <class IsDone>
void wait_for(const std::shared_ptr<Stream>& stream, std::unique_lock<std::mutex>& lock, IsDone&& is_done) {
  if (is_done()) return;
  ++stream->asked;
  all().changed.notify_all();
  all().changed.wait(lock, is_done);
  --stream->asked;
}

cudaError_t unknown_stream(const char* who) {
  say(std::string(who) + ": no such stream");
  return failed(cudaErrorInvalidResourceHandle);
}

/// Gives to a stream that was found. The lock is held, and not held while work runs.
void give_to(const std::shared_ptr<Stream>& stream, Work work, std::unique_lock<std::mutex>& lock) {
  if (!work.waits && !settings().late && is_idle(*stream)) {
    lock.unlock();
    work.run();
    lock.lock();
    return;
  }
  stream->queue.push_back(std::move(work));
  if (!stream->has_thread) {
    stream->has_thread = true;
    std::thread(work_off, stream).detach();
  }
  all().changed.notify_all();
}

}  // namespace

cudaError_t give(cudaStream_t handle, Work work) {
  std::unique_lock lock(all().lock);
  const auto stream = find(handle);
  if (!stream) return unknown_stream(work.name.c_str());
  races::launch(stream->number, work.name, work.accesses);
  give_to(stream, std::move(work), lock);
  return cudaSuccess;
}

void note(cudaStream_t handle, const std::string& name, const std::vector<Access>& accesses) {
  if (!settings().races) return;
  const std::lock_guard lock(all().lock);
  if (const auto stream = find(handle)) races::launch(stream->number, name, accesses);
}

void note_given_out(const Access& memory) {
  races::give_out(memory);
}

void note_taken_back(int device, cudaStream_t handle, const Access& memory) {
  if (!settings().races) return;
  const std::lock_guard lock(all().lock);
  if (const auto stream = find(handle, device)) races::take_back(stream->number, memory);
}

void drain(cudaStream_t handle) {
  std::unique_lock lock(all().lock);
  const auto stream = find(handle);
  if (!stream) return;
  wait_for(stream, lock, [&] { return is_idle(*stream); });
}

bool is_free(cudaStream_t handle) {
  if (settings().late) return false;
  const std::lock_guard lock(all().lock);
  const auto stream = find(handle);
  return stream && is_idle(*stream);
}

int device_of(cudaStream_t handle) {
  const std::lock_guard lock(all().lock);
  const auto stream = find(handle);
  return stream ? stream->device : -1;
}

void drain_device() {
  std::unique_lock lock(all().lock);
  std::vector<std::shared_ptr<Stream>> here;
  for (const auto& [device, stream] : all().defaults) here.push_back(stream);
  for (const auto& [handle, stream] : all().streams) here.push_back(stream);
  for (const auto& stream : here) {
    if (stream->device != current_device()) continue;
    wait_for(stream, lock, [&] { return is_idle(*stream); });
    races::host_joins(stream->number);
  }
}

void load_kernel(const std::string& name) {
  if (!settings().lazy) return;
  static std::mutex lock;
  static std::set<std::pair<int, std::string>> loaded;  // by GPU
  {
    const std::lock_guard guard(lock);
    if (!loaded.insert({current_device(), name}).second) return;
  }
  drain_device();
}

}  // namespace standin

using namespace standin;

namespace {

Event* find_event(cudaEvent_t handle) {
  return all().events.contains(handle) ? reinterpret_cast<Event*>(handle) : nullptr;
}

cudaError_t unknown_event(const char* who) {
  say(std::string(who) + ": no such event");
  return failed(cudaErrorInvalidResourceHandle);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int) {
  STANDIN_ENTER("cudaStreamCreateWithPriority");
  // One that waits for the default stream: LibTorch makes none.
  if (flags != cudaStreamNonBlocking) return missing("cudaStreamCreate without cudaStreamNonBlocking");
  const std::lock_guard lock(all().lock);
  const auto stream = make_stream(current_device());
  *handle = reinterpret_cast<cudaStream_t>(stream.get());
  all().streams[*handle] = stream;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const std::lock_guard lock(all().lock);
  const auto at = all().streams.find(handle);
  if (at == all().streams.end()) return unknown_stream("cudaStreamDestroy");
  at->second->closed = true;  // what it was given it still does
  all().streams.erase(at);
  all().changed.notify_all();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  STANDIN_ENTER("cudaStreamSynchronize");
  counts::add(counts::Kind::Wait, "cudaStreamSynchronize");
  std::unique_lock lock(all().lock);
  const auto stream = find(handle);
  if (!stream) return unknown_stream("cudaStreamSynchronize");
  wait_for(stream, lock, [&] { return is_idle(*stream); });
  races::host_joins(stream->number);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  STANDIN_ENTER("cudaStreamQuery");
  const std::lock_guard lock(all().lock);
  const auto stream = find(handle);
  if (!stream) return unknown_stream("cudaStreamQuery");
  if (!is_idle(*stream)) return failed(cudaErrorNotReady);
  races::host_joins(stream->number);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  STANDIN_ENTER("cudaDeviceSynchronize");
  counts::add(counts::Kind::Wait, "cudaDeviceSynchronize");
  drain_device();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  counts::add(counts::Kind::Event, "cudaStreamWaitEvent");
  std::unique_lock lock(all().lock);
  const auto stream = find(handle);
  const Event* event = find_event(event_handle);
  if (!stream) return unknown_stream("cudaStreamWaitEvent");
  if (!event) return unknown_event("cudaStreamWaitEvent");
  const auto moment = event->last;
  if (!moment) return cudaSuccess;
  races::stream_joins(stream->number, moment->clock);
  if (moment->done) return cudaSuccess;
  give_to(stream,
          {.name = "wait for an event",
           .run =
               [moment] {
                 std::unique_lock inner(all().lock);
                 wait_for(moment->stream, inner, [&] { return moment->done; });
               },
           .waits = true},
          lock);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return give(handle, {.name = "a function of the host", .run = [=] { function(data); }});
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  STANDIN_ENTER("cudaEventCreateWithFlags");
  counts::add(counts::Kind::Event, "cudaEventCreateWithFlags");
  *handle = reinterpret_cast<cudaEvent_t>(
      new Event{.device = current_device(), .timed = (flags & cudaEventDisableTiming) == 0});
  const std::lock_guard lock(all().lock);
  all().events.insert(*handle);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const std::lock_guard lock(all().lock);
  if (all().events.erase(handle) == 0) return unknown_event("cudaEventDestroy");
  delete reinterpret_cast<Event*>(handle);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  STANDIN_ENTER("cudaEventRecord");
  counts::add(counts::Kind::Event, "cudaEventRecord");
  std::unique_lock lock(all().lock);
  Event* event = find_event(handle);
  const auto stream = find(stream_handle);
  if (!event) return unknown_event("cudaEventRecord");
  if (!stream) return unknown_stream("cudaEventRecord");
  if (event->device != stream->device) {
    say("cudaEventRecord: the event is of another GPU than the stream");
    return failed(cudaErrorInvalidResourceHandle);
  }
  const auto moment = std::make_shared<Moment>();
  moment->stream = stream;
  moment->clock = races::clock_of(stream->number);
  event->last = moment;
  give_to(stream,
          {.name = "record an event",
           .run =
               [moment] {
                 const std::lock_guard inner(all().lock);
                 moment->time = std::chrono::steady_clock::now();
                 moment->done = true;
                 all().changed.notify_all();
               }},
          lock);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  STANDIN_ENTER("cudaEventQuery");
  const std::lock_guard lock(all().lock);
  const Event* event = find_event(handle);
  if (!event) return unknown_event("cudaEventQuery");
  if (!event->last) return cudaSuccess;
  if (!event->last->done) return failed(cudaErrorNotReady);
  races::host_joins(event->last->clock);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  STANDIN_ENTER("cudaEventSynchronize");
  counts::add(counts::Kind::Wait, "cudaEventSynchronize");
  std::unique_lock lock(all().lock);
  const Event* event = find_event(handle);
  if (!event) return unknown_event("cudaEventSynchronize");
  const auto moment = event->last;
  if (!moment) return cudaSuccess;
  wait_for(moment->stream, lock, [&] { return moment->done; });
  races::host_joins(moment->clock);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const std::lock_guard lock(all().lock);
  const Event *first = find_event(from), *second = find_event(to);
  if (!first || !second) return unknown_event("cudaEventElapsedTime");
  if (!first->timed || !second->timed || !first->last || !second->last)
    return failed(cudaErrorInvalidResourceHandle);
  if (!first->last->done || !second->last->done) return failed(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(second->last->time - first->last->time).count();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  STANDIN_ENTER("cudaMemcpyAsync");
  counts::add_copy(to, from, bytes);
  Work work{.name = "cudaMemcpyAsync", .accesses = {{from, bytes, false}, {to, bytes, true}}, .run = [=] {
              std::memmove(to, from, bytes);
            }};
  const bool pageable = block_of(to).bytes == 0 || block_of(from).bytes == 0;
  const cudaError_t given = give(stream, std::move(work));
  if (pageable && given == cudaSuccess) return cudaStreamSynchronize(stream);
  return given;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t given = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return given == cudaSuccess ? cudaStreamSynchronize(nullptr) : given;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  counts::add(counts::Kind::Operator, "cudaMemsetAsync", bytes);
  return give(stream, {.name = "cudaMemsetAsync", .accesses = {{to, bytes, true}}, .run = [=] {
                         std::memset(to, value, bytes);
                       }});
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}
}
