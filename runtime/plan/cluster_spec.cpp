#include "runtime/plan/cluster_spec.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>

#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/quantities.h"
#include "runtime/plan/fingerprint.h"
#include "runtime/plan/limits.h"

namespace millrace {
namespace {

constexpr double kHighestBandwidth = 1e18, kLowestBandwidth = 1e-6;  // bytes/s
constexpr double kHighestLatency = 1e6;                              // seconds
constexpr double kHighestSpeed = 1e6;

/// Parses a number of bytes, or text such as 8GiB, 500MB.
Bytes bytes_from(const Json& value, const std::string& key, Problems& problems) {
  std::optional<Bytes> bytes;
  if (value.is_string()) bytes = parse_bytes(value.as_string());
  if (value.is_number() && value.as_double() >= 0 &&
      value.as_double() <= static_cast<double>(kMostStoredBytes))
    bytes = static_cast<Bytes>(value.as_double());
  if (bytes && *bytes <= kMostStoredBytes) return *bytes;
  problems.push_back({value.where(), "'" + key + "' is not a size",
                      "write bytes (at most 8 PiB), or a number with KiB, MiB, GiB, KB, MB, GB"});
  return 0;
}

void read_link(ObjectReader& in, ClusterLink& link) {
  const bool given = in.has("bandwidth");
  if (given) link.bandwidth = in.number("bandwidth");
  link.latency_s = in.within("latency", 0, kHighestLatency, 0);
  if (!given) {
    in.problem("bandwidth", "key 'bandwidth' is missing", "bytes per second of the link: bandwidth: 12e9");
  } else if (!(link.bandwidth > 0)) {
    in.problem("bandwidth", "must be greater than 0 (bytes per second)");
  } else if (link.bandwidth < kLowestBandwidth || link.bandwidth > kHighestBandwidth) {
    in.problem("bandwidth", "is not between 1e-6 and 1e18 bytes per second");
  }
}

void read_levels(const Json& levels, ClusterSpec& spec, Problems& problems) {
  for (const Json& item : levels.items()) {
    ObjectReader level(item, problems);
    spec.levels.push_back({.count = level.whole("count", 1, kMostFileRanks)});
    if (spec.num_ranks() > kMostFileRanks) {
      level.problem("count", "the levels multiply to more than " + std::to_string(kMostFileRanks) + " ranks");
      spec.levels.back().count = 1;
    }
    ClusterLink link;
    read_link(level, link);
    spec.levels.back().bandwidth = link.bandwidth;
    spec.levels.back().latency_s = link.latency_s;
    level.finish();
  }
}

void read_kinds(const Json& kinds, ClusterSpec& spec, Problems& problems) {
  for (const Json& item : kinds.items()) {
    ObjectReader in(item, problems);
    DeviceKind kind{.name = in.string("name"),
                    .speed = in.within("speed", 1 / kHighestSpeed, kHighestSpeed, 1)};
    if (const Json* memory = in.any("memory")) kind.memory = bytes_from(*memory, "memory", problems);
    kind.copy_bandwidth = in.within("copy_bandwidth", 0, kHighestBandwidth, 0);
    kind.profile = in.string("profile", "");
    if (kind.name.empty()) in.problem("name", "is empty");
    for (const DeviceKind& other : spec.kinds) {
      if (other.name == kind.name) in.problem("name", "'" + kind.name + "' is listed twice");
    }
    spec.kinds.push_back(std::move(kind));
    in.finish();
  }
}

std::vector<std::string> names_of(const auto& items) {
  std::vector<std::string> names;
  for (const auto& item : items) names.push_back(item.name);
  return names;
}

/// Checks that a name is one of `names`; the nearest one is the hint.
void check_known(ObjectReader& in, std::string_view key, const std::string& what, const std::string& name,
                 const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  const auto near = nearest_name(name, names);
  in.problem(key, "no " + what + " is called '" + name + "'",
             near ? "did you mean '" + *near + "'?" : "list it under " + what + "s");
}

void read_hosts(const Json& hosts, ClusterSpec& spec, Problems& problems) {
  const bool by_host = spec.levels.empty();
  for (const Json& item : hosts.items()) {
    ObjectReader in(item, problems);
    ClusterHost host{.name = in.string("name"), .devices = in.whole("devices", 1, kMostFileRanks, 1)};
    if (by_host && spec.num_ranks() > kMostFileRanks - host.devices) {
      in.problem("devices", "the hosts have more than " + std::to_string(kMostFileRanks) + " devices");
      host.devices = 1;
    }
    host.kind = in.string("kind", "");
    if (!host.kind.empty()) check_known(in, "kind", "kind", host.kind, names_of(spec.kinds));
    if (by_host && (host.devices > 1 || in.has("bandwidth"))) read_link(in, host.link);
    for (const ClusterHost& other : spec.hosts) {
      if (by_host && other.name == host.name) in.problem("name", "'" + host.name + "' is listed twice");
    }
    spec.hosts.push_back(std::move(host));
    in.finish();
  }
}

void read_host_links(const Json& links, ClusterSpec& spec, Problems& problems) {
  for (const Json& item : links.items()) {
    ObjectReader in(item, problems);
    const std::vector<std::string> between = in.strings("between");
    HostLink made;
    read_link(in, made.link);
    if (between.size() == 2 && between[0] != between[1]) {
      made.from = between[0];
      made.to = between[1];
      for (const std::string& name : between) check_known(in, "between", "host", name, names_of(spec.hosts));
      for (const HostLink& other : spec.links) {
        if ((other.from == made.from && other.to == made.to) ||
            (other.from == made.to && other.to == made.from)) {
          in.problem("between", "this pair of hosts is listed twice");
        }
      }
      spec.links.push_back(std::move(made));
    } else {
      in.problem("between", "must name two hosts", "for example between: [a, b]");
    }
    in.finish();
  }
}

bool is_lower_pair(const RankLink& a, const RankLink& b) {
  return std::pair(a.from, a.to) < std::pair(b.from, b.to);
}

void read_rank_links(const Json& links, ClusterSpec& spec, Problems& problems) {
  const int ranks = spec.num_ranks();
  const auto is_rank = [&](const Json& item) {
    return item.kind() == Json::Kind::Int && item.as_int() >= 0 && item.as_int() < ranks;
  };
  for (const Json& item : links.items()) {
    ObjectReader in(item, problems);
    RankLink made;
    read_link(in, made.link);
    const Json* between = in.array("between");
    const bool two = between && between->size() == 2 && is_rank(between->items()[0]) &&
                     is_rank(between->items()[1]) &&
                     between->items()[0].as_int() != between->items()[1].as_int();
    if (two) {
      made.from = RankId(static_cast<int>(between->items()[0].as_int()));
      made.to = RankId(static_cast<int>(between->items()[1].as_int()));
      if (made.to < made.from) std::swap(made.from, made.to);
      spec.rank_links.push_back(made);
    } else if (between) {
      in.problem("between", "must name two ranks from 0 to " + std::to_string(ranks - 1),
                 "for example between: [0, 1]");
    }
    in.finish();
  }
  std::sort(spec.rank_links.begin(), spec.rank_links.end(), is_lower_pair);
  const auto twice =
      std::adjacent_find(spec.rank_links.begin(), spec.rank_links.end(),
                         [](const RankLink& a, const RankLink& b) { return !is_lower_pair(a, b); });
  if (twice != spec.rank_links.end()) {
    problems.push_back({links.where(),
                        "ranks " + std::to_string(twice->from.value) + " and " +
                            std::to_string(twice->to.value) + " are listed twice",
                        {}});
  }
}

/// Returns whether every pair of hosts has a link: `network`, or an entry in `links`.
bool all_pairs_linked(const ClusterSpec& spec) {
  const std::size_t hosts = spec.hosts.size();
  return spec.links.size() == hosts * (hosts - 1) / 2;
}

std::string link_text(const ClusterLink& link) {
  return "bandwidth: " + Json(link.bandwidth).dump() + ", latency: " + Json(link.latency_s).dump();
}

/// Returns text that YAML reads back as this string: quoted unless it is plainly a word.
std::string word(const std::string& text) {
  const bool plain = !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
                     std::all_of(text.begin(), text.end(), [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == '/';
                     });
  const bool taken = [&] {
    for (const char* name : {"true", "True", "TRUE", "false", "False", "FALSE", "null", "Null", "NULL", "yes",
                             "Yes", "no", "No", "on", "off"}) {
      if (text == name) return true;
    }
    return false;
  }();
  return plain && !taken ? text : Json(text).dump();
}

}  // namespace

int ClusterSpec::num_ranks() const {
  int ranks = levels.empty() ? 0 : 1;
  for (const ClusterLevel& level : levels) ranks *= level.count;
  for (const ClusterHost& host : hosts) ranks += levels.empty() ? host.devices : 0;
  return ranks;
}

int ClusterSpec::host_of(RankId rank) const {
  int before = 0;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    before += hosts[h].devices;
    if (rank.value < before) return static_cast<int>(h);
  }
  return 0;
}

