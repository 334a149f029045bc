// The figures 3, 4a, 4b, 5 and 6 of "Analyzing and mitigating data stalls in DNN training", as the OSRE
// emulator project reproduced them: each is measured, written as CSV and drawn. Sources: PVLDB 14(5),
// section 4.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/io/stalls/stall_analysis.h"
#include "runtime/base/choices.h"

namespace millrace {

/// 3: fetch stall by model. 4a: an epoch by share of the data cached. 4b: the same, beside a cache that never
/// evicts. 5: speed by decoding threads. 6: preparation stall by model.
enum class StallFigure { FetchByModel, EpochByCache, EpochAndIdeal, SpeedByThreads, PreparationByModel };
constexpr auto names_of(StallFigure) {
  return std::to_array<std::string_view>({"3", "4a", "4b", "5", "6"});
}

/// The time of one step on the device.
struct StepTime {
  std::string model;
  double compute_s = 0, copy_s = 0;
};

/// A figure measures one of these. Its models, caches, policies and threads are those of the lists that it
/// uses.
struct FigurePlan {
  StallFigure figure = StallFigure::FetchByModel;
  std::vector<StepTime> models;
  std::vector<double> caches;  ///< shares of the data; 3: the first
  std::vector<int> threads;    ///< that decode; of figures other than 5: the first
  StallJob job;                ///< all else
};

/// One bar or point of a figure. The parts of the epoch add up to it.
struct FigurePoint {
  std::string model;
  double cache = 1;  ///< share of the data
  CachePolicy policy = CachePolicy::MinIo;
  int threads = 1;
  std::int64_t samples = 0;
  Estimate epoch_s, speed;  ///< speed: samples that were read / epoch
  Estimate compute_s, copy_s, preparation_s, fetch_s;
  Estimate preparation_share, fetch_share;  ///< of the epoch
  double hit_ratio = 1;
  Bytes miss_bytes = 0;  ///< of one epoch
};

/// Runs what the figure needs. `tell(done, total)` after each point. Throws DataError.
std::vector<FigurePoint> measure_figure(
    const FigurePlan& plan, const std::function<void(std::int64_t done, std::int64_t total)>& tell);

/// Writes figureN.csv, figureN.svg and figureN.png into the folder, which exists. Returns their paths.
Result<std::vector<std::string>> write_figure(const std::string& folder, const FigurePlan& plan,
                                              const std::vector<FigurePoint>& points);

}  // namespace millrace
