// Computes the links of a cluster from message times. LibTorch-free. runtime/profile/network_profiler.h sends
// the messages.
#pragma once

#include <vector>

#include "runtime/plan/cluster_spec.h"

namespace millrace {

/// A message of `bytes` took `seconds`.
struct MessageTime {
  Bytes bytes = 0;
  double seconds = 0;
};

/// A line: seconds = intercept_s + bytes * seconds_per_byte.
struct LineFit {
  double intercept_s = 0;
  double seconds_per_byte = 0;
};

/// Fits a line that is robust to outliers: up to one point in five may be arbitrary. The slope is the
/// weighted median of the slopes of all pairs of points. A pair's weight is its distance in bytes, because
/// short distances are noisy. The intercept is the median of seconds - slope * bytes. Sources: Sen, JASA 63
/// (1968); the weights: Sievers, JASA 73 (1978). Zero slope if all points have one size. O(n^2 log n).
LineFit fit_line(const std::vector<MessageTime>& points);

/// The measured latency and bandwidth between two ranks.
struct LinkMeasurement {
  RankId from;  ///< less than `to`
  RankId to;
  double latency_s = 0;  ///< seconds one way: half the median round trip of small messages
  double latency_min_s = 0;
  double latency_max_s = 0;
  std::vector<MessageTime> there;  ///< `from` to `to`, one way: medians by size, ascending
  std::vector<MessageTime> back;

  double bandwidth_there() const;  ///< bytes/s; always positive and finite
  double bandwidth_back() const;
  ClusterLink link() const;  ///< the slower direction
};

/// Two links are alike if bandwidths and latencies each differ by at most this share of the lower one.
/// Latencies are also alike if they differ by at most kLatencyNoise.
inline constexpr double kLinkTolerance = 0.25;
inline constexpr double kLatencyNoise = 5e-6;  // seconds; half a wake-up of a sleeping process

/// Returns `cluster` with measured links; `measured` has all pairs of its ranks. A level, the inside of a
/// host, or a pair of hosts is a group of rank pairs, and its link is the median of their links. Host pairs
/// that are like the median of all host pairs share `network`; the others are listed in `links`. Rank pairs
/// unlike their group's link are listed in `rank_links`. All earlier links are replaced, except those of
/// groups without a pair.
ClusterSpec with_measured_links(ClusterSpec cluster, const std::vector<LinkMeasurement>& measured,
                                double tolerance = kLinkTolerance);

/// Gives each host whose ranks compute at least 15 % faster or slower than the first host's its own kind.
/// `speeds` are by rank. A file with kinds or levels keeps them.
ClusterSpec with_measured_speeds(ClusterSpec cluster, const std::vector<double>& speeds);

}  // namespace millrace