int ClusterSpec::kind_of(RankId rank) const {
  if (kinds.empty() || hosts.empty()) return -1;
  const std::string& name = hosts[host_of(rank)].kind;
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    if (kinds[k].name == name) return static_cast<int>(k);
  }
  return -1;
}

double ClusterSpec::speed_of(RankId rank) const {
  const int kind = kind_of(rank);
  return kind < 0 ? 1 : kinds[kind].speed;
}

Bytes ClusterSpec::memory_of(RankId rank) const {
  const int kind = kind_of(rank);
  const Bytes own = kind < 0 ? 0 : kinds[kind].memory;
  return own > 0 ? own : memory_per_rank;
}

ClusterLink ClusterSpec::link(RankId a, RankId b) const {
  if (!rank_links.empty()) {
    const RankLink wanted{std::min(a, b), std::max(a, b), {}};
    const auto found = std::lower_bound(rank_links.begin(), rank_links.end(), wanted, is_lower_pair);
    if (found != rank_links.end() && !is_lower_pair(wanted, *found)) return found->link;
  }
  if (!levels.empty()) {
    int block = 1;
    for (const ClusterLevel& level : levels) {
      block *= level.count;
      if (a.value / block == b.value / block) return {level.bandwidth, level.latency_s};
    }
    return {levels.back().bandwidth, levels.back().latency_s};
  }
  const ClusterHost& from = hosts[host_of(a)];
  const ClusterHost& to = hosts[host_of(b)];
  if (&from == &to) return from.link;
  for (const HostLink& pair : links) {
    if ((pair.from == from.name && pair.to == to.name) || (pair.from == to.name && pair.to == from.name))
      return pair.link;
  }
  return network;
}

