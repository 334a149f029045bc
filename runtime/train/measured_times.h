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

/// The seconds of each computation that a run recorded. Immutable.
class MeasuredTimes {
 public:
  /// Reads the trace of all ranks in the output folder of an instrumented run. Problem: no such run; it has
  /// stages of other layers than `plan`, or microbatches of other than `microbatch` samples; it recorded no
  /// step.
  static Result<MeasuredTimes> read(const std::string& folder, const Plan& plan, int microbatch);

  /// Adds the spans of the next rank, in the order of the ranks.
  void add(std::vector<Span> spans);
  /// Returns the times by replica of the stage, each in the order of steps and microbatches; null where none
  /// was recorded. A run of one step has only a first step, which then stands for all.
  const std::vector<std::vector<double>>* find(RunPart part, SpanKind kind, int stage) const;
  const std::string& source() const { return source_; }

 private:
  std::string source_;
  std::map<std::tuple<RunPart, SpanKind, int>, std::vector<std::vector<double>>> seconds_;
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
  std::map<std::tuple<RunPart, SpanKind, int>, Deck> decks_;
  TimePoint::duration late_{};
  double drawn_ = 0, waited_ = 0;
};

}  // namespace millrace
