// tracesim/1: how alike the I/O of two runs is, from 0 to 1, by phase and class of event. Our own definition:
// the kit's tracesim is not published.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/io/trace/timeline_data.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

inline constexpr std::size_t kShapeBins = 100;

/// The events of one phase and class that enter the score. Memory: 8 bytes an event.
struct ClassProfile {
  std::int64_t count = 0;
  std::array<std::int64_t, kShapeBins> starts{};  ///< start positions in the phase, in equal bins
  std::vector<double> durations;                  ///< seconds, ascending
  double busy = 0;                                ///< share of the phase in which at least one runs
};

/// The intervals of one kind of phase, put one behind the other.
struct PhaseProfile {
  double seconds = 0;
  std::array<ClassProfile, kEventNames.size()> classes;  ///< by EventType
};

struct RunProfile {
  std::array<PhaseProfile, kPhaseNames.size()> phases;  ///< by Phase
  double seconds = 0;                                   ///< of all phases
  std::int64_t events = 0, outside = 0;                 ///< counted, and those in no phase
};

/// Events of the layout all_combined, by their start. Problem: it is missing or holds no event in any phase.
Result<RunProfile> profile_run(const Timeline& timeline);

struct ClassScore {
  bool compared = false;  ///< false: no such event in either
  double count = 0, shape = 0, latency = 0, busy = 0, score = 0;
  std::int64_t events_a = 0, events_b = 0;
};
struct PhaseScore {
  bool compared = false;  ///< false: neither run has the phase
  std::array<ClassScore, kEventNames.size()> classes;
  double score = 0, weight = 0;
};
struct Similarity {
  std::array<PhaseScore, kPhaseNames.size()> phases;
  double total = 0;
};

/// count: least / greatest number. shape: sum over 100 bins of the lesser share of starts. latency: 1 - the
/// two-sample Kolmogorov-Smirnov statistic of durations. busy: 1 - |difference|. A class's score is their
/// geometric mean (0 if only one run has such events), a phase's the mean over its classes weighted by
/// the events of both (1 if there are none, 0 if only one run has the phase), the total weighted by the mean
/// share of the phase in the two runs. 1 for the same run, symmetric, in [0, 1].
Similarity similarity(const RunProfile& a, const RunProfile& b);

/// 1 - sup |F_a - F_b|; both sorted and not empty.
double ks_similarity(const std::vector<double>& a, const std::vector<double>& b);

/// Scores of A against B by repeated runs: every run of A with every run of B, and runs of A among each
/// other.
struct Interval {
  double mean = 0, low = 0, high = 0;
  std::size_t pairs = 0;
};
/// Percentile bootstrap of the mean, 95 %: runs (not pairs) are drawn again, `draws` times, from `seed`.
/// scores[i][j]: run i of A with run j of B; `within`: the same runs on both sides, pairs of a run with
/// itself are left out. Nothing if there are not at least two runs on a side.
std::optional<Interval> bootstrap_interval(const std::vector<std::vector<double>>& scores, bool within,
                                           std::uint64_t seed, int draws = 2000);

Json similarity_json(const Similarity& similarity);

}  // namespace millrace
