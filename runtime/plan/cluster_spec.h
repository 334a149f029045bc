// Hosts, their devices, and the links between them.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

/// One level of a symmetric hierarchy: `count` components of the next lower level, joined by links of
/// `bandwidth` bytes/s and `latency_s` seconds. Lists of levels start with the innermost.
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

/// A kind of device. `speed` divides the times of the planner's profile. If `profile` is set, its times are
/// used instead: a profile of the same model and microbatch that was measured on this kind. Its path is
/// relative to the cluster file.
struct DeviceKind {
  std::string name;
  double speed = 1;
  Bytes memory = 0;  ///< bytes; 0: the cluster's memory
  /// Bytes/s of the copy between device and host, which each end of a link between hosts performs; 0: no
  /// copy.
  double copy_bandwidth = 0;
  std::string profile;  ///< empty: the planner's profile, divided by `speed`
};

/// Ranks are numbered by host in file order: the first `devices` ranks are on the first host.
struct ClusterHost {
  std::string name = "localhost";
  int devices = 1;
  std::string kind;  ///< name of a DeviceKind; empty: speed 1, the cluster's memory
  ClusterLink link;  ///< between the devices of this host (only in the form by host)
};

/// A pair of hosts whose link differs from `network`.
struct HostLink {
  std::string from;
  std::string to;
  ClusterLink link;
};

/// A pair of ranks whose link differs from that of its level or hosts. `millrace profile --network` detects
/// such pairs.
struct RankLink {
  RankId from;  ///< less than `to`
  RankId to;
  ClusterLink link;
};

/// A cluster, read from one of two YAML forms (docs/formats.md). The symmetric form:
///   levels: [{count: 2, bandwidth: 4e9, latency: 3e-5}], memory: 8GiB, device: cpu, hosts: [{name: a,
///   devices: 2}]
/// The form by host, for links or devices that differ:
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
  ClusterLink network;          ///< between hosts, form by host
  std::vector<HostLink> links;  ///< host pairs that differ from `network`
  std::vector<RankLink>
      rank_links;  ///< rank pairs whose link differs from all of the above; ascending by (from, to)

  int num_ranks() const;           ///< product of the levels' counts, or the devices of all hosts
  int host_of(RankId rank) const;  ///< index into `hosts`; 0 if no hosts are listed
  /// Returns the index into `kinds`; -1: no kind, which means speed 1 and the cluster's memory.
  int kind_of(RankId rank) const;
  double speed_of(RankId rank) const;  ///< 1: as profiled
  Bytes memory_of(RankId rank) const;  ///< bytes: its kind's memory, else the cluster's; 0: unlimited
  /// Returns the entry in rank_links, else the link of their innermost common level, or of their hosts.
  ClusterLink link(RankId a, RankId b) const;
  /// Returns the seconds per byte of the two copies: device to host at a, and host to device at b.
  double copy_seconds_per_byte(RankId a, RankId b) const;
  bool same_devices() const;  ///< all ranks have equal speed, memory, profile and copy

  static Result<ClusterSpec> load(const std::string& path);
  static Result<ClusterSpec> parse(std::string_view yaml, const std::string& name);
  /// Returns a cluster of `ranks` ranks on this host over loopback. The link's numbers were measured on a
  /// 2-core machine.
  static ClusterSpec local(int ranks);
  std::string to_yaml() const;  ///< parse(to_yaml()) gives the same cluster
  std::string fingerprint() const;
};

}  // namespace millrace
