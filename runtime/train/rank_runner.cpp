#include "runtime/train/rank_runner.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/failpoint.h"
#include "runtime/device/failures.h"
#include "runtime/trace/flight_recorder.h"
#include "runtime/train/measured_times.h"

namespace millrace {
namespace {

bool is_gradient_work(Op op) {
  return op == Op::Backward || op == Op::BackwardWeight;
}

/// Returns for each action 1 if it is the last one that adds gradients for its stage and array before the
/// next Update, else 0.
template <class ArrayOf>
std::vector<char> last_gradients(std::span<const Action> actions, ArrayOf&& array_of) {
  std::vector<char> last(actions.size(), 0);
  std::set<std::pair<int, StageId>> open;
  for (std::size_t i = actions.size(); i-- > 0;) {
    const std::pair weights(array_of(actions[i]), actions[i].stage);
    if (actions[i].op == Op::Update) open.insert(weights);
    if (is_gradient_work(actions[i].op) && open.erase(weights)) last[i] = 1;
  }
  return last;
}

/// Returns whether the device runs such work asynchronously. Transfers and data loading end when the host has
/// them.
bool runs_on_device(SpanKind kind) {
  return is_computation(kind) || kind == SpanKind::Update;
}

double& seconds_of(StepTimes& times, Op op) {
  switch (op) {
    case Op::Forward:
      return times.forward;
    case Op::SendActivation:
    case Op::SendGradient:
      return times.send;
    case Op::RecvActivation:
    case Op::RecvGradient:
      return times.wait;
    case Op::Reduce:
      return times.all_reduce;
    default:
      return times.backward;
  }
}

}  // namespace

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  for (double StepTimes::*part :
       {&StepTimes::forward, &StepTimes::backward, &StepTimes::send, &StepTimes::receive, &StepTimes::wait,
        &StepTimes::all_reduce, &StepTimes::update, &StepTimes::data})
    this->*part += other.*part;
  return *this;
}

int RankRunner::array_of(const Action& action) const {
  return parts_.of_each_array == 0 ? parts_.array
                                   : static_cast<int>(action.microbatch.value / parts_.of_each_array);
}

Action RankRunner::in_its_array(Action action) const {
  if (parts_.of_each_array > 0)
    action.microbatch = MicrobatchId(action.microbatch.value % parts_.of_each_array);
  return action;
}

/// Returns the number of Updates of this rank in a step. With several arrays it counts those in `actions`,
/// the list of one step, which excludes arrays that have ended.
int RankRunner::updates_of_step(std::span<const Action> actions) const {
  if (parts_.of_each_array > 0) return static_cast<int>(std::ranges::count(actions, Op::Update, &Action::op));
  return static_cast<int>(parts_.stages.lanes().front().held().size());
}

Span RankRunner::span_of(SpanKind kind, const Action& action) const {
  return {.kind = kind,
          .stage = static_cast<std::int16_t>(action.stage.value),
          .peer = action.peer.value,
          .microbatch = first_position_ * (parts_.of_each_array > 0 ? std::ssize(parts_.stages.lanes()) : 1) +
                        action.microbatch.value,
          .step = step_};
}

template <class Work>
void RankRunner::timed(SpanKind kind, const Action& action, double& seconds, Work&& work) {
  Span span = span_of(kind, action);
  if (runs_on_device(kind)) {
    auto begin = parts_.device.mark();
    const TimePoint host_begin = parts_.waits ? parts_.clock.now() : TimePoint{};
    work();
    if (parts_.waits)
      parts_.waits->wait(!parts_.trains               ? RunPart::Evaluation
                         : step_ == parts_.first_step ? RunPart::FirstStep
                                                      : RunPart::Steps,
                         kind, action.stage.value, host_begin);
    if (parts_.phases && kind == SpanKind::Forward) add_loss_span(action);
    open_.push_back({std::move(begin), parts_.device.mark(), span, &seconds});
    if (open_.size() == 1 && open_.front().end->is_reached()) settle_device_times();
    return;
  }
  const TimePoint start = now();
  work();
  const TimePoint end = now();
  seconds += Seconds(end - start).count();
  span.start = start.time_since_epoch().count();
  span.end = end.time_since_epoch().count();
  parts_.trace.record(span);
}

/// Sets the anchor that relates the device's timeline to the host's. It reuses the newest mark that was
/// waited for, so that a step needs no extra wait at its start.
void RankRunner::start_device_time() {
  if (settled_) {
    anchor_ = std::move(settled_);
    anchor_time_ = settled_time_;
    return;
  }
  anchor_ = parts_.device.mark();
  anchor_->wait();
  anchor_time_ = now();
}

/// Waits once: the device reaches marks in order.
void RankRunner::settle_device_times() {
  if (open_.empty()) return;
  open_.back().end->wait();
  const TimePoint reached = now();
  for (OpenSpan& open : open_) {
    const double start = open.begin->seconds_since(*anchor_), length = open.end->seconds_since(*open.begin);
    if (open.seconds) *open.seconds += length;
    open.span.start = anchor_time_.time_since_epoch().count() + std::llround(start * 1e9);
    open.span.end = open.span.start + std::llround(length * 1e9);
    parts_.trace.record(open.span);
  }
  settled_ = std::move(open_.back().end);
  settled_time_ = reached;
  open_.clear();
}

void RankRunner::post_receives(std::span<const Action> actions, std::size_t done) {
  next_receive_ = std::max(next_receive_, done);
  for (; posted_ < kReceivesAhead && next_receive_ < actions.size(); ++next_receive_) {
    const Action& action = actions[next_receive_];
    if (!is_receive(action.op) || action.microbatch.value >= end_) continue;
    const TimePoint start = now();
    parts_.stages.lanes()[array_of(action)].executor(action.stage).post_receive(in_its_array(action));
    times_.receive += Seconds(now() - start).count();
    ++posted_;
  }
}

