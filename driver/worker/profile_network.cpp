#include "driver/worker/profile_network.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <set>
#include <utility>

#include "driver/launch/network_launch.h"
#include "driver/worker/worker_environment.h"
#include "optimizer/cost/cost_model.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/comm/shared_memory.h"
#include "runtime/profile/network_profiler.h"

namespace millrace {
namespace {

/// A number for each rank's machine; equal where ranks run on one. Collective.
std::vector<std::int64_t> machines_of_ranks(Communicator& communicator) {
  const at::Tensor numbers = at::zeros({communicator.size()}, at::kLong);
  auto* values = numbers.mutable_data_ptr<std::int64_t>();
  const std::size_t hash = std::hash<std::string>{}(shared_memory_domain());
  values[communicator.rank().value] = static_cast<std::int64_t>(hash >> 1);
  communicator.all_reduce(numbers, "machines of the ranks")->wait();
  return {values, values + communicator.size()};
}

/// Returns notes where the file's hosts are not the machines that the ranks run on.
std::vector<std::string> notes_on_hosts(const ClusterSpec& cluster,
                                        const std::vector<std::int64_t>& machines) {
  if (cluster.hosts.empty()) return {};
  std::vector<std::string> notes;
  bool shared = false, split = false;
  for (int a = 0; a < cluster.num_ranks(); ++a) {
    for (int b = 0; b < a; ++b) {
      const int host_a = cluster.host_of(RankId(a)), host_b = cluster.host_of(RankId(b));
      const bool one_machine = machines[a] == machines[b];
      const std::string& name_a = cluster.hosts[host_a].name;
      const std::string& name_b = cluster.hosts[host_b].name;
      if (host_a != host_b && one_machine && !std::exchange(shared, true))
        notes.push_back(
            "hosts " + name_b + " and " + name_a +
            " of the cluster file are one machine here: what is between them is its own transport, "
            "not a network");
      if (host_a == host_b && !one_machine && !std::exchange(split, true))
        notes.push_back("ranks " + std::to_string(b) + " and " + std::to_string(a) + " are both on host " +
                        name_a + " of the cluster file, but run on two machines");
    }
  }
  return notes;
}

/// Returns notes where more came through between two hosts than the file says that their line carries.
std::vector<std::string> notes_on_rates(const ClusterSpec& file,
                                        const std::vector<LinkMeasurement>& measured) {
  constexpr double kNoise = 1.05;
  const LinkMeasurement* worst = nullptr;
  const auto excess = [&](const LinkMeasurement& m) {
    return m.link().bandwidth / file.link(m.from, m.to).bandwidth;
  };
  for (const LinkMeasurement& m : measured) {
    const bool between = !file.hosts.empty() && file.host_of(m.from) != file.host_of(m.to);
    if (between && excess(m) > kNoise && (!worst || excess(m) > excess(*worst))) worst = &m;
  }
  if (!worst) return {};
  return {printed(
      "between ranks %d and %d %.4g MB/s were measured, the cluster file says %.4g MB/s: if that is "
      "the line's rate, a buffer on the way took the messages. Hint: a larger --largest (%.4g MB now) "
      "shows the line behind it",
      worst->from.value, worst->to.value, worst->link().bandwidth / 1e6,
      file.link(worst->from, worst->to).bandwidth / 1e6,
      static_cast<double>(worst->there.back().bytes) / 1e6)};
}

/// Returns the speed of each rank relative to rank 0, all ranks at work at once: the time of a product of
/// matrices on its device. Collective.
std::vector<double> speeds_of_ranks(Communicator& communicator, Device& device, Clock& clock) {
  constexpr int kRounds = 15;
  const auto options = at::TensorOptions().device(device.where());
  const at::Tensor a = at::ones({512, 512}, options), b = at::ones({512, 512}, options);
  std::vector<double> seconds;
  communicator.barrier();
  for (int round = 0; round < kRounds; ++round) {
    const TimePoint start = clock.now();
    const at::Tensor product = at::mm(a, b);
    device.synchronize();
    seconds.push_back(std::chrono::duration<double>(clock.now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + kRounds / 2);
  const at::Tensor all = at::zeros({communicator.size()}, at::kDouble);
  auto* values = all.mutable_data_ptr<double>();
  values[communicator.rank().value] = seconds[kRounds / 2];
  communicator.all_reduce(all, "speeds of the ranks")->wait();
  std::vector<double> speeds(values, values + communicator.size());
  const double first = speeds.front();
  for (double& speed : speeds) speed = first / speed;
  return speeds;
}

struct NetworkAnswer {
  NetworkMeasurement measured;
  std::vector<double> speeds;  ///< by rank, of the first rank's
  ClusterSpec cluster;         ///< with the measured links
  std::vector<std::string> notes;
  std::size_t num_machines = 1;
};

double predicted_reduce(const ClusterSpec& cluster, Bytes bytes) {
  std::vector<RankId> ranks;
  for (int r = 0; r < cluster.num_ranks(); ++r) ranks.emplace_back(r);
  return all_reduce_seconds(cluster, ranks, bytes);
}

Json times_json(const LinkMeasurement& link) {
  Json sizes = Json::array();
  for (std::size_t i = 0; i < link.there.size() && i < link.back.size(); ++i) {
    sizes.push_back(Json::object({{"bytes", link.there[i].bytes},
                                  {"there_s", link.there[i].seconds},
                                  {"back_s", link.back[i].seconds}}));
  }
  return sizes;
}

Json json_of(const NetworkAnswer& answer, const NetworkJob& job) {
  Json pairs = Json::array(), reduces = Json::array(), notes = Json::array();
  for (const LinkMeasurement& m : answer.measured.links) {
    const ClusterLink written = answer.cluster.link(m.from, m.to);
    pairs.push_back(Json::object({{"from", m.from.value},
                                  {"to", m.to.value},
                                  {"latency_s", m.latency_s},
                                  {"latency_min_s", m.latency_min_s},
                                  {"latency_max_s", m.latency_max_s},
                                  {"bandwidth", m.link().bandwidth},
                                  {"bandwidth_there", m.bandwidth_there()},
                                  {"bandwidth_back", m.bandwidth_back()},
                                  {"fit_latency_there_s", fit_line(m.there).intercept_s},
                                  {"fit_latency_back_s", fit_line(m.back).intercept_s},
                                  {"written_latency_s", written.latency_s},
                                  {"written_bandwidth", written.bandwidth},
                                  {"sizes", times_json(m)}}));
  }
  for (const ReduceMeasurement& r : answer.measured.reduces) {
    reduces.push_back(Json::object({{"bytes", r.bytes},
                                    {"seconds", r.seconds},
                                    {"predicted_s", predicted_reduce(answer.cluster, r.bytes)}}));
  }
  Json speeds = Json::array();
  for (const double speed : answer.speeds) speeds.push_back(speed);
  for (const std::string& note : answer.notes) notes.push_back(note);
  return Json::object({{"format", "millrace-network-1"},
                       {"backend", to_string(job.backend)},
                       {"device", to_string(job.device)},
                       {"ranks", answer.cluster.num_ranks()},
                       {"machines", static_cast<std::int64_t>(answer.num_machines)},
                       {"pairs", pairs},
                       {"all_reduces", reduces},
                       {"speeds", speeds},
                       {"notes", notes},
                       {"out", job.out},
                       {"cluster", answer.cluster.to_yaml()}});
}

void print_table(const NetworkAnswer& answer, const NetworkJob& job) {
  std::printf("%-11s %12s %23s %11s %11s\n", "pair", "latency us", "(least .. most)", "there GB/s",
              "back GB/s");
  for (const LinkMeasurement& m : answer.measured.links) {
    const std::string pair = std::to_string(m.from.value) + " - " + std::to_string(m.to.value);
    std::printf("%-11s %12.2f %10.2f .. %9.2f %11.3f %11.3f\n", pair.c_str(), m.latency_s * 1e6,
                m.latency_min_s * 1e6, m.latency_max_s * 1e6, m.bandwidth_there() / 1e9,
                m.bandwidth_back() / 1e9);
  }
  for (const ReduceMeasurement& r : answer.measured.reduces) {
    const double predicted = predicted_reduce(answer.cluster, r.bytes);
    std::printf("all-reduce of %lld KiB over %d ranks: %.3f ms, the planner predicts %.3f ms\n",
                static_cast<long long>(r.bytes / kKiB), answer.cluster.num_ranks(), r.seconds * 1e3,
                predicted * 1e3);
  }
  for (const ClusterHost& host : answer.cluster.hosts) {
    const auto kind = std::ranges::find(answer.cluster.kinds, host.kind, &DeviceKind::name);
    if (kind == answer.cluster.kinds.end()) continue;
    std::printf("host %s computes at %.2f times the speed of %s: its kind is %s\n", host.name.c_str(),
                kind->speed, answer.cluster.hosts.front().name.c_str(), kind->name.c_str());
  }
  if (job.out.empty()) {
    std::printf("nothing is written: give --out FILE for a cluster file with these links\n");
  } else {
    std::printf("written to %s: %zu of %zu pairs have a link of their own (unlike their group's)\n",
                job.out.c_str(), answer.cluster.rank_links.size(), answer.measured.links.size());
  }
}

Status publish(const NetworkAnswer& answer, const NetworkJob& job) {
  for (const std::string& note : answer.notes) log_warning(note);
  if (!job.out.empty()) {
    if (Status saved = write_file_atomically(job.out, answer.cluster.to_yaml()); !saved) return saved;
  }
  if (job.json) {
    std::printf("%s\n", json_of(answer, job).dump(1).c_str());
  } else {
    print_table(answer, job);
  }
  return Ok{};
}

NetworkAnswer measure(Communicator& communicator, Device& device, const NetworkJob& job) {
  SteadyClock clock;
  device.bind_thread();
  const std::vector<std::int64_t> machines = machines_of_ranks(communicator);
  NetworkAnswer answer{.notes = notes_on_hosts(job.cluster, machines)};
  answer.num_machines = std::set<std::int64_t>(machines.begin(), machines.end()).size();
  if (communicator.rank() == RankId(0)) {
    log_info("measuring ranks=" + std::to_string(communicator.size()) +
             " machines=" + std::to_string(answer.num_machines) + " backend=" + to_string(job.backend));
  }
  answer.measured =
      profile_network(communicator, device, clock, {.round_trips = job.round_trips, .largest = job.largest});
  const std::vector<std::string> rates = notes_on_rates(job.cluster, answer.measured.links);
  answer.notes.insert(answer.notes.end(), rates.begin(), rates.end());
  answer.speeds = speeds_of_ranks(communicator, device, clock);
  answer.cluster = with_measured_speeds(
      with_measured_links(job.cluster, answer.measured.links, job.tolerance), answer.speeds);
  return answer;
}

}  // namespace

int profile_network_rank(const ProfileFlags& flags, const Arguments& arguments,
                         const Accelerator& accelerator) {
  die_with_launcher();
  const Result<JobEnvironment> place = read_environment();
  if (!place) return report_problems(place.problems(), ExitCode::Usage);
  if (place->distributed) set_log_prefix("rank" + std::to_string(place->rank));
  const Result<NetworkJob> job = network_job(flags, arguments);
  if (!job) return report_problems(job.problems(), ExitCode::Usage);
  if (job->cluster.num_ranks() != place->size) {
    return report_problems({{flags.cluster.empty() ? "--ranks" : flags.cluster,
                             "has " + std::to_string(job->cluster.num_ranks()) + " ranks, this job has " +
                                 std::to_string(place->size),
                             "start exactly the ranks of the cluster file"}},
                           ExitCode::Usage);
  }
  if (const Problems problems = check_output(*job); place->rank == 0 && !problems.empty())
    return report_problems(problems, ExitCode::Usage);
  const Result<std::shared_ptr<Device>> device = device_from(job->device, place->local_rank, accelerator);
  if (!device) return report_problems(device.problems(), ExitCode::Usage);
  set_compute_threads(job->threads, false);
  const JoinedJob joined = join_job(*place,
                                    {.backend = job->backend,
                                     .deadline = job->deadline,
                                     .purpose = "profile --network",
                                     .encrypt = job->encrypt},
                                    **device, accelerator);
  const NetworkAnswer answer = measure(*joined.communicator, **device, *job);
  if (place->rank != 0) return 0;
  const Status published = publish(answer, *job);
  return published ? 0 : report_problems(published.problems(), ExitCode::Usage);
}

}  // namespace millrace
