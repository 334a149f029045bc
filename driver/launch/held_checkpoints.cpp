#include "driver/launch/held_checkpoints.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "driver/flags/compute_specs.h"
#include "driver/launch/host_launch.h"
#include "driver/launch/host_results.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr int kGatherMs = 200;
constexpr std::chrono::seconds kSilencePatience{30};  // with hosts that send nothing

/// Whether `resume` means the newest checkpoint of the job's own folder.
bool goes_on_here(const JobSpec& job) {
  const std::string* resume = job.find("resume");
  std::error_code ignored;
  if (!resume || job.hosts.entries.empty() || !rounds_in(job.output_dir).empty()) return false;
  return *resume == kResumeAuto || fs::equivalent(*resume, job.output_dir, ignored) ||
         fs::equivalent(*resume, fs::path(job.output_dir) / run_files::kCheckpoints, ignored);
}

/// Checkpoints of one folder.
struct GatheredFolder {
  const char *prefix, *folder, *name;
  int keeps;  ///< the newest ones; 0: all
};
constexpr GatheredFolder kGathered[] = {{"", run_files::kCheckpoints, "checkpoint", 0},
                                        {kBestPrefix, run_files::kBest, "best checkpoint", 1}};

std::vector<HeldCheckpoint> held_of(const HostConnection& host, const GatheredFolder& kind) {
  std::vector<HeldCheckpoint> held = host.held();
  std::erase_if(held, [&](const HeldCheckpoint& one) { return one.prefix != kind.prefix; });
  return held;
}

/// Takes what hosts send that hold parts of an earlier run.
class Gathering final : public HostEvents {
 public:
  Gathering(const JobSpec& job, std::vector<std::unique_ptr<HostConnection>>& hosts,
            const SignalGuard& signals, Clock& clock)
      : hosts_(hosts),
        signals_(signals),
        clock_(clock),
        results_({.folder = job.output_dir,
                  .ranks = ranks_of_each_host(job),
                  .loss_rank = job.loss_rank,
                  .keeps_all = true}) {}

  /// Gathers the newest of the `manifests` that comes whole. What does not come is warned of.
  void gather(const GatheredFolder& kind, const fs::path& folder, const std::vector<std::string>& manifests) {
    std::vector<HostConnection*> holders;
    for (const auto& host : hosts_)
      if (!held_of(*host, kind).empty()) holders.push_back(host.get());
    prefix_ = kind.prefix;
    collector_.emplace(CheckpointCollector::Options{
        .folder = folder, .num_hosts = static_cast<int>(holders.size()), .keep = {.newest = kind.keeps}});
    has_whole_ = false;
    for (const std::string& manifest : manifests) {
      if (has_whole_ || interrupt_ != 0) return;
      collector_->want(manifest);
      const std::optional<std::string> step = collector_->next();
      if (!step) continue;
      for (HostConnection* host : holders)
        if (host->is_open()) host->collect(prefix_ + *step);
      if (!run([&] { return !collector_->is_busy(); })) collector_->give_up("the hosts send no more");
      if (has_whole_)
        log_info("gathered the " + std::string(kind.name) +
                 " that the hosts held: step=" + std::to_string(parse_manifest(manifest, "")->step));
    }
  }

  void gather_logs(const fs::path& folder, const std::vector<std::vector<int>>& ranks) {
    for (const auto& host : hosts_) {
      if (!host->is_open() || host->shares_output()) continue;
      std::vector<std::pair<std::string, std::string>> last_lines;
      for (const std::string& name : log_names(ranks.at(static_cast<std::size_t>(host->job().host))))
        last_lines.emplace_back(name, last_whole_line(folder / name));
      host->collect_logs(last_lines);
    }
    run([&] {
      return std::ranges::all_of(hosts_, [](const auto& host) {
        return host->has_ended() || host->shares_output() || !host->is_open();
      });
    });
  }

  int interrupt() const { return interrupt_; }

 private:
  /// Until `done`, a signal, or a while in which nothing comes. Returns whether it is done.
  template <class Done>
  bool run(const Done& done) {
    std::int64_t seen = -1;
    TimePoint until{};
    while (!done() && interrupt_ == 0) {
      std::int64_t bytes = 0;
      std::vector<pollfd> polled{{signals_.descriptor(), POLLIN, 0}};
      for (const auto& host : hosts_) {
        bytes += host->bytes_received();
        host->descriptors(polled);
      }
      if (std::exchange(seen, bytes) != bytes) until = clock_.now() + kSilencePatience;
      if (clock_.now() >= until) return false;
      ::poll(polled.data(), polled.size(), kGatherMs);
      if (const std::vector<int> came = signals_.read(); !came.empty()) interrupt_ = came.front();
      for (const auto& host : hosts_)
        if (host->is_open() && !host->read(*this) && collector_) collector_->lost(host->job().host);
    }
    return done();
  }

