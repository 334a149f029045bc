// Hosts, their devices, and the links between them.
#pragma once

#include <string>
#include <vector>

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

struct ClusterHost {
  std::string name = "localhost";
  int devices = 1;
};

/// YAML form (docs/formats.md):  levels: [{count: 2, bandwidth: 4e9, latency: 3e-5}], memory: 8GiB,
/// device: cpu, hosts: [{name: localhost, devices: 2}]
struct ClusterSpec {
  std::vector<ClusterHost> hosts;
  std::vector<ClusterLevel> levels;
  Bytes memory_per_rank = 0;  ///< 0: unlimited
  std::string device = "cpu";

  int num_ranks() const;  ///< product of the levels' counts
  static Result<ClusterSpec> load(const std::string& path);
  static Result<ClusterSpec> parse(std::string_view yaml, const std::string& name);
  /// `ranks` ranks on this host over loopback (default links measured on a 2-core machine).
  static ClusterSpec local(int ranks);
  std::string to_yaml() const;
  std::string fingerprint() const;
};

}  // namespace millrace
