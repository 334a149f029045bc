// Computation that only takes time: how long that of another run took, and waits of such lengths.
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

/// The part of a run that a computation belongs to. A first step is not like the others.
enum class RunPart { FirstStep, Steps, Evaluation };

/// What is done where no measured run has as many ranks, or as large microbatches, or more.
enum class OutsideMeasured {
  Refuse,
  /// The nearest run stands for it. Its computations of microbatches are taken in proportion to the samples.
  TakeNearest
};

/// The seconds of each computation that a run recorded. Immutable.
class MeasuredTimes {
 public:
  /// Reads the traces of all ranks in the output folders of instrumented runs, for a run of `plan` with
  /// `microbatch` samples in a microbatch, of as many `jobs` in as many arrays. A run with as many ranks and
  /// samples is taken as it is. Else its distribution lies between those of the nearest runs with fewer and
  /// with more (see mix). Problem: no such run; stages of other layers than the plan's; no run to one side; a
  /// run that recorded no step.
  static Result<MeasuredTimes> read(const std::vector<std::string>& folders, const Plan& plan, int microbatch,
                                    int jobs, OutsideMeasured outside = OutsideMeasured::Refuse);

  /// Returns times between those of two runs: `share` of `high`, the rest of `low`. Each time of the nearer
  /// run keeps its place among the steps. Its value becomes the mixture of the two runs' values at its
  /// quantile. So every quantile lies between the measured ones, and none is negative.
  static MeasuredTimes mix(const MeasuredTimes& low, const MeasuredTimes& high, double share);
  /// Returns the same with `factor` times the seconds of forwards and backwards. Updates stay.
  MeasuredTimes scaled(double factor) const;

  /// Adds the spans of the next rank, in the order of the ranks.
  void add(std::vector<Span> spans);
  /// Returns the times by replica of the stage, each in the order of steps and microbatches; null where none
  /// was recorded. A run of one step has only a first step, which then stands for all. `turn`: of a model
  /// that is trained in turns; the turns of a step are the repetitions of a computation in the trace.
  const std::vector<std::vector<double>>* find(RunPart part, SpanKind kind, int stage, int turn = 0) const;
  /// "out", or the runs that were mixed: "0.50 of out1, 0.50 of out2".
  const std::string& source() const { return source_; }
  /// Says where times fall though microbatches grow, so that what lies between two runs is a guess; else
  /// empty.
  const std::vector<std::string>& doubts() const { return doubts_; }

 private:
  /// Part of the run, what was computed, stage, turn.
  using Key = std::tuple<RunPart, SpanKind, int, int>;
  static Result<MeasuredTimes> of_one(const std::string& folder, const Plan& plan);

  /// The mean seconds of forwards and backwards of a microbatch on all stages and in all turns, after the
  /// first step.
  double of_microbatch() const;

  std::string source_;
  std::vector<std::string> doubts_;
  std::map<Key, std::vector<std::vector<double>>> seconds_;
};

/// Lets one rank wait instead of computing. Each length is drawn from those that were measured, without
/// putting it back until all were drawn: so long runs take the same time in total, not only on average.
/// Ranks, stages, forwards and backwards draw alike: what was slow together stays together. Not thread-safe.
class ComputeWaits {
 public:
  /// `times` and `clock` must outlive it. Replica k of a stage in `plan` takes the times of the measured
  /// replica k, or of k modulo their number where the run had fewer.
  ComputeWaits(const MeasuredTimes& times, std::uint64_t seed, const Plan& plan, RankId rank, Clock& clock);

  /// Waits until work that began at `begin` has taken as long as the drawn one. A wait that ends too late,
  /// because the cores are busy, shortens the next ones. Throws ConfigError if nothing of the kind was
  /// measured.
  void wait(RunPart part, SpanKind kind, int stage, TimePoint begin);
  /// The waits that follow are of this turn of a step.
  void set_turn(int turn) { turn_ = turn; }

  double drawn_s() const { return drawn_; }    ///< what the waits should have taken
  double waited_s() const { return waited_; }  ///< what they took

 private:
  struct Deck {
    std::vector<double> seconds;
    std::vector<std::size_t> order;  ///< as shuffled for the `shuffles`-th time
    std::size_t next = 0;            ///< in `order`
    std::uint64_t shuffles = 0;
  };
  double draw(RunPart part, SpanKind kind, int stage);

  const MeasuredTimes& times_;
  std::uint64_t seed_;
  std::map<int, std::size_t> replica_of_;  ///< by stage that the rank holds
  Clock& clock_;
  int turn_ = 0;
  std::map<std::tuple<RunPart, SpanKind, int, int>, Deck> decks_;
  TimePoint::duration late_{};
  double drawn_ = 0, waited_ = 0;
};

}  // namespace millrace
