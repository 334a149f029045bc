// Hosts, their devices, and the links between them.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

/// One level of a symmetric hierarchy, innermost first: `count` components joined by links of
/// `bandwidth` bytes/s and `latency_s`.
struct ClusterLevel {
  int count = 1;
  double bandwidth = 1e9;
  double latency_s = 0;
};

/// A point-to-point link: bytes/s in each direction and seconds for the first byte.
struct ClusterLink {
  double bandwidth = 1e9;
  double latency_s = 0;
  bool operator==(const ClusterLink&) const = default;
};

/// A kind of device. `speed` divides the times of the profile, unless `profile` names one that was measured
/// on this kind (same model, same microbatch; a path relative to the cluster file).
struct DeviceKind {
  std::string name;
  double speed = 1;
  Bytes memory = 0;  ///< 0: the cluster's
  double copy_bandwidth =
      0;  ///< bytes/s between device and host, paid at both ends of a link between hosts; 0: no copy
  std::string profile;  ///< empty: the planner's profile, divided by `speed`
};

/// Ranks are numbered by host in file order: the first `devices` ranks are those of the first host.
struct ClusterHost {
  std::string name = "localhost";
  int devices = 1;
  std::string kind;  ///< name of a DeviceKind; empty: speed 1, the cluster's memory
  ClusterLink link;  ///< between the devices of this host (form with `network`)
};

/// A pair of hosts that is joined by another link than `network`.
struct HostLink {
  std::string from;
  std::string to;
  ClusterLink link;
};

/// A pair of ranks whose link is unlike what levels or hosts say of it, as `millrace profile --network`
/// finds.
struct RankLink {
  RankId from;  ///< less than `to`
  RankId to;
  ClusterLink link;
};

/// Two YAML forms (docs/formats.md). Symmetric:
///   levels: [{count: 2, bandwidth: 4e9, latency: 3e-5}], memory: 8GiB, device: cpu, hosts: [{name: a,
///   devices: 2}]
/// By host, for links or devices that differ:
///   kinds: [{name: v100, memory: 16GiB}, {name: a100, speed: 2.4, memory: 40GiB}]
///   hosts: [{name: a, devices: 4, kind: a100, bandwidth: 200e9}, {name: b, devices: 8, kind: v100,
///   bandwidth: 20e9}] network: {bandwidth: 1.25e9, latency: 5e-5}, links: [{between: [a, b],
///   bandwidth: 12.5e9}]
struct ClusterSpec {
  std::vector<ClusterHost> hosts;
  std::vector<ClusterLevel> levels;  ///< empty: the form by host
  Bytes memory_per_rank = 0;         ///< 0: unlimited
  std::string device = "cpu";
  std::vector<DeviceKind> kinds;
  ClusterLink network;               ///< between hosts, form by host
  std::vector<HostLink> links;       ///< host pairs that differ from `network`
  std::vector<RankLink> rank_links;  ///< rank pairs that differ from all that; ascending by (from, to)

  int num_ranks() const;                       ///< product of the levels' counts, or the devices of all hosts
  int host_of(RankId rank) const;              ///< index into `hosts`; 0 where no hosts are listed
  int kind_of(RankId rank) const;              ///< index into `kinds`; -1: the plain device
  double speed_of(RankId rank) const;          ///< 1: as profiled
  Bytes memory_of(RankId rank) const;          ///< of its kind, else the cluster's; 0: unlimited
  ClusterLink link(RankId a, RankId b) const;  ///< their rank link, else the innermost level's, or the hosts'
  double copy_seconds_per_byte(RankId a, RankId b) const;  ///< device to host at a, host to device at b
  bool same_devices() const;  ///< all ranks have equal speed, memory, profile and copy

  static Result<ClusterSpec> load(const std::string& path);
  static Result<ClusterSpec> parse(std::string_view yaml, const std::string& name);
  /// `ranks` ranks on this host over loopback (default links measured on a 2-core machine).
  static ClusterSpec local(int ranks);
  std::string to_yaml() const;  ///< parse(to_yaml()) gives the same cluster
  std::string fingerprint() const;
};

}  // namespace millrace
