#include "runtime/train/stream_loop.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/comm/nccl_communicator.h"
#include "runtime/schedule/pair_order.h"
#include "runtime/train/first_uses.h"
#include "runtime/train/shared_schedules.h"

namespace millrace {
namespace {

// Minibatches per window of the lists.
constexpr std::int64_t kWindow = 256;
// Number of microbatches whose sizes are compared: if sizes vary at all, these do.
constexpr std::int64_t kSizesLookedAt = 4096;

/// Returns a schedule that is proved to terminate at any length, with every action on its rank. Throws
/// ConfigError.
ScheduleStream checked_stream(const Plan& plan, const PipelineShape& shape, const Communicator& world) {
  Result<ScheduleStream> stream = ScheduleStream::make(plan.schedule, shape, transport_of(world));
  if (!stream)
    throw ConfigError("schedule " + to_string(plan.schedule) +
                      " cannot run: " + to_string(stream.problems()));
  if (world.is_ordered()) {
    constexpr std::int64_t kPeriods = 8;
    Schedule part{.kind = plan.schedule};
    for (int r = 0; r < plan.num_ranks(); ++r) {
      std::vector<Action> actions = stream->actions(RankId(r), 0, kPeriods * stream->period());
      std::erase_if(actions,
                    [&](const Action& a) { return a.microbatch.value >= kPeriods * stream->period(); });
      part.ranks.push_back(std::move(actions));
    }
    if (const Problems problems = check_pair_order(part); !problems.empty())
      throw ConfigError(to_string(problems));
  }
  return *std::move(stream);
}

std::shared_ptr<const ScheduleStream> stream_of(const Training& t) {
  const auto make = [&] {
    return checked_stream(t.plan, shape_of(t.plan, t.layout(), 0), t.world.communicator);
  };
  if (t.options.shared_schedules) return t.options.shared_schedules->stream(make);
  return std::make_shared<const ScheduleStream>(make());
}

/// Returns how many messages between two ranks are sent through the host first: those posted until every rank
/// has done two updates. If sizes vary, all are, because no two ranks are at the same microbatch.
std::int64_t first_messages(const Training& t, int period) {
  if (!t.world.communicator.is_ordered()) return 0;
  const std::int64_t start = t.position_of(t.start),
                     end = std::min(t.position_of(t.last_step()), start + kSizesLookedAt);
  if (sizes_vary(*t.sources.front().train, start, end)) return kAllMessages;
  const std::int64_t microbatches = 2 * std::int64_t{period} * microbatches_per_step(t.plan) +
                                    std::int64_t{2 + kReceivesAhead} * period + t.plan.num_ranks();
  return microbatches * std::max<std::int64_t>(1, std::ssize(t.layout().crossings));
}

}  // namespace

StreamLoop::StreamLoop(Training& training, StepReports& reports, std::int64_t older_versions,
                       std::function<bool(std::int64_t)> rests_after)
    : t_(training), reports_(reports), stream_(stream_of(t_)), runner_(t_.runner_parts()) {
  through_host_ = first_messages(t_, static_cast<int>(stream_->period()));
  const PipelineShape shape = shape_of(t_.plan, t_.layout(), 0);
  const int per_step = microbatches_per_step(t_.plan);
  runner_.end_before(t_.position_of(t_.last_step() - t_.start));
  for (const HeldStage& h : t_.stages->held()) {
    h.executor->versions().follow(version_rule(t_.plan.schedule, shape, h.stage),
                                  VersionId(h.store->current().value - older_versions), h.replica,
                                  h.replicas);
    h.executor->statistics().set_cuts([rests_after, per_step, start = t_.start](std::int64_t microbatch) {
      return microbatch % per_step == 0 && rests_after(start + microbatch / per_step);
    });
  }
  if (t_.last_step() != t_.options.steps && t_.owns_loss())
    log_warning("--steps " + std::to_string(t_.options.steps) + " ends within a cycle of " +
                std::to_string(t_.cycle) + " minibatches, which the replicas share: the run ends after " +
                std::to_string(t_.last_step()));
}

/// Runs the windows of the stream one after another without a pause, so that its lists stay short.
void StreamLoop::run_to(std::int64_t end) {
  const std::int64_t period = stream_->period(), per_step = microbatches_per_step(t_.plan);
  const std::int64_t window = std::max<std::int64_t>(1, kWindow / period) * period;
  const std::int64_t start = t_.start;
  if (std::exchange(rested_, false)) {
    through_host(t_.world.communicator, through_host_);
    if (through_host_ != kAllMessages) through_host_ = 0;
  }
  std::vector<double> rates = t_.set_rates(t_.done);
  t_.stages->begin(t_.position_of(start));
  const std::int64_t last = (end - start) * per_step;
  for (std::int64_t from = (t_.done - start) * per_step; from < last;) {
    const std::int64_t to = std::min(last, from + window);
    std::int64_t step = start + from / per_step;
    runner_.run(stream_->actions(t_.world.communicator.rank(), from, to), step, t_.position_of(start),
                [&](const Action&) {
                  reports_.step_ended(runner_, step, rates);
                  for (int i = 0; i < t_.steps_per_update(); ++i) t_.stop->completed(++step - start);
                  rates = t_.set_rates(step);
                  if (t_.limit() < t_.last_step()) runner_.end_before(t_.position_of(t_.limit() - start));
                });
    from = to;
    t_.done = std::min(start + to / per_step, t_.limit());
    if (t_.done == t_.limit()) break;
  }
  if (t_.done == t_.limit() || t_.done == t_.last_step()) t_.stages->finish_sends();
}

void StreamLoop::rest() {
  const std::int64_t end = std::min(t_.limit(), t_.last_step()), per_step = microbatches_per_step(t_.plan);
  const std::int64_t cut = (t_.done - t_.start) * per_step;
  if (t_.done < end) {  // the pipeline stays full
    for (const Action& action : stream_->under_way(t_.world.communicator.rank(), cut)) {
      if (action.microbatch.value < (end - t_.start) * per_step)
        t_.stages->lanes().front().executor(action.stage).post_receive(action);
    }
  }
  through_host(t_.world.communicator, kAllMessages);
  rested_ = true;
  t_.stages->pause(cut);
}

}  // namespace millrace
