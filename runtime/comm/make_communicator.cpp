// The table of transports between processes, and which one joins which ranks.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/comm/channel.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/gloo_channel.h"
#include "runtime/comm/nccl_communicator.h"
#include "runtime/comm/recorded_channel.h"
#include "runtime/comm/shared_memory.h"
#include "runtime/comm/staged_channel.h"
#include "runtime/comm/tcp_channel.h"

namespace millrace {
namespace {

/// Shared memory for the ranks of this host, where it has any, another channel for the rest.
class RoutedChannel final : public Channel {
 public:
  RoutedChannel(std::shared_ptr<Channel> near, std::vector<int> hosts, std::shared_ptr<Channel> far)
      : near_(std::move(near)), hosts_(std::move(hosts)), far_(std::move(far)) {}
  int rank() const override { return far_->rank(); }
  int size() const override { return far_->size(); }
  std::chrono::milliseconds deadline() const override { return far_->deadline(); }
  Clock& clock() const override { return far_->clock(); }
  bool buffers_sends() const override { return (!near_ || near_->buffers_sends()) && far_->buffers_sends(); }
  std::vector<int> hosts() const override { return hosts_; }
  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    return way_to(transfer.peer.value).post(transfer);
  }
  std::unique_ptr<Arrival> receive(const Transfer& transfer) override {
    return way_to(transfer.peer.value).receive(transfer);
  }
  void abort(const std::string& reason) noexcept override {
    if (near_) near_->abort(reason);
    far_->abort(reason);
  }

 private:
  int host_of(int rank) const { return hosts_[rank]; }
  Channel& way_to(int peer) const { return near_ && host_of(peer) == host_of(rank()) ? *near_ : *far_; }

