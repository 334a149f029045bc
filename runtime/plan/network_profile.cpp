#include "runtime/plan/network_profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/median.h"

namespace millrace {
namespace {

/// The bandwidth above which a link counts as free: no memory is faster, and the planner divides by it.
constexpr double kMostBandwidth = 1e13;  // bytes/s

struct Slope {
  double value = 0;
  double weight = 0;
};

double weighted_median_of(std::vector<Slope> slopes) {
  if (slopes.empty()) return 0;
  std::sort(slopes.begin(), slopes.end(), [](const Slope& a, const Slope& b) { return a.value < b.value; });
  double total = 0;
  for (const Slope& slope : slopes) total += slope.weight;
  double below = 0;
  for (const Slope& slope : slopes) {
    below += slope.weight;
    if (below >= total / 2) return slope.value;
  }
  return slopes.back().value;
}

/// Returns 1 / slope of the line. If noise hides the slope, the time of the largest message gives a lower
/// bound.
double bandwidth_of(const std::vector<MessageTime>& times, double latency_s) {
  const double slope = fit_line(times).seconds_per_byte;
  if (slope > 0) return std::min(1 / slope, kMostBandwidth);
  if (times.empty() || times.back().bytes <= 0) return kMostBandwidth;
  const MessageTime& largest = times.back();
  const double seconds = largest.seconds > latency_s ? largest.seconds - latency_s : largest.seconds;
  const double bandwidth = static_cast<double>(largest.bytes) / std::max(seconds, 1e-9);
  return std::min(bandwidth, kMostBandwidth);
}

/// Rounds to four digits: more would be noise in the file.
double rounded(double value) {
  if (!(value > 0)) return value;
  const double scale = std::pow(10.0, 3 - std::floor(std::log10(value)));
  return std::round(value * scale) / scale;
}

ClusterLink typical_of(const std::vector<ClusterLink>& links) {
  std::vector<double> bandwidths, latencies;
  for (const ClusterLink& link : links) {
    bandwidths.push_back(link.bandwidth);
    latencies.push_back(link.latency_s);
  }
  return {rounded(median(std::move(bandwidths))), rounded(median(std::move(latencies)))};
}

bool are_alike(const ClusterLink& a, const ClusterLink& b, double tolerance) {
  const auto [slow, fast] = std::minmax(a.bandwidth, b.bandwidth);
  const auto [near, far] = std::minmax(a.latency_s, b.latency_s);
  return fast <= slow * (1 + tolerance) && (far - near <= kLatencyNoise || far <= near * (1 + tolerance));
}

/// The group of a pair of ranks: (level, level), (host, host) for the inside of a host, or two hosts.
using Group = std::pair<int, int>;

Group group_of(const ClusterSpec& cluster, RankId a, RankId b) {
  if (cluster.levels.empty()) return {cluster.host_of(a), cluster.host_of(b)};
  int block = 1, level = 0;
  for (const ClusterLevel& l : cluster.levels) {
    block *= l.count;
    if (a.value / block == b.value / block) break;
    ++level;
  }
  return {level, level};
}

void set_levels(ClusterSpec& cluster, const std::map<Group, ClusterLink>& links) {
  for (const auto& [group, link] : links) {
    ClusterLevel& level = cluster.levels[group.first];
    level.bandwidth = link.bandwidth;
    level.latency_s = link.latency_s;
  }
}

void set_hosts(ClusterSpec& cluster, const std::map<Group, ClusterLink>& links, double tolerance) {
  std::vector<ClusterLink> between;
  for (const auto& [group, link] : links) {
    if (group.first == group.second) {
      cluster.hosts[group.first].link = link;
    } else {
      between.push_back(link);
    }
  }
  if (between.empty()) return;
  cluster.network = typical_of(between);
  cluster.links.clear();
  for (const auto& [group, link] : links) {
    if (group.first == group.second || are_alike(link, cluster.network, tolerance)) continue;
    cluster.links.push_back({cluster.hosts[group.first].name, cluster.hosts[group.second].name, link});
  }
}

}  // namespace

LineFit fit_line(const std::vector<MessageTime>& points) {
  std::vector<Slope> slopes;
  for (std::size_t i = 0; i < points.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto bytes = static_cast<double>(points[i].bytes - points[j].bytes);
      if (bytes != 0) slopes.push_back({(points[i].seconds - points[j].seconds) / bytes, std::abs(bytes)});
    }
  }
  LineFit fit{.seconds_per_byte = weighted_median_of(std::move(slopes))};
  std::vector<double> rests;
  for (const MessageTime& point : points)
    rests.push_back(point.seconds - static_cast<double>(point.bytes) * fit.seconds_per_byte);
  fit.intercept_s = median(std::move(rests));
  return fit;
}

double LinkMeasurement::bandwidth_there() const {
  return bandwidth_of(there, latency_s);
}

double LinkMeasurement::bandwidth_back() const {
  return bandwidth_of(back, latency_s);
}

ClusterLink LinkMeasurement::link() const {
  return {std::min(bandwidth_there(), bandwidth_back()), latency_s};
}

ClusterSpec with_measured_links(ClusterSpec cluster, const std::vector<LinkMeasurement>& measured,
                                double tolerance) {
  std::map<Group, std::vector<ClusterLink>> members;
  for (const LinkMeasurement& m : measured) {
    MILLRACE_CHECK(RankId(-1) < m.from && m.from < m.to && m.to.value < cluster.num_ranks());
    members[group_of(cluster, m.from, m.to)].push_back(m.link());
  }
  std::map<Group, ClusterLink> links;
  for (const auto& [group, list] : members) links[group] = typical_of(list);
  cluster.rank_links.clear();
  if (cluster.levels.empty()) {
    set_hosts(cluster, links, tolerance);
  } else {
    set_levels(cluster, links);
  }
  // Compared with the link that the file will give the pair. For hosts it is `network` if their own link is
  // like it.
  std::vector<RankLink> unlike;
  for (const LinkMeasurement& m : measured) {
    const ClusterLink link = m.link();
    if (!are_alike(link, cluster.link(m.from, m.to), tolerance))
      unlike.push_back({m.from, m.to, typical_of({link})});
  }
  std::sort(unlike.begin(), unlike.end(), [](const RankLink& a, const RankLink& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  cluster.rank_links = std::move(unlike);
  return cluster;
}

ClusterSpec with_measured_speeds(ClusterSpec cluster, const std::vector<double>& speeds) {
  constexpr double kAlike = 1.15;  // smaller differences are noise of a short probe
  if (!cluster.kinds.empty() || cluster.hosts.size() < 2 || !cluster.levels.empty()) return cluster;
  const auto alike = [](double x, double y) { return std::max(x / y, y / x) < kAlike; };
  int rank = 0;
  double first = 1;
  for (ClusterHost& host : cluster.hosts) {
    double sum = 0;
    for (int local = 0; local < host.devices; ++local) sum += speeds[rank++];
    const double mean = sum / host.devices;
    if (&host == &cluster.hosts.front()) first = mean;
    const double speed = mean / first;
    if (alike(speed, 1)) continue;
    const auto same =
        std::ranges::find_if(cluster.kinds, [&](const DeviceKind& k) { return alike(k.speed, speed); });
    host.kind = same == cluster.kinds.end() ? "as-" + host.name : same->name;
    if (same == cluster.kinds.end()) cluster.kinds.push_back({.name = host.kind, .speed = speed});
  }
  return cluster;
}

}  // namespace millrace
