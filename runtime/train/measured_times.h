// Simulated computation: the times of another run's computations, and waits of these lengths.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/plan/plan.h"
#include "runtime/trace/trace.h"

namespace millrace {

/// The part of a run to which a computation belongs. A first step differs from the others.
enum class RunPart { FirstStep, Steps, Evaluation };

/// The behaviour if no measured run has as many ranks, or as large microbatches, or more.
enum class OutsideMeasured {
  Refuse,
  /// The nearest run is used. Its computations of microbatches are scaled in proportion to the samples.
  TakeNearest
};

/// The seconds of each computation recorded in a run. Immutable.
class MeasuredTimes {
 public:
  /// Reads the traces of all ranks in the output folders of instrumented runs. The result is for a run of
  /// `plan` with `microbatch` samples in a microbatch, of as many `jobs` in as many arrays. A run with as
  /// many ranks and samples is used unchanged. Otherwise the distribution is interpolated between the nearest
  /// runs with fewer and with more (see mix). Returns an error if no such run exists, if stages have other
  /// layers than the plan's, if there is no run on one side, or if a run recorded no step.
  static Result<MeasuredTimes> read(const std::vector<std::string>& folders, const Plan& plan, int microbatch,
                                    int jobs, OutsideMeasured outside = OutsideMeasured::Refuse);

  /// Returns times between those of two runs: `share` of `high`, the rest of `low`. Each time of the nearer
  /// run keeps its position among the steps. Its value becomes the weighted mean of the two runs' values at
  /// its quantile. Every quantile is therefore between the measured ones, and none is negative.
  static MeasuredTimes mix(const MeasuredTimes& low, const MeasuredTimes& high, double share);
  /// Returns a copy with the seconds of forwards and backwards multiplied by `factor`. Updates are unchanged.
  MeasuredTimes scaled(double factor) const;

  /// Adds the spans of the next rank, in rank order.
  void add(std::vector<Span> spans);
  /// Returns the times by replica of the stage, each in the order of steps and microbatches; null if none was
  /// recorded. A run of one step has only a first step, which then represents all. `turn`: for a model
  /// trained in turns; the turns of a step are the repetitions of a computation in the trace.
  const std::vector<std::vector<double>>* find(RunPart part, SpanKind kind, int stage, int turn = 0) const;
  /// "out", or the runs that were mixed: "0.50 of out1, 0.50 of out2".
  const std::string& source() const { return source_; }
  /// Returns a note for each time that falls although microbatches grow, which makes interpolation between
  /// two runs doubtful; else empty.
  const std::vector<std::string>& doubts() const { return doubts_; }

 private:
  /// Part of the run, kind of computation, stage, turn.
  using Key = std::tuple<RunPart, SpanKind, int, int>;
  static Result<MeasuredTimes> of_one(const std::string& folder, const Plan& plan);

  /// Returns the mean seconds of forwards and backwards of a microbatch on all stages and in all turns, after
  /// the first step.
  double of_microbatch() const;

  std::string source_;
  std::vector<std::string> doubts_;
  std::map<Key, std::vector<std::vector<double>>> seconds_;
};

/// Makes one rank wait instead of computing. Each length is drawn from the measured ones without replacement,
/// until all were drawn: long runs therefore take the same total time, not only on average. Ranks, stages,
/// forwards and backwards use the same draws, so computations that were slow together remain so. Not
/// thread-safe.
class ComputeWaits {
 public:
  /// `times` and `clock` must outlive the object. Replica k of a stage in `plan` uses the times of the
  /// measured replica k, or of k modulo their number if the run had fewer.
  ComputeWaits(const MeasuredTimes& times, std::uint64_t seed, const Plan& plan, RankId rank, Clock& clock);

  /// Waits until work that started at `begin` has taken the drawn time. A wait that ends too late, because
  /// the cores are busy, shortens the next ones. Throws ConfigError if no such computation was measured.
  void wait(RunPart part, SpanKind kind, int stage, TimePoint begin);
  /// Sets the turn of the following waits.
  void set_turn(int turn) { turn_ = turn; }

  double drawn_s() const { return drawn_; }    ///< total planned length of the waits
  double waited_s() const { return waited_; }  ///< total actual length

 private:
  struct Deck {
    std::vector<double> seconds;
    std::vector<std::size_t> order;  ///< as shuffled for the `shuffles`-th time
    std::size_t next = 0;            ///< index in `order`
    std::uint64_t shuffles = 0;
  };
  double draw(RunPart part, SpanKind kind, int stage);

  const MeasuredTimes& times_;
  std::uint64_t seed_;
  std::map<int, std::size_t> replica_of_;  ///< by stage on the rank
  Clock& clock_;
  int turn_ = 0;
  std::map<std::tuple<RunPart, SpanKind, int, int>, Deck> decks_;
  TimePoint::duration late_{};
  double drawn_ = 0, waited_ = 0;
};

}  // namespace millrace