/// Passes a stage its part of the batch. If several stages of this rank read the batch (the first and the
/// last), the rank loads it once and keeps it for the others.
void RankRunner::feed(const Action& forward) {
  const int array = array_of(forward);
  const Lane& lane = parts_.stages.lanes()[array];
  StageExecutor& executor = lane.executor(forward.stage);
  if (!executor.program().reads_batch()) return;
  const MicrobatchId microbatch = in_its_array(forward).microbatch;
  const std::int64_t position = first_position_ + microbatch.value;
  auto kept = batches_.find({array, position});
  const auto load = [&] {
    if (kept != batches_.end()) return;
    int readers = 0;
    for (const HeldStage& h : lane.held())
      if (microbatch.value % h.replicas == h.replica) readers += h.readings();
    BatchSource& source = *parts_.batches[array];
    kept = batches_.emplace(std::pair(array, position), KeptBatch{source.get(position), readers}).first;
  };
  const auto copy = [&] {
    executor.feed(microbatch, kept->second.batch);
    if (--kept->second.readers == 0) batches_.erase(kept);
  };
  if (parts_.phases) {
    timed(SpanKind::Data, forward, times_.data, load);
    timed(SpanKind::Copy, forward, times_.data, copy);
  } else {
    timed(SpanKind::Data, forward, times_.data, [&] { load(), copy(); });
  }
}

/// The part of a forward in which the stage's heads computed the loss.
void RankRunner::add_loss_span(const Action& forward) {
  StageExecutor& executor = parts_.stages.lanes()[array_of(forward)].executor(forward.stage);
  auto [begin, end] = executor.take_loss_marks();
  if (begin && end)
    open_.push_back({std::move(begin), std::move(end), span_of(SpanKind::Loss, forward), nullptr});
}

/// Runs an Update. If the stages exchange a norm first, the wait for it has its own span: no rank updates
/// before the last one has arrived.
void RankRunner::update(const Action& action) {
  Lane& lane = parts_.stages.lanes()[array_of(action)];
  std::vector<UpdateScalars> scalars;
  const auto agree = [&] { scalars = lane.before_update(action.stage); };
  if (parts_.stages.decision().needs_model_norm()) {
    Action together = action;
    together.peer = RankId(-1);
    timed(SpanKind::Wait, together, times_.wait, agree);
  } else {
    agree();
  }
  if (parts_.waits)  // the weights do not change
    for (UpdateScalars& of_job : scalars) of_job.skip = of_job.exchanges = true;
  parts_.stages.about_to_change();
  timed(SpanKind::Update, action, times_.update, [&] { lane.update(action.stage, scalars); });
}

void RankRunner::step(const Action& action, bool last_gradient) {
  if (parts_.failpoints && parts_.failpoints->reach(to_string(span_kind(action.op)), step_))
    parts_.stages.lanes()[array_of(action)].spoil_gradient(action.stage);
  parts_.stages.check_writes(nullptr, array_of(action), parts_.trains);
  if (action.op == Op::Update) {
    update(action);
  } else {
    if (action.op == Op::Forward) feed(action);
    timed(span_kind(action.op), action, seconds_of(times_, action.op),
          [&] { parts_.stages.execute(in_its_array(action), last_gradient, array_of(action)); });
  }
  parts_.stages.check_writes(&action, array_of(action), parts_.trains);
  if (is_receive(action.op)) --posted_;
}

/// Reports the starting action to the status board and the flight recorder. Returns the number of its record.
std::uint64_t RankRunner::show(const Action& action) {
  if (!parts_.recorder || !parts_.recorder->is_open()) {
    parts_.status.update_with(step_, [&] { return to_string(action); });
    return 0;
  }
  const std::string text = to_string(action);
  parts_.status.update(step_, text);
  return parts_.recorder->action(step_, text);
}

/// Returns for example "step 3, action 0F1 (5 of 12): ".
std::string RankRunner::place_of(std::span<const Action> actions, std::size_t i) const {
  return "step " + std::to_string(step_) + ", action " + to_string(actions[i]) + " (" +
         std::to_string(i + 1) + " of " + std::to_string(actions.size()) + "): ";
}

void RankRunner::run(std::span<const Action> actions, std::int64_t step_number, std::int64_t first_position,
                     const std::function<void(const Action&)>& on_update) {
  const std::vector<char> last_gradient =
      last_gradients(actions, [this](const Action& a) { return array_of(a); });
  step_ = step_number;
  first_position_ = first_position;
  next_receive_ = 0;
  posted_ = 0;
  int updated = 0;
  const int updates = updates_of_step(actions);
  start_device_time();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].microbatch.value >= end_) continue;
    const std::uint64_t record = show(actions[i]);
    try {
      post_receives(actions, i);
      step(actions[i], last_gradient[i]);
      if (record > 0) parts_.recorder->end(record, FlightRecord::State::Done);
    } catch (const PeerError& error) {
      if (record > 0) parts_.recorder->end(record, FlightRecord::State::Failed);
      error.throw_with(place_of(actions, i));
    } catch (...) {
      if (record > 0) parts_.recorder->end(record, FlightRecord::State::Failed);
      rethrow_with(place_of(actions, i));
    }
    if (actions[i].op == Op::Update && ++updated % updates == 0) {
      settle_device_times();
      on_update(actions[i]);
      step_ += parts_.steps_per_update;
    }
  }
  settle_device_times();
}

}  // namespace millrace