  std::shared_ptr<Channel> near_;  // null: no shared memory here
  std::vector<int> hosts_;         // by rank
  std::shared_ptr<Channel> far_;
};

/// Agrees with all ranks.
std::string agree_with_all(const CommunicatorOptions& options, Store& store, const std::string& key,
                           const std::string& says, const auto& decide) {
  std::vector<int> ranks(static_cast<std::size_t>(options.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return agree(store, key, ranks, options.rank.value, says, options.rendezvous_deadline, options.clock,
               decide);
}

/// Returns, by rank, the first rank that can share memory with it.
std::vector<int> hosts_of_ranks(const CommunicatorOptions& options, Store& store) {
  // "8x0 8x8": consecutive ranks of a host are one word.
  const std::string runs = agree_with_all(
      options, store, "domain", shared_memory_domain(), [](const std::vector<std::string>& domains) {
        std::map<std::string, int> first;
        std::string text;
        int count = 0;
        for (int rank = 0; rank < static_cast<int>(domains.size()); ++rank) {
          ++count;
          const int host = first.emplace(domains[rank], rank).first->second;
          if (rank + 1 < static_cast<int>(domains.size()) && domains[rank + 1] == domains[rank]) continue;
          text += std::to_string(std::exchange(count, 0)) + "x" + std::to_string(host) + " ";
        }
        return text;
      });
  std::vector<int> hosts;
  for (const std::string& run : words_of(runs, ' ')) {
    int count = 0, host = 0;
    std::sscanf(run.c_str(), "%9dx%9d", &count, &host);
    hosts.insert(hosts.end(), static_cast<std::size_t>(std::max(0, count)), host);
  }
  if (static_cast<int>(hosts.size()) != options.size)
    throw PeerError("rendezvous: the hosts of " + std::to_string(options.size) + " ranks are '" + runs + "'");
  return hosts;
}

std::shared_ptr<Channel> make_shared(const CommunicatorOptions& options, std::shared_ptr<Store> store) {
  std::vector<int> hosts = hosts_of_ranks(options, *store);
  std::vector<int> local;  // ranks that can share memory with this one, this one included; ascending
  for (int rank = 0; rank < options.size; ++rank) {
    if (hosts[rank] == hosts[options.rank.value]) local.push_back(rank);
  }
  const bool all = static_cast<int>(local.size()) == options.size;
  if (options.backend == Backend::SharedMemory && !all) {
    throw ConfigError("--backend shm: only " + std::to_string(local.size()) + " of " +
                          std::to_string(options.size) + " ranks are on the host of rank " +
                          std::to_string(options.rank.value),
                      "use --backend auto");
  }
  // A host's only rank shares memory with nobody.
  auto near = local.size() > 1 || all ? make_shared_memory_channel(options, local, *store) : nullptr;
  if (near && all) return near;
  if (!near && options.backend == Backend::SharedMemory)
    throw ConfigError("--backend shm: the ranks of this host cannot open each other's memory",
                      "use --backend tcp");
  // Ranks of a host that have no shared memory talk over TCP. All ranks must know the same hosts: the way of
  // an all-reduce follows from them.
  auto far = make_tcp_channel(options, hosts, *store);
  return std::make_shared<RoutedChannel>(std::move(near), std::move(hosts), std::move(far));
}

/// NCCL joins devices, not processes: every rank needs one of its own. NCCL_HOSTID is how NCCL tells hosts
/// apart where it is set.
bool has_own_device(const CommunicatorOptions& options, Store& store) {
  const char* const named = std::getenv("NCCL_HOSTID");
  const std::string mine = (named ? std::string(named) : host_identity()) + "/" + options.device;
  return agree_with_all(options, store, "device", mine, [](const std::vector<std::string>& devices) {
           const std::set<std::string> different(devices.begin(), devices.end());
           return std::string(different.size() == devices.size() ? "own" : "shared");
         }) == "own";
}

bool use_nccl(const CommunicatorOptions& options, Store& store) {
  const bool asked = options.backend == Backend::Nccl;
  if (!asked && (options.backend != Backend::Auto || !options.nccl || options.size == 1)) return false;
  if (!options.nccl) {
    throw ConfigError("--backend nccl: " + std::string(options.device.empty()
                                                           ? "NCCL joins GPUs, and this job runs on the CPU"
                                                           : "this program was built without NCCL"),
                      options.device.empty() ? "give --device cuda, or --backend auto"
                                             : "use --backend auto, or build where nccl.h is");
  }
  if (!options.decorators.empty()) {
    if (asked)
      throw ConfigError("--backend nccl: its messages cannot be emulated or disturbed", "use --backend auto");
    return false;
  }
  if (options.encrypt) {
    if (asked) throw ConfigError("--encrypt: NCCL's messages go in clear", "use --backend auto");
    if (options.rank.value == 0)
      log_info("--encrypt: NCCL's messages go in clear, so tensors travel through page-locked memory");
    return false;
  }
  if (has_own_device(options, store)) return true;
  if (asked)
    throw ConfigError("--backend nccl: several ranks share a GPU",
                      "start at most one rank for each GPU, or use --backend auto");
  if (options.rank.value == 0)
    log_info("ranks share a GPU, so NCCL cannot join them: tensors travel through page-locked memory");
  return false;
}

}  // namespace

Traffic all_traffic(int size) {
  Traffic all{.messages = {}, .sums = true};
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to)
      if (from != to) all.messages.emplace(from, to);
  }
  return all;
}

std::unique_ptr<Communicator> make_communicator(const CommunicatorOptions& options,
                                                std::shared_ptr<Store> store) {
  if (use_nccl(options, *store)) {
    CommunicatorOptions host = options;
    host.backend = Backend::Auto;
    host.nccl = nullptr;
    auto on_host = make_communicator(host, make_prefix_store("host/", store));
    return make_nccl_communicator(options, std::move(on_host), std::move(store));
  }
  // The one place where transports between processes are decorated; for threads: make_local_communicators.
  const auto join = [&](std::shared_ptr<Channel> channel) {
    channel = decorated(std::move(channel), options.decorators);
    if (options.recorder) channel = make_recorded_channel(std::move(channel), *options.recorder);
    if (!options.device.empty()) channel = make_staged_channel(std::move(channel));
    return make_channel_communicator(std::move(channel));
  };
  if (options.encrypt && options.backend == Backend::Gloo)
    throw ConfigError("--encrypt: Gloo's messages go in clear", "use --backend tcp, or auto");
  if (options.backend == Backend::Tcp)
    return join(make_tcp_channel(options, hosts_of_ranks(options, *store), *store));
  if (options.backend == Backend::Gloo) return join(make_gloo_channel(options, std::move(store)));
  return join(make_shared(options, std::move(store)));
}

}  // namespace millrace
