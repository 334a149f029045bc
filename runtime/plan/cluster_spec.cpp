#include "runtime/plan/cluster_spec.h"

#include <cmath>

#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/plan/fingerprint.h"

namespace millrace {
namespace {

/// A number of bytes, or text such as 8GiB, 500MB.
Bytes bytes_from(const Json& value, const std::string& key, Problems& problems) {
  if (value.is_number()) return static_cast<Bytes>(value.as_double());
  if (value.is_string()) {
    const std::string& text = value.as_string();
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const std::string unit = end;
    for (const auto& [name, factor] : {std::pair{"KiB", 1024.0},
                                       {"MiB", 1048576.0},
                                       {"GiB", 1073741824.0},
                                       {"KB", 1e3},
                                       {"MB", 1e6},
                                       {"GB", 1e9}}) {
      if (end != text.c_str() && unit == name && number >= 0) return static_cast<Bytes>(number * factor);
    }
  }
  problems.push_back({value.where(), "'" + key + "' is not a size",
                      "write bytes, or a number with KiB, MiB, GiB, KB, MB, GB"});
  return 0;
}

}  // namespace

int ClusterSpec::num_ranks() const {
  int ranks = 1;
  for (const ClusterLevel& level : levels) ranks *= level.count;
  return ranks;
}

Result<ClusterSpec> ClusterSpec::parse(std::string_view yaml, const std::string& name) {
  Result<Json> json = parse_yaml(yaml, name, {.bytes = 1 << 20, .nodes = 100'000});
  if (!json) return json.problems();
  Problems problems;
  ObjectReader in(*json, problems);
  ClusterSpec spec{.device = in.string("device", "cpu")};
  if (const Json* memory = in.any("memory")) spec.memory_per_rank = bytes_from(*memory, "memory", problems);
  if (const Json* levels = in.array("levels")) {
    for (const Json& item : levels->items()) {
      ObjectReader level(item, problems);
      spec.levels.push_back({.count = static_cast<int>(level.integer("count")),
                             .bandwidth = level.number("bandwidth"),
                             .latency_s = level.number("latency", 0)});
      if (spec.levels.back().count < 1) level.problem("count", "must be at least 1");
      if (!(spec.levels.back().bandwidth > 0))
        level.problem("bandwidth", "must be greater than 0 (bytes per second)");
      if (spec.levels.back().latency_s < 0) level.problem("latency", "must not be negative (seconds)");
      level.finish();
    }
  }
  if (const Json* hosts = in.optional_array("hosts")) {
    int devices = 0;
    for (const Json& item : hosts->items()) {
      ObjectReader host(item, problems);
      spec.hosts.push_back(
          {.name = host.string("name"), .devices = static_cast<int>(host.integer("devices", 1))});
      devices += spec.hosts.back().devices;
      host.finish();
    }
    if (problems.empty() && devices != spec.num_ranks()) {
      in.problem("hosts", "the hosts have " + std::to_string(devices) + " devices, the levels multiply to " +
                              std::to_string(spec.num_ranks()));
    }
  }
  in.finish();
  if (problems.empty() && spec.levels.empty())
    in.problem("levels", "is empty", "one level at least, for example [{count: 2, bandwidth: 3e9}]");
  if (!problems.empty()) return problems;
  return spec;
}

Result<ClusterSpec> ClusterSpec::load(const std::string& path) {
  Result<std::string> text = read_file(path, kMiB);
  if (!text) return text.problems();
  return parse(*text, path);
}

ClusterSpec ClusterSpec::local(int ranks) {
  return {.hosts = {{"localhost", ranks}}, .levels = {{.count = ranks, .bandwidth = 3e9, .latency_s = 5e-5}}};
}

std::string ClusterSpec::to_yaml() const {
  std::string text = "device: " + device + "\n";
  if (memory_per_rank > 0) text += "memory: " + std::to_string(memory_per_rank) + "\n";
  text += "levels:\n";
  for (const ClusterLevel& l : levels) {
    text += "  - {count: " + std::to_string(l.count) + ", bandwidth: " + Json(l.bandwidth).dump() +
            ", latency: " + Json(l.latency_s).dump() + "}\n";
  }
  if (!hosts.empty()) text += "hosts:\n";
  for (const ClusterHost& h : hosts)
    text += "  - {name: " + h.name + ", devices: " + std::to_string(h.devices) + "}\n";
  return text;
}

std::string ClusterSpec::fingerprint() const {
  return fingerprint_of(to_yaml());
}

}  // namespace millrace