  // ---- HostEvents
  void wrote(int, bool, std::string_view) override {}
  void ended(int, pid_t, const ChildEnd&, bool) override {}
  void sent(int, const std::string&, std::string_view) override {}
  void saved(int, const std::string&, std::string_view) override {}
  void grown(int host, const std::string& path, std::int64_t offset, std::string_view bytes) override {
    results_.grown(host, path, offset, bytes);
  }
  void collected(int host, const std::string& path, std::string_view piece) override {
    if (path.starts_with(prefix_))
      has_whole_ = collector_->take(host, path.substr(prefix_.size()), piece) || has_whole_;
  }

  std::vector<std::unique_ptr<HostConnection>>& hosts_;
  const SignalGuard& signals_;
  Clock& clock_;
  std::string prefix_;
  std::optional<CheckpointCollector> collector_;
  HostResults results_;
  bool has_whole_ = false;
  int interrupt_ = 0;
};

}  // namespace

std::vector<std::string> whole_checkpoints(const std::vector<std::vector<HeldCheckpoint>>& hosts,
                                           const std::string& run, std::int64_t after) {
  struct Found {
    ManifestHead head;
    std::string manifest;
    std::set<std::string> files;
  };
  std::map<std::string, Found> by_seal;
  for (const std::vector<HeldCheckpoint>& host : hosts) {
    for (const HeldCheckpoint& held : host) {
      Result<ManifestHead> head = parse_manifest(held.manifest, "a host's manifest");
      if (!head || head->run != run || head->step <= after) continue;
      Found& found = by_seal[head->sha256];
      found.files.insert(held.files.begin(), held.files.end());
      found.manifest = held.manifest;
      found.head = *std::move(head);
    }
  }
  std::vector<const Found*> whole;
  for (const auto& [seal, found] : by_seal)
    if (std::ranges::all_of(found.head.shards,
                            [&](const ShardEntry& shard) { return found.files.contains(shard.file); }))
      whole.push_back(&found);
  std::ranges::sort(whole, std::greater<>(), [](const Found* one) { return one->head.step; });
  std::vector<std::string> manifests;
  for (const Found* one : whole) manifests.push_back(one->manifest);
  return manifests;
}

std::string run_in(const fs::path& output_dir) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(output_dir, ignored)) {
    if (!run_files::kSteps.rank_of(entry.path().filename().string()) || !entry.is_regular_file(ignored))
      continue;
    std::string line;
    std::ifstream file(entry.path());
    if (!std::getline(file, line)) continue;
    const Result<Json> json = parse_json(line, entry.path().string());
    const Json* run = json && json->is_object() ? json->find("run") : nullptr;
    if (run && run->is_string()) return run->as_string();
  }
  const Result<Latest> latest = read_latest(output_dir / run_files::kCheckpoints);
  return latest ? latest->run : "";
}

Result<int> gather_held(const JobSpec& job, Survivors& reached, const SignalGuard& signals, Clock& clock) {
  const std::string run = goes_on_here(job) ? run_in(job.output_dir) : "";
  if (run.empty()) return 0;
  Result<HostsToAsk> asked = hosts_to_ask(job, reached);
  if (!asked) return asked.problems();
  std::vector<std::unique_ptr<HostConnection>>& hosts = asked->connections;
  const auto keep = [&] {
    for (auto& host : hosts)
      if (host->is_idle()) reached.hosts.push_back(std::move(host));
  };
  const Result<int> ready = prepare_hosts(hosts, asked->deadline, signals, clock);
  std::error_code ignored;
  fs::remove(asked->probe, ignored);
  if (!ready) {
    std::vector<std::size_t> unready;
    for (std::size_t h = 0; h < hosts.size(); ++h)
      if (!hosts[h]->is_idle()) unready.push_back(h);
    keep();
    throw UnreadyHosts(to_string(ready.problems()), std::move(unready));
  }
  if (*ready != 0) return *ready;
  Gathering gathering(job, hosts, signals, clock);
  for (const GatheredFolder& kind : kGathered) {
    const fs::path folder = fs::path(job.output_dir) / kind.folder;
    const Result<Latest> latest = read_latest(folder);
    const std::int64_t newest =
        latest && latest->run == run ? number_of<std::int64_t>(latest->step.substr(5)).value_or(-1) : -1;
    std::vector<std::vector<HeldCheckpoint>> held;
    for (const auto& host : hosts) held.push_back(held_of(*host, kind));
    gathering.gather(kind, folder, whole_checkpoints(held, run, newest));
  }
  if (gathering.interrupt() == 0) gathering.gather_logs(job.output_dir, ranks_of_each_host(job));
  keep();
  return gathering.interrupt();
}

}  // namespace millrace
