// Walks this rank's list of actions: for each, open a span and let the executor do it.
#pragma once

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

/// Seconds by what the rank did; reset by the owner.
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
  int steps_per_update = 1;  ///< of the job: replicas of an asynchronous pipeline take turns
  /// Microbatches of each array, if the actions are of several: array k has those from k times it on, and
  /// its own positions. 0: all actions are of `array`.
  int of_each_array = 0;
  int array = 0;
};

class RankRunner {
 public:
  /// Receives posted ahead: the data travels while the rank computes. Two per direction suffice for 1F1B;
  /// more only hold memory.
  static constexpr int kReceivesAhead = 4;

  explicit RankRunner(RunnerParts parts) : parts_(std::move(parts)) {}

  /// Runs `actions` once. Positions of microbatches count from `first_position`. When all stages of the rank
  /// have had their Update, of all arrays, `on_update` is called. Sends may still be in flight at the end
  /// (StageExecutor::finish_sends). An Error keeps its class and gets
  /// the failing action in front of its message.
  void run(std::span<const Action> actions, std::int64_t step, std::int64_t first_position,
           const std::function<void(const Action& update)>& on_update);

  /// Leaves out the actions of this microbatch and of later ones, from now on and in later runs; also from
  /// within `on_update`. Nobody may have begun them.
  void end_before(std::int64_t microbatch) { end_ = microbatch; }

  /// On an asynchronous device, times and spans of computation are the device's own, not those of the host
  /// that only hands over the work; they are read once a step, after its Update.
  StepTimes take_times() { return std::exchange(times_, {}); }

  /// Returns the array that an action belongs to.
  int array_of(const Action& action) const;

 private:
  std::string place_of(std::span<const Action> actions, std::size_t i) const;  ///< in front of a failure
  Action in_its_array(Action action) const;  ///< the microbatch counted in its array
  int updates_of_step(std::span<const Action> actions) const;
  void step(const Action& action, bool last_gradient);
  void update(const Action& action);
  void feed(const Action& forward);
  void post_receives(std::span<const Action> actions, std::size_t done);
  template <class Work>
  void timed(SpanKind kind, const Action& action, double& seconds, Work&& work);
  void start_device_time();
  void settle_device_times();

  /// Work handed to the device whose times are not known yet.
  struct OpenSpan {
    std::unique_ptr<DeviceMark> begin, end;
    Span span;
    double* seconds;  ///< a member of times_
  };

  RunnerParts parts_;
  StepTimes times_;
  std::int64_t step_ = 0;
  std::int64_t first_position_ = 0;
  std::int64_t end_ = std::numeric_limits<std::int64_t>::max();  ///< see end_before
  std::size_t next_receive_ = 0;                                 ///< first action not looked at for posting
  struct KeptBatch {
    Batch batch;
    int readers = 0;  ///< times that stages are still to read it, in all turns
  };
  std::map<std::pair<int, std::int64_t>, KeptBatch> batches_;  ///< by array and position
  int posted_ = 0;                                             ///< receives posted and not yet executed
  std::vector<OpenSpan> open_;
  std::unique_ptr<DeviceMark> anchor_;  ///< the device was here ...
  TimePoint anchor_time_{};             ///< ... at this time of the clock
};

}  // namespace millrace
