// The files of a DLIO run: DLIO's own, with its names and rules, and our keys beside them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "experiments/io/dlio/dlio_config.h"

namespace millrace {

/// The steps of a rank between two checkpoints (or of an evaluation). Seconds.
struct RankBlock {
  std::vector<double> load;     ///< waited for a batch
  std::vector<double> copy;     ///< of that, taking it over
  std::vector<double> compute;  ///< as it was, not as it was asked for
  std::vector<double>
      asked;                 ///< computation that was asked for: what a wait that ends late adds is not in it
  std::vector<double> proc;  ///< from asking for the batch to the end of the computation
  std::vector<double> barrier;  ///< waited for the other ranks behind it
  double wall = 0;              ///< of the whole block
  std::int64_t samples = 0;
  Bytes bytes = 0;
  std::uint64_t places = 0;
};

/// The steps [first, end) of a block that count.
struct Counted {
  std::size_t first = 0, end = 0;
  std::size_t steps() const { return end - first; }
};
Counted counted_steps(const DlioConfig& config, std::size_t steps);

/// DLIO's rules: utilisation = computation of the counted steps / (wall time - what the others took), in per
/// cent; throughput = samples of the counted steps / the same time. (DLIO counts two steps less whatever is
/// excluded.) `own_cost_s`: seconds a step of the loop itself, subtracted from the time; 0 gives the raw
/// figures.
struct BlockMetrics {
  double au = 0, throughput = 0;
  double au_asked =
      0;  ///< the computation asked for / the same time: what a machine that wakes late loses shows
};
BlockMetrics block_metrics(const DlioConfig& config, const RankBlock& block, std::int64_t batch,
                           double own_cost_s);

/// How far emulated computation may be from what was asked for, per cent: beyond, utilisation says nothing.
constexpr double kMostComputeError = 1;
/// Returns by how many per cent more (negative: less) was computed than asked, from the mean utilisations
/// as computed and as asked for. 0 where nothing was asked for.
double compute_error(double au, double au_asked);
/// "success", "fail", or "invalid" where the computation is off.
const char* au_verdict(double au, double au_asked, double expected);

double average_of(const std::vector<double>& values);
double spread_of(const std::vector<double>& values);  ///< of the population, as NumPy's std

/// "2026-01-02T03:04:05.678901", UTC.
std::string stamp(double unix_s);

/// lines "key : value" of a file of /proc as an object.
Json proc_lines(const std::string& path);

/// Writes FOLDER/.hydra/{config,overrides,hydra}.yaml.
void write_hydra_files(const DlioConfig& config, const std::string& folder, int ranks);
void write_json_file(const std::string& path, const Json& json);

}  // namespace millrace
