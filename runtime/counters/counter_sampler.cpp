#include "runtime/counters/counter_sampler.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/cpu_time.h"
#include "runtime/base/log.h"
#include "runtime/base/run_folder.h"
#include "runtime/counters/nvml.h"
#include "runtime/counters/page_cache.h"

namespace millrace {
namespace {

constexpr std::chrono::milliseconds kCacheBudget{500};  // for each of the two checks of the page cache
constexpr int kSector = 512;                            // bytes

Json number(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}

double seconds_of(clockid_t clock) {
  return Seconds(cpu_time(clock)).count();
}

Json as_json(const DiskCounts& disk) {
  return Json::object({{"reads", number(disk.reads)},
                       {"read_bytes", number(disk.read_sectors * kSector)},
                       {"read_ms", number(disk.read_ms)},
                       {"writes", number(disk.writes)},
                       {"written_bytes", number(disk.written_sectors * kSector)},
                       {"write_ms", number(disk.write_ms)},
                       {"busy_ms", number(disk.busy_ms)},
                       {"in_flight_ms", number(disk.in_flight_ms)}});
}

Json as_json(const NetworkCounts& network) {
  return Json::object({{"received_bytes", number(network.received_bytes)},
                       {"received_packets", number(network.received_packets)},
                       {"sent_bytes", number(network.sent_bytes)},
                       {"sent_packets", number(network.sent_packets)},
                       {"errors", number(network.errors)}});
}

/// Returns the seconds that each core was busy, and that it waited for a disk.
Json as_json(const std::vector<CpuTicks>& all) {
  Json busy = Json::array(), waiting = Json::array();
  for (std::size_t core = 1; core < all.size(); ++core) {
    std::uint64_t sum = 0;
    for (const std::uint64_t ticks : all[core].of) sum += ticks;
    const std::uint64_t io = all[core].of[CpuTicks::IoWait];
    busy.push_back(KernelCounts::seconds(sum - io - all[core].of[CpuTicks::Idle]));
    waiting.push_back(KernelCounts::seconds(io));
  }
  return Json::object({{"busy_s", std::move(busy)}, {"io_wait_s", std::move(waiting)}});
}

}  // namespace

CounterSampler::CounterSampler(const std::filesystem::path& file, const CounterHeader& header,
                               CounterOptions options, bool append)
    : file_(file, append), options_(std::move(options)) {
  put(Json::object({{"format", "millrace-counters-1"},
                    {"run", header.run},
                    {"rank", header.rank},
                    {"ranks", header.ranks},
                    {"host", host_name()},
                    {"pid", static_cast<std::int64_t>(::getpid())},
                    {"interval_s", std::chrono::duration<double>(options_.interval).count()},
                    {"of_host", options_.host},
                    {"clock_ns", header.clock_ns},
                    {"unix_ns", header.unix_ns},
                    {"clock_offset_ns", header.clock_offset_ns}}));
  thread_ = std::jthread([this](const std::stop_token& ended) {
    try {
      run(ended);
    } catch (const std::exception& error) {
      log_warning(std::string("counters end here: ") + error.what());
    }
  });
}

CounterSampler::~CounterSampler() {
  finish();
}

void CounterSampler::finish() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void CounterSampler::run(const std::stop_token& ended) {
  auto next = std::chrono::steady_clock::now();
  sample();
  look_at_cache("start");
  for (;;) {
    next += options_.interval;
    for (const auto now = std::chrono::steady_clock::now(); next <= now; next += options_.interval)
      ++skipped_;
    std::unique_lock lock(mutex_);
    wake_.wait_until(lock, ended, next, [] { return false; });
    if (ended.stop_requested()) break;
    sample();
  }
  sample();
  look_at_cache("end");
  Json missing = Json::object({});
  for (const auto& [what, count] : missed_)
    missing[what] = Json::object({{"samples", count}, {"because", reasons_[what]}});
  put(Json::object({{"end", true},
                    {"samples", samples_},
                    {"skipped", skipped_},
                    {"lost_lines", lost_},
                    {"missing", missing},
                    {"own_cpu_s", seconds_of(CLOCK_THREAD_CPUTIME_ID)}}));
}

void CounterSampler::put(const Json& line) {
  const Status written = file_.write_line(line.dump());
  if (!written && lost_++ == 0)
    log_warning(to_string(written.problems()) + "; training goes on without this line of its counters");
}

void CounterSampler::miss(Json& missing, const std::string& what, const Problems& problems) {
  missing.push_back(what);
  if (missed_[what]++ == 0) reasons_[what] = problems.front().where + " " + problems.front().what;
}

void CounterSampler::sample() {
  const std::int64_t clock_ns = steady_clock().now().time_since_epoch().count();
  Json line = Json::object({{"clock_ns", clock_ns}}), missing = Json::array();
  Json own = Json::object({{"cpu_s", seconds_of(CLOCK_PROCESS_CPUTIME_ID)}});
  if (const Result<ProcessCounts> counts = options_.kernel.process("self"); counts) {
    own["threads"] = number(counts->threads);
    own["resident_bytes"] = number(counts->resident);
    own["minor_faults"] = number(counts->minor_faults);
    own["major_faults"] = number(counts->major_faults);
  } else {
    miss(missing, "process", counts.problems());
  }
  const std::uint64_t by_sampler = options_.kernel.bytes_read();
  if (const Result<ProcessIo> io = options_.kernel.process_io("self"); io) {
    own["read_by_calls_bytes"] = number(io->read_by_calls - std::min(by_sampler, io->read_by_calls));
    own["written_by_calls_bytes"] = number(io->written_by_calls);
    own["read_from_disk_bytes"] = number(io->read_from_disk);
    own["written_to_disk_bytes"] = number(io->written_to_disk);
  } else {
    miss(missing, "process_io", io.problems());
  }
  line["process"] = std::move(own);
  if (options_.host) add_host(line, missing);
  if (missing.size() > 0) line["missing"] = std::move(missing);
  put(line);
  ++samples_;
}

void CounterSampler::add_host(Json& line, Json& missing) {
  KernelCounts& kernel = options_.kernel;
  if (const Result<std::vector<CpuTicks>> cpu = kernel.cpu(); cpu)
    line["cores"] = as_json(*cpu);
  else
    miss(missing, "cores", cpu.problems());
  if (const Result<MemoryCounts> memory = kernel.memory(); memory)
    line["memory"] = Json::object({{"total_bytes", number(memory->total)},
                                   {"available_bytes", number(memory->available)},
                                   {"cached_bytes", number(memory->cached)},
                                   {"dirty_bytes", number(memory->dirty)}});
  else
    miss(missing, "memory", memory.problems());
  const auto add = [&](const char* name, const auto& counts) {
    if (!counts) return miss(missing, name, counts.problems());
    Json all = Json::object({});
    for (const auto& [device, of_device] : *counts) all[device] = as_json(of_device);
    line[name] = std::move(all);
  };
  add("disks", kernel.disks());
  add("networks", kernel.networks());
  Json gpu = Json::object({});
  for (const auto& [field, value] : nvml_fields()) gpu[field] = value;
  if (gpu.size() > 0) line["gpus"] = std::move(gpu);
}

void CounterSampler::look_at_cache(const char* when) {
  if (options_.data.empty() || !options_.host) return;
  const double begin = seconds_of(CLOCK_MONOTONIC);
  const CacheResidency found = cache_residency(options_.data, kCacheBudget);
  put(Json::object({{"cache", when},
                    {"files", found.files},
                    {"bytes", found.bytes},
                    {"resident_bytes", found.resident_bytes},
                    {"unreadable_files", found.unreadable},
                    {"whole", found.is_whole},
                    {"seconds", seconds_of(CLOCK_MONOTONIC) - begin}}));
}

}  // namespace millrace
