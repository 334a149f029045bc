#include "driver/launch/host_launch.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "data/files/data_kinds.h"
#include "driver/flags/compute_specs.h"
#include "driver/hosts/delivered_checkpoint.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/host_results.h"
#include "driver/launch/run_manifest.h"
#include "driver/queues/engine.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/flag.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/plan/plan.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

bool is_loopback(const HostEntry& host) {
  return host.name == "localhost" || host.name.starts_with("127.") || host.name == "::1";
}

/// Ranks of other hosts must reach the first host by its name.
Status check_meeting(const JobHosts& hosts) {
  const std::string& name = hosts.entries.front().name;
  if (!find_engine(hosts.on)->meets_by_name) return Ok{};
  if (!is_loopback(hosts.entries.front()) || std::ranges::all_of(hosts.entries, is_loopback)) return Ok{};
  return Problem{"hosts", name + " is the first host, and the others cannot reach it by that name",
                 "give its name or address in their network"};
}

/// The command that starts the agent on a host, from here.
Result<std::vector<std::string>> command_for(const JobSpec& job, const Engine& engine, const HostEntry& host,
                                             std::vector<std::string> agent, const std::string& folder) {
  if (!job.hosts.container.image.empty()) {
    const std::string* device = job.find("device");
    Result<std::vector<std::string>> inside =
        in_container(job.hosts.container, folder, device && *device == "cuda", std::move(agent));
    if (!inside) return inside;
    agent = *std::move(inside);
  }
  // No ssh is needed to get here.
  if (engine.through_shell && is_this_host(host)) return agent;
  return agent_command_line(engine, {.client = job.hosts.client.empty() ? engine.client : job.hosts.client,
                                     .host = host,
                                     .agent = std::move(agent)});
}

/// Tells what of the hosts does not fit the plan, and adds what they are to the run's manifest.
void look_at_machines(const JobSpec& job, const std::vector<const HostConnection*>& hosts) {
  std::vector<Machine> machines;
  Json facts = Json::array();
  for (const HostConnection* host : hosts) {
    machines.push_back(host->machine());
    Json fact = to_json(host->machine());
    fact["host"] = host->name();
    facts.push_back(std::move(fact));
  }
  const std::string* device = job.find("device");
  const std::string* path = job.find("plan");
  std::optional<Plan> plan;
  if (Result<Plan> read = path ? Plan::load(*path) : Result<Plan>(Plan{}); path && read)
    plan = *std::move(read);
  for (const std::string& warning : warnings_on(job.hosts.entries, job.hosts.ranks, machines,
                                                plan ? &*plan : nullptr, device && *device == "cuda"))
    log_warning(warning);
  const fs::path manifest = fs::path(job.output_dir) / kRunManifest;
  Result<Json> json = read_json(manifest.string());
  if (!json) return;  // links are being measured, nothing is trained
  (*json)["machines"] = std::move(facts);
  if (const Status written = write_file_atomically(manifest, json->dump(2) + "\n"); !written)
    log_warning(to_string(written.problems()));
}

CheckpointCollector::Options collector_options(const JobSpec& job, const char* folder,
                                               const std::optional<ResumedCheckpoint>& resumed) {
  CheckpointCollector::Options options{.folder = fs::path(job.output_dir) / folder,
                                       .num_hosts = static_cast<int>(job.hosts.entries.size()),
                                       .overwrite = job.find("overwrite") != nullptr,
                                       .resumed = resumed};
  if (const std::string* keep = job.find("keep-checkpoints"))
    options.keep.newest = number_of<int>(*keep).value_or(options.keep.newest);
  if (const std::string* every = job.find("keep-every"))
    options.keep.every = number_of<std::int64_t>(*every).value_or(0);
  return options;
}

/// Other hosts have got the checkpoint into `folder`. Those that share the launcher's folder find it there,
/// too.
std::string place_resumed(const ResumedCheckpoint& resumed) {
  const AgentCheckpoint given{.folder = resumed.folder, .manifest = resumed.manifest};
  Result<DeliveredCheckpoint> here = DeliveredCheckpoint::begin(given, resumed.source.parent_path(), 0);
  const Status placed = here ? here->finish() : Status(here.problems());
  if (!placed) throw CheckpointError(to_string(placed.problems()));
  return resumed.folder;
}

}  // namespace