double ClusterSpec::copy_seconds_per_byte(RankId a, RankId b) const {
  if (kinds.empty() || host_of(a) == host_of(b)) return 0;
  double seconds = 0;
  for (RankId rank : {a, b}) {
    const int kind = kind_of(rank);
    const double speed = kind < 0 ? 0 : kinds[kind].copy_bandwidth;
    if (speed > 0) seconds += 1 / speed;
  }
  return seconds;
}

bool ClusterSpec::same_devices() const {
  if (kinds.empty()) return true;
  for (const ClusterHost& host : hosts) {
    if (host.kind != hosts.front().kind) return false;
  }
  return true;
}

Result<ClusterSpec> ClusterSpec::parse(std::string_view yaml, const std::string& name) {
  Result<Json> json = parse_yaml(yaml, name, {.bytes = 1 << 20, .nodes = 100'000});
  if (!json) return json.problems();
  Problems problems;
  ObjectReader in(*json, problems);
  ClusterSpec spec{.device = in.string("device", "cpu")};
  if (const Json* memory = in.any("memory")) spec.memory_per_rank = bytes_from(*memory, "memory", problems);
  if (const Json* levels = in.optional_array("levels")) read_levels(*levels, spec, problems);
  if (const Json* kinds = in.optional_array("kinds")) read_kinds(*kinds, spec, problems);
  if (const Json* hosts = in.optional_array("hosts")) read_hosts(*hosts, spec, problems);
  if (in.has("levels")) {
    if (problems.empty() && spec.levels.empty())
      in.problem("levels", "is empty", "one level at least, for example [{count: 2, bandwidth: 3e9}]");
    for (const char* key : {"network", "links"}) {
      if (in.has(key))
        in.problem(key, "does not go with levels", "give levels, or hosts with network and links");
    }
    std::int64_t devices = 0;
    for (const ClusterHost& host : spec.hosts) devices += host.devices;
    if (problems.empty() && !spec.hosts.empty() && devices != spec.num_ranks()) {
      in.problem("hosts", "the hosts have " + std::to_string(devices) + " devices, the levels multiply to " +
                              std::to_string(spec.num_ranks()));
    }
  } else if (spec.hosts.empty() && problems.empty()) {
    in.problem("levels", "key 'levels' is missing",
               "give levels, or hosts with their links, for example "
               "levels: [{count: 2, bandwidth: 3e9}]");
  } else {
    if (const Json* links = in.optional_array("links")) read_host_links(*links, spec, problems);
    if (const Json* network = in.optional_object("network")) {
      ObjectReader link(*network, problems);
      read_link(link, spec.network);
      link.finish();
    } else if (problems.empty() && !all_pairs_linked(spec)) {
      in.problem("network", "key 'network' is missing, and links do not join every pair of hosts",
                 "for example network: {bandwidth: 1.25e9, latency: 5e-5}");
    }
  }
  if (const Json* links = in.optional_array("rank_links"); links && problems.empty())
    read_rank_links(*links, spec, problems);
  in.finish();
  if (!problems.empty()) return problems;
  return spec;
}

Result<ClusterSpec> ClusterSpec::load(const std::string& path) {
  Result<std::string> text = read_file(path, kMiB);
  if (!text) return text.problems();
  Result<ClusterSpec> spec = parse(*text, path);
  if (!spec) return spec;
  const std::size_t slash = path.rfind('/');
  for (DeviceKind& kind : spec->kinds) {
    const bool relative = !kind.profile.starts_with('/') && !kind.profile.starts_with("~/");
    if (!kind.profile.empty() && relative && slash != std::string::npos)
      kind.profile = path.substr(0, slash + 1) + kind.profile;
  }
  return spec;
}

ClusterSpec ClusterSpec::local(int ranks) {
  return {.hosts = {{"localhost", ranks}}, .levels = {{.count = ranks, .bandwidth = 3e9, .latency_s = 5e-5}}};
}

std::string ClusterSpec::to_yaml() const {
  std::string text = "device: " + device + "\n";
  if (memory_per_rank > 0) text += "memory: " + std::to_string(memory_per_rank) + "\n";
  if (!levels.empty()) text += "levels:\n";
  for (const ClusterLevel& l : levels) {
    text += "  - {count: " + std::to_string(l.count) + ", " + link_text({l.bandwidth, l.latency_s}) + "}\n";
  }
  if (!kinds.empty()) text += "kinds:\n";
  for (const DeviceKind& k : kinds) {
    text += "  - {name: " + word(k.name) + ", speed: " + Json(k.speed).dump();
    if (k.memory > 0) text += ", memory: " + std::to_string(k.memory);
    if (k.copy_bandwidth > 0) text += ", copy_bandwidth: " + Json(k.copy_bandwidth).dump();
    if (!k.profile.empty()) text += ", profile: " + word(k.profile);
    text += "}\n";
  }
  if (!hosts.empty()) text += "hosts:\n";
  for (const ClusterHost& h : hosts) {
    text += "  - {name: " + word(h.name) + ", devices: " + std::to_string(h.devices);
    if (!h.kind.empty()) text += ", kind: " + word(h.kind);
    // A host with one device has a link only if the file specified it.
    if (levels.empty() && (h.devices > 1 || h.link != ClusterLink{})) text += ", " + link_text(h.link);
    text += "}\n";
  }
  const bool networked = levels.empty() && hosts.size() > 1 && !all_pairs_linked(*this);
  if (networked) text += "network: {" + link_text(network) + "}\n";
  if (!links.empty()) text += "links:\n";
  for (const HostLink& l : links) {
    text += "  - {between: [" + word(l.from) + ", " + word(l.to) + "], " + link_text(l.link) + "}\n";
  }
  if (!rank_links.empty()) text += "rank_links:\n";
  for (const RankLink& l : rank_links) {
    text += "  - {between: [" + std::to_string(l.from.value) + ", " + std::to_string(l.to.value) + "], " +
            link_text(l.link) + "}\n";
  }
  return text;
}

std::string ClusterSpec::fingerprint() const {
  return fingerprint_of(to_yaml());
}

}  // namespace millrace
