#include "experiments/io/capture/samplers.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <iterator>
#include <utility>

#include "experiments/io/capture/file_event.h"
#include "runtime/base/text.h"

extern char** environ;

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * kNsPerSecond + now.tv_nsec;
}

std::tm local_time(std::int64_t utc_ns) {
  const std::time_t seconds = utc_ns / kNsPerSecond;
  std::tm local{};
  localtime_r(&seconds, &local);
  return local;
}

std::string text_of(const std::tm& local, const char* pattern) {
  char text[64];
  return {text, std::strftime(text, sizeof text, pattern, &local)};
}

/// nvidia-smi writes its samples itself; 0: it is not there.
int start_pmon(const fs::path& file) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  std::string words[] = {"nvidia-smi", "pmon", "-s", "um", "-o", "DT"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : 0;
}

}  // namespace

std::int64_t utc_ahead_ns() {
  static const std::int64_t ahead = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
  return ahead;
}

std::int64_t steady_utc_ns() {
  return clock_ns(CLOCK_MONOTONIC) + utc_ahead_ns();
}

std::int64_t clock_set_by_ns() {
  return clock_ns(CLOCK_REALTIME) - steady_utc_ns();
}

Samplers::Samplers(const fs::path& folder)
    : cpu_file_(folder / "cpu.out"),
      disk_file_(folder / "iostat.json"),
      align_file_(folder / "trace_time_align.out"),
      process_file_(folder / "processes.csv"),
      disks_at_ns_(clock_ns(CLOCK_MONOTONIC)) {
  if (const auto cpu = noted(kernel_.cpu(), no_cpu_)) cpu_before_ = {cpu->front()};
  if (auto disks = noted(kernel_.disks(), no_disks_)) disks_before_ = *std::move(disks);
  utsname machine{};
  uname(&machine);
  const std::tm now = local_time(steady_utc_ns());
  const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  put(cpu_file_, printed("Linux %s (%s) \t%s\t_%s_\t(%ld CPU)\n", machine.release, machine.nodename,
                         text_of(now, "%m/%d/%Y").c_str(), machine.machine, cpus));
  put(cpu_file_, text_of(now, "%H:%M:%S") +
                     "  CPU    %usr   %nice    %sys %iowait    %irq   %soft  %steal  %guest  %gnice   %idle");
  put(disk_file_,
      printed(
          "{\"sysstat\": {\"hosts\": [{\"nodename\": \"%s\", \"sysname\": \"Linux\", \"release\": \"%s\", "
          "\"machine\": \"%s\", \"number-of-cpus\": %ld, \"date\": \"%s\", \"statistics\": [",
          machine.nodename, machine.release, machine.machine, cpus, text_of(now, "%Y-%m-%d").c_str()));
  put(align_file_, "Attaching 1 probes...\nTIMESTAMP       TIME");
  put(process_file_,
      "monotonic_ns,pid,command,cpu_seconds,resident_bytes,minor_faults,major_faults,disk_read_bytes,"
      "disk_written_bytes");
  pmon_ = start_pmon(folder / "gpu.out");
  if (pmon_ > 0) {
    // A tool without its driver ends at once.
    int status = 0;
    const timespec moment{0, 200'000'000};
    nanosleep(&moment, nullptr);
    if (waitpid(pmon_, &status, WNOHANG) == pmon_) pmon_ = 0;
  }
  if (pmon_ > 0) return;
  gpu_file_ = LineFile(folder / "gpu.out");
  put(gpu_file_, "#Date       Time        gpu        pid  type    sm   mem   enc   dec    fb   command");
  put(gpu_file_, "#YYYYMMDD   HH:MM:SS    Idx          #   C/G     %     %     %     %    MB   name");
  sample_no_gpu(now);
}

template <class Counts>
std::optional<Counts> Samplers::noted(const Result<Counts>& counts, Gap& gap) {
  if (counts) return *counts;
  ++gap.samples;
  gap.because = to_string(counts.problems().front());
  return std::nullopt;
}

std::vector<std::string> Samplers::gaps() const {
  std::vector<std::string> all;
  for (const auto& [gap, what] : {std::pair(&no_cpu_, "CPU"), {&no_disks_, "disks"}})
    if (gap->samples > 0)
      all.push_back("no " + std::string(what) + " in " + std::to_string(gap->samples) +
                    " samples: " + gap->because);
  return all;
}

Samplers::~Samplers() {
  finish();
}

void Samplers::put(LineFile& file, const std::string& line) {
  if (!file.write_line(line)) ++lost_;
}

void Samplers::align() {
  // A tenth of a second at least: shorter ones may have no tick of the cores' clocks.
  const std::int64_t utc = steady_utc_ns(),
                     change = ((utc + kNsPerSecond / 10) / kNsPerSecond + 1) * kNsPerSecond;
  const timespec wait{static_cast<std::time_t>((change - utc) / kNsPerSecond), (change - utc) % kNsPerSecond};
  nanosleep(&wait, nullptr);
  // Computed, not read off the clocks: on a busy machine the sleep may end long after the change.
  for (const std::int64_t at : {change - 1, change})
    put(align_file_, std::to_string(at - utc_ahead_ns()) + "  " + text_of(local_time(at), "%H:%M:%S"));
}