std::vector<RankProcess> host_processes(const JobSpec& job, std::vector<RankProcess> processes,
                                        const std::string& token) {
  const auto set = [](RankProcess& process, const char* name, const std::string& value) {
    const auto same = [&](const auto& e) { return e.first == name; };
    std::erase_if(process.environment, same);
    if (!value.empty()) process.environment.emplace_back(name, value);
  };
  std::size_t next = 0;
  for (std::size_t h = 0; h < job.hosts.entries.size(); ++h) {
    for (int local = 0; local < job.hosts.ranks[h]; ++local, ++next) {
      RankProcess& process = processes.at(next);
      process.host = static_cast<int>(h);
      for (const char* name : {"MILLRACE_STORE", "MILLRACE_LAUNCHER_PID", "MASTER_ADDR", "MASTER_PORT"})
        set(process, name, "");
      set(process, "LOCAL_RANK", std::to_string(local));
      set(process, "LOCAL_WORLD_SIZE", std::to_string(job.hosts.ranks[h]));
      set(process, "MILLRACE_TOKEN", token);
      set(process, "MILLRACE_HOST", std::to_string(h));
    }
  }
  return processes;
}

std::optional<ResumedCheckpoint> resumed_checkpoint(const JobSpec& job) {
  const std::string* resume = job.find("resume");
  if (!resume || resume->empty()) return std::nullopt;
  const std::string from = *resume == kResumeAuto ? job.output_dir : *resume;
  if (!rounds_in(from).empty()) return std::nullopt;
  const Result<CheckpointChoice> choice = checkpoints_at(from);
  if (!choice) throw CheckpointError("cannot resume: " + to_string(choice.problems()));
  Problems skipped;
  for (const fs::path& step : choice->steps) {
    const Result<ManifestHead> head = read_manifest_head(step);
    const Problems problems = head ? check_shards(step, *head) : head.problems();
    if (!problems.empty()) {
      append(skipped, problems);
      continue;
    }
    for (const Problem& problem : skipped) log_warning("checkpoint skipped: " + to_string(problem));
    const fs::path own = fs::path(job.output_dir) / run_files::kCheckpoints;
    std::error_code ignored;
    const bool is_own = fs::equivalent(step.parent_path(), own, ignored);
    const Result<std::string> manifest = read_regular_file(step / kManifest);
    return ResumedCheckpoint{
        .source = step,
        .folder = (is_own ? own : fs::path(job.output_dir) / "inputs" / "resume").string(),
        .manifest = manifest ? *manifest : "",
        .run = head->run,
        .step = head->step,
        .is_own = is_own};
  }
  throw CheckpointError("cannot resume: " + to_string(skipped));
}

Status settle_resume(JobSpec& job) {
  const std::string* resume = job.find("resume");
  if (!resume || *resume != kResumeAuto || can_go_on(job.output_dir)) return Ok{};
  std::error_code ignored;
  const std::string left = earlier_run(job.output_dir);
  if (fs::exists(fs::path(job.output_dir) / run_files::kSummary, ignored))
    return check_unused(job.output_dir);
  log_info("resume: auto: " + job.output_dir + " holds no checkpoint: the run begins" +
           (left.empty() ? "" : ", over what an attempt left (" + left + ")"));
  std::erase_if(job.train, [](const auto& flag) {
    return flag.first == "resume" || flag.first == "resume-changes" || flag.first == "overwrite";
  });
  // A host's own folder may hold more of that attempt than this one.
  job.train.emplace_back("overwrite", "true");
  return Ok{};
}

namespace {

std::chrono::milliseconds deadline_of(const JobSpec& job) {
  const std::string* timeout = job.find("timeout");
  const Result<double> seconds = number_from(timeout ? *timeout : "", 0, 1e6);
  return seconds && *seconds > 0 ? std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1e3))
                                 : LaunchOptions().host_deadline;
}

/// Makes the file by which hosts see whether they share the launcher's folder.
Result<fs::path> new_probe(const JobSpec& job) {
  fs::path probe = fs::path(job.output_dir) / (".shared-" + new_run_id());
  if (const Status written = write_file_atomically(probe, ""); !written) return written.problems();
  return probe;
}

/// Returns the part of the job that each host receives, without its ranks.
AgentJob told_of(const JobSpec& job, std::size_t host, const fs::path& probe) {
  const std::string* device = job.find("device");
  std::error_code error;
  return {.directory = job.hosts.workdir.empty() ? fs::current_path(error).string() : job.hosts.workdir,
          .output_dir = job.output_dir,
          .probe = probe.filename().string(),
          .worker = job.worker,
          .device = device ? *device : "cpu",
          .meeting = find_engine(job.hosts.on)->meets_by_name ? job.hosts.entries.front().name : "",
          .host = static_cast<int>(host)};
}

