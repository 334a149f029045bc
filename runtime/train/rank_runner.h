// Runs this rank's list of actions: it opens a span for each action and passes it to the executor.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/schedule/schedule.h"
#include "runtime/trace/trace.h"
#include "runtime/train/batch_source.h"
#include "runtime/train/rank_stages.h"
#include "runtime/train/status_board.h"

namespace millrace {

class ComputeWaits;
class Failpoints;
class FlightRecorder;

/// Seconds that the rank spent, by kind of work, since take_times() was last called.
struct StepTimes {
  double forward = 0, backward = 0, send = 0, receive = 0, wait = 0, all_reduce = 0, update = 0, data = 0;
  StepTimes& operator+=(const StepTimes& other);
};

struct RunnerParts {
  RankStages& stages;
  std::vector<BatchSource*> batches;  ///< by array
  Clock& clock;
  SpanRing& trace;
  StatusBoard& status;
  Device& device;
  /// steps of the run per Update of this rank; above 1 if replicas of an asynchronous pipeline share the
  /// steps
  int steps_per_update = 1;
  /// The number of microbatches of each array, if the actions are of several arrays. Microbatches of array k
  /// are numbered from k times this number, and each array has its own positions. 0: all actions are of
  /// `array`.
  int of_each_array = 0;
  int array = 0;
  Failpoints* failpoints = nullptr;    ///< as in World
  FlightRecorder* recorder = nullptr;  ///< as in World
  bool phases = false;                 ///< copies and losses get their own spans
  ComputeWaits* waits = nullptr;       ///< null: the stages compute; else these waits replace computation
  bool trains = true;                  ///< false: this runner evaluates
  std::int64_t first_step = 0;         ///< first step of the run
};

class RankRunner {
 public:
  /// The number of receives that are posted ahead, so that transfers overlap computation. Two per direction
  /// suffice for 1F1B; more would only hold memory.
  /// direction suffice for 1F1B; more would only hold memory.

  explicit RankRunner(RunnerParts parts) : parts_(std::move(parts)) {}

  /// Runs `actions` once. Positions of microbatches count from `first_position`. `on_update` is called when
  /// all stages of the rank, of all arrays, have run their Update. Sends may still be in flight when it
  /// returns (StageExecutor::finish_sends). An Error keeps its class, and its message is prefixed with the
  /// failed action.
  void run(std::span<const Action> actions, std::int64_t step, std::int64_t first_position,
           const std::function<void(const Action& update)>& on_update);

  /// Skips the actions of this microbatch and of later ones, in this run and in later ones. `on_update` may
  /// call it too. No rank may have started such an action.
  void end_before(std::int64_t microbatch) { end_ = microbatch; }

  /// Returns the times since the last call and resets them. On an asynchronous device, the times and spans of
  /// computation are the device's, not those of the host that only issues the work. They are read once per
  /// step, after its Update.
  StepTimes take_times() { return std::exchange(times_, {}); }

  /// Returns the array of an action.
  int array_of(const Action& action) const;

 private:
  /// prefix of an error message
  std::string place_of(std::span<const Action> actions, std::size_t i) const;
  Action in_its_array(Action action) const;  ///< `action` with its microbatch numbered within its array
  int updates_of_step(std::span<const Action> actions) const;
  std::uint64_t show(const Action& action);
  void step(const Action& action, bool last_gradient);
  void update(const Action& action);
  void feed(const Action& forward);
  void add_loss_span(const Action& forward);
  Span span_of(SpanKind kind, const Action& action) const;
  void post_receives(std::span<const Action> actions, std::size_t done);
  template <class Work>
  void timed(SpanKind kind, const Action& action, double& seconds, Work&& work);
  TimePoint now() const { return parts_.device.host_time(parts_.clock); }
  void start_device_time();
  void settle_device_times();

  /// Work that the device has received and whose times are not known yet.
  struct OpenSpan {
    std::unique_ptr<DeviceMark> begin, end;
    Span span;
    double* seconds;  ///< a member of times_; null: it is included in another span's
  };

  RunnerParts parts_;
  StepTimes times_;
  std::int64_t step_ = 0;
  std::int64_t first_position_ = 0;
  std::int64_t end_ = std::numeric_limits<std::int64_t>::max();  ///< see end_before
  std::size_t next_receive_ = 0;  ///< index of the first action that post_receives() has not examined
  struct KeptBatch {
    Batch batch;
    int readers = 0;  ///< number of times that stages will still read the batch, over all turns
  };
  std::map<std::pair<int, std::int64_t>, KeptBatch> batches_;  ///< by array and position
  int posted_ = 0;                                             ///< receives posted and not yet executed
  std::vector<OpenSpan> open_;
  std::unique_ptr<DeviceMark> anchor_;   ///< a mark on the device's timeline ...
  TimePoint anchor_time_{};              ///< ... and the host's time at which the device reached it
  std::unique_ptr<DeviceMark> settled_;  ///< the newest mark that was waited for: the next anchor ...
  TimePoint settled_time_{};             ///< ... and the host's time after that wait
};

}  // namespace millrace
