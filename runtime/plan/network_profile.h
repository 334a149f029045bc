// Turns times of messages into the links of a cluster. LibTorch-free: runtime/profile/network_profiler.h
// sends the messages.
#pragma once

#include <vector>

#include "runtime/plan/cluster_spec.h"

namespace millrace {

/// A message of `bytes` took `seconds`.
struct MessageTime {
  Bytes bytes = 0;
  double seconds = 0;
};

/// seconds = intercept_s + bytes * seconds_per_byte
struct LineFit {
  double intercept_s = 0;
  double seconds_per_byte = 0;
};

/// The line through most of the points: its slope is the median of the slopes of all pairs of points,
/// weighted by their distance in bytes (the short distances have the noise), its intercept the median of what
/// is left. One point in five may be anything. Sources: Sen, JASA 63 (1968); the weights: Sievers, JASA 73
/// (1978). Zero slope if all points have one size. O(n^2 log n).
LineFit fit_line(const std::vector<MessageTime>& points);

/// The measured latency and bandwidth between two ranks.
struct LinkMeasurement {
  RankId from;  ///< less than `to`
  RankId to;
  double latency_s = 0;  ///< one way: half the median round trip of small messages
  double latency_min_s = 0;
  double latency_max_s = 0;
  std::vector<MessageTime> there;  ///< `from` to `to`, one way: medians by size, ascending
  std::vector<MessageTime> back;

  double bandwidth_there() const;  ///< bytes/s; always positive and finite
  double bandwidth_back() const;
  ClusterLink link() const;  ///< the slower direction
};

/// Two links are alike if their bandwidths differ by no more than this share of the lower one, and their
/// latencies likewise or by no more than kLatencyNoise.
inline constexpr double kLinkTolerance = 0.25;
inline constexpr double kLatencyNoise = 5e-6;  // seconds; half a wake-up of a sleeping process

/// `cluster` with links as measured (all pairs of its ranks): a level, the inside of a host, or a pair of
/// hosts gets the medians of its pairs of ranks; host pairs like their median share `network`, the others are
/// in `links`; pairs of ranks unlike the link of their group are in `rank_links`. What the file said of links
/// before is gone, except where there is no pair to measure.
ClusterSpec with_measured_links(ClusterSpec cluster, const std::vector<LinkMeasurement>& measured,
                                double tolerance = kLinkTolerance);

}  // namespace millrace