void Samplers::sample(const std::set<std::uint32_t>& processes) {
  const std::tm local = local_time(steady_utc_ns());
  sample_cpu(local);
  sample_disks(local);
  if (pmon_ == 0) sample_no_gpu(local);
  sample_processes(processes);
  ++samples_;
}

void Samplers::sample_cpu(const std::tm& local) {
  const auto ticks = noted(kernel_.cpu(), no_cpu_);
  if (!ticks) return;
  const CpuTicks now = ticks->front(), before = cpu_before_.empty() ? now : cpu_before_.front();
  std::array<double, std::size(CpuTicks{}.of)> part{};
  double total = 0;
  for (std::size_t k = 0; k < part.size(); ++k) {
    part[k] = now.of[k] >= before.of[k] ? static_cast<double>(now.of[k] - before.of[k]) : 0;
    total += part[k];
  }
  cpu_before_ = {now};
  if (total <= 0) return;  // no tick since the last row: zeros would say that the cores did nothing at all
  std::string row = text_of(local, "%H:%M:%S") + "  all ";
  // mpstat's order: usr nice sys iowait irq soft steal guest gnice idle.
  for (std::size_t k : {0, 1, 2, 4, 5, 6, 7, 8, 9, 3}) row += printed(" %7.2f", 100 * part[k] / total);
  put(cpu_file_, row);
}

void Samplers::sample_disks(const std::tm& local) {
  const auto counts_now = noted(kernel_.disks(), no_disks_);
  if (!counts_now) return;
  const std::map<std::string, DiskCounts>& now = *counts_now;
  const std::int64_t at = clock_ns(CLOCK_MONOTONIC);
  const double seconds = std::max(static_cast<double>(at - disks_at_ns_) / 1e9, 1e-3);
  std::string rows;
  for (const auto& [name, counts] : now) {
    const auto before = disks_before_.find(name);
    if (before == disks_before_.end()) continue;
    const auto grown = [&after = counts, &earlier = before->second](std::uint64_t DiskCounts::*count) {
      return static_cast<double>(after.*count - earlier.*count);
    };
    const double reads = grown(&DiskCounts::reads), writes = grown(&DiskCounts::writes);
    constexpr double kMegabytesOfSector = 512.0 / (1 << 20);
    rows += printed(
        "%s{\"disk_device\": \"%s\", \"r/s\": %.2f, \"w/s\": %.2f, \"rMB/s\": %.2f, \"wMB/s\": %.2f, "
        "\"r_await\": "
        "%.2f, \"w_await\": %.2f, \"aqu-sz\": %.2f, \"util\": %.2f}",
        rows.empty() ? "" : ", ", name.c_str(), reads / seconds, writes / seconds,
        grown(&DiskCounts::read_sectors) * kMegabytesOfSector / seconds,
        grown(&DiskCounts::written_sectors) * kMegabytesOfSector / seconds,
        reads > 0 ? grown(&DiskCounts::read_ms) / reads : 0,
        writes > 0 ? grown(&DiskCounts::write_ms) / writes : 0,
        grown(&DiskCounts::in_flight_ms) / 1000 / seconds,
        std::min(100.0, grown(&DiskCounts::busy_ms) / 10 / seconds));
  }
  disks_before_ = now;
  disks_at_ns_ = at;
  put(disk_file_, std::string(std::exchange(has_disk_row_, true) ? "," : "") + "{\"timestamp\": \"" +
                      text_of(local, "%Y-%m-%d %I:%M:%S %p") + "\", \"disk\": [" + rows + "]}");
}

void Samplers::sample_no_gpu(const std::tm& local) {
  put(gpu_file_, " " + text_of(local, "%Y%m%d   %H:%M:%S") +
                     "      0          -     -     -     -     -     -     -   -");
}

void Samplers::sample_processes(const std::set<std::uint32_t>& processes) {
  const std::int64_t at = clock_ns(CLOCK_MONOTONIC);
  for (std::uint32_t process : processes) {
    const Result<ProcessCounts> counts = kernel_.process(std::to_string(process));
    if (!counts) continue;
    const Result<ProcessIo> io = kernel_.process_io(std::to_string(process));
    std::string name = escaped(counts->name);
    std::replace(name.begin(), name.end(), ',', '_');
    const auto number = [](std::uint64_t value) { return std::to_string(value); };
    put(process_file_, std::to_string(at) + "," + number(process) + "," + name + "," +
                           printed("%.2f", counts->cpu_s) + "," + number(counts->resident) + "," +
                           number(counts->minor_faults) + "," + number(counts->major_faults) + "," +
                           (io ? number(io->read_from_disk) + "," + number(io->written_to_disk) : ","));
  }
}

void Samplers::finish() {
  if (finished_) return;
  finished_ = true;
  put(disk_file_, "]}]}}");
  if (pmon_ <= 0) return;
  kill(pmon_, SIGTERM);
  waitpid(pmon_, nullptr, 0);
}

}  // namespace millrace