/// Connections with these jobs, by host. Those of `reached` that fit are taken, and the others end.
Result<std::vector<std::unique_ptr<HostConnection>>> connections_for(const JobSpec& job,
                                                                     std::vector<AgentJob> told,
                                                                     Survivors& reached) {
  const JobHosts& hosts = job.hosts;
  const Engine& engine = *find_engine(hosts.on);
  const std::string usual = engine.shares_paths && hosts.container.image.empty() ? own_program() : "millrace";
  const std::string program = hosts.millrace.empty() ? usual : hosts.millrace;
  std::vector<std::unique_ptr<HostConnection>> connections;
  for (std::size_t h = 0; h < hosts.entries.size(); ++h) {
    Result<std::vector<std::string>> command =
        command_for(job, engine, hosts.entries[h], {program, "agent"}, told[h].directory);
    if (!command) return command.problems();  // the others would say the same
    std::unique_ptr<HostConnection> connection = reached.take(*command);
    if (connection)
      connection->again(std::move(told[h]));
    else
      connection = std::make_unique<HostConnection>(hosts.entries[h].name, *std::move(command),
                                                    std::move(told[h]), engine.starts);
    connections.push_back(std::move(connection));
  }
  reached.hosts.clear();
  return connections;
}

}  // namespace

std::vector<std::vector<int>> ranks_of_each_host(const JobSpec& job) {
  std::vector<std::vector<int>> ranks(job.hosts.entries.size());
  int next = 0;
  for (std::size_t h = 0; h < ranks.size(); ++h)
    for (int local = 0; local < job.hosts.ranks[h]; ++local) ranks[h].push_back(next++);
  return ranks;
}

Result<HostsToAsk> hosts_to_ask(const JobSpec& job, Survivors& reached) {
  if (const Status reachable = check_meeting(job.hosts); !reachable) return reachable.problems();
  Result<fs::path> probe = new_probe(job);
  if (!probe) return probe.problems();
  std::vector<AgentJob> told;
  for (std::size_t h = 0; h < job.hosts.entries.size(); ++h) {
    told.push_back(told_of(job, h, *probe));
    told.back().only_asks = true;
  }
  auto connections = connections_for(job, std::move(told), reached);
  if (connections)
    return HostsToAsk{
        .connections = *std::move(connections), .deadline = deadline_of(job), .probe = *std::move(probe)};
  std::error_code ignored;
  fs::remove(*probe, ignored);
  return connections.problems();
}

Result<LaunchOptions> host_options(const JobSpec& job, const std::vector<RankProcess>& processes,
                                   Survivors& reached, bool keeps_ranks) {
  if (const Status reachable = check_meeting(job.hosts); !reachable) return reachable.problems();
  const Result<fs::path> made = new_probe(job);
  if (!made) return made.problems();
  const fs::path probe_path = *made;
  const bool trains =
      !processes.empty() && processes.front().argv.size() > 1 && processes.front().argv[1] == "train";
  const std::optional<ResumedCheckpoint> resumed = trains ? resumed_checkpoint(job) : std::nullopt;
  std::vector<AgentJob> told;
  for (std::size_t h = 0; h < job.hosts.entries.size(); ++h) {
    told.push_back(told_of(job, h, probe_path));
    AgentJob& one = told.back();
    for (const RankProcess& process : processes) {
      if (process.host != static_cast<int>(h)) continue;
      one.ranks.push_back(process);
      one.ranks.back().argv.erase(one.ranks.back().argv.begin());  // the worker: each host has its own
    }
    one.heartbeat_ms = static_cast<int>(heartbeat_of(job).count());
    one.keeps_ranks = keeps_ranks;
    if (resumed) {
      one.checkpoint = {.folder = resumed->folder, .manifest = resumed->manifest};
      one.checkpoint_source = resumed->source;
    }
    one.inputs = inputs_of(one.ranks.front().argv, job.output_dir);
  }
  auto reaching = connections_for(job, std::move(told), reached);
  if (!reaching) {
    std::error_code ignored;
    fs::remove(probe_path, ignored);
    return reaching.problems();
  }
  LaunchOptions options;
  options.hosts = *std::move(reaching);
  options.host_deadline = deadline_of(job);
  HostResults::Options results{
      .folder = job.output_dir, .ranks = ranks_of_each_host(job), .loss_rank = job.loss_rank};
  if (resumed && resumed->is_own) results.from_step = resumed->step;
  options.results = std::make_shared<HostResults>(std::move(results));
  if (trains) {
    const auto collect = [&](const char* prefix, const CheckpointCollector::Options& how) {
      options.collectors[prefix] = std::make_shared<CheckpointCollector>(how);
    };
    collect("", collector_options(job, run_files::kCheckpoints, resumed));
    if (job.find("keep-best")) {
      auto best = collector_options(job, run_files::kBest, resumed);
      best.keep = {.newest = 1};
      collect(kBestPrefix, best);
    }
    if (resumed && !resumed->is_own) options.place_resumed = [resumed] { return place_resumed(*resumed); };
  }
  std::vector<const HostConnection*> connections;
  for (const auto& host : options.hosts) connections.push_back(host.get());
  options.hosts_ready = [probe_path, &job, connections](bool all_are) {
    std::error_code ignored;
    fs::remove(probe_path, ignored);
    if (all_are) look_at_machines(job, connections);
  };
  return options;
}

}  // namespace millrace
