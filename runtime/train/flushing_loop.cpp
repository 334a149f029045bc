#include "runtime/train/flushing_loop.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/schedule/pair_order.h"
#include "runtime/train/shared_schedules.h"

namespace millrace {
namespace {

constexpr double kMostInStretch = 256;  // steps

/// Returns a schedule that is proved to terminate, with every action on its rank. Throws ConfigError.
Schedule checked_schedule(const Plan& plan, const PipelineShape& shape, const Communicator& world,
                          const std::optional<ScheduleFile>& file) {
  const Transport transport = transport_of(world);
  Result<Schedule> schedule = schedule_of(plan, shape, transport, file);
  if (!schedule)
    throw ConfigError("the plan of " + plan.model + " has no schedule: " + to_string(schedule.problems()));
  if (const Problems problems = check(*schedule, shape, transport); !problems.empty()) {
    throw ConfigError(
        "schedule " + to_string(plan.schedule) + " cannot run: " + to_string(problems),
        transport == Transport::Rendezvous && check(*schedule, shape, Transport::Buffered).empty()
            ? "it needs sends that are buffered: --backend shm, all ranks on one host"
            : "");
  }
  if (world.is_ordered()) {
    if (const Problems problems = check_pair_order(*schedule); !problems.empty())
      throw ConfigError(to_string(problems));
  }
  return *std::move(schedule);
}

/// Returns the stages whose layers have running statistics, hence statistics of the batch.
std::vector<StageId> stages_with_statistics(const StageLayout& layout) {
  std::vector<StageId> stages;
  for (int s = 0; s < layout.num_stages(); ++s) {
    const auto& layers = layout.layers[s];
    const bool any = std::ranges::any_of(
        layers, [&](int layer) { return forward_writes(*layout.model.layers[layer].layer).buffers; });
    if (any) stages.emplace_back(s);
  }
  return stages;
}

/// Returns this rank's actions of one step, of turn `turn`. Throws ConfigError.
std::vector<Action> actions_of_step(const Plan& plan, const StageLayout& layout, std::size_t turn,
                                    const Communicator& world, const TrainOptions& options,
                                    bool agrees_before_updates) {
  const PipelineShape shape = shape_of(plan, layout, 0);
  const auto make = [&] { return checked_schedule(plan, shape, world, options.schedule); };
  const std::shared_ptr<const Schedule> schedule = options.shared_schedules
                                                       ? options.shared_schedules->steps(turn, make)
                                                       : std::make_shared<const Schedule>(make());
  if (options.sync_batch_norm) {
    const Problems problems =
        check_replicas_meet(*schedule, shape, transport_of(world), stages_with_statistics(layout));
    if (!problems.empty()) {
      throw ConfigError("--sync-batch-norm: the replicas cannot wait for each other at every microbatch of " +
                            to_string(plan.schedule) + ": " + to_string(problems),
                        "use --schedule gpipe, or equal replicas in all stages");
    }
  }
  std::vector<Action> actions = schedule->ranks[world.rank().value];
  // After all Reduces and before all Updates, gradients of tied parameters are sent to their owners, and
  // norms are exchanged.
  if (!layout.ties.empty() || agrees_before_updates)
    std::ranges::stable_partition(actions, [](const Action& a) { return a.op != Op::Update; });
  return actions;
}

}  // namespace

FlushingLoop::FlushingLoop(Training& training, StepReports& reports)
    : t_(training), reports_(reports), runner_(training.runner_parts()) {
  const auto add = [&](const StageLayout& one) {
    turns_.push_back(actions_of_step(t_.plan, one, turns_.size(), t_.world.communicator, t_.options,
                                     t_.stages->decision().needs_model_norm()));
  };
  if (t_.layout().turns.empty()) add(t_.layout());
  std::ranges::for_each(t_.layout().turns, add);
}

void FlushingLoop::run_to(std::int64_t end) {
  std::vector<const BatchSource*> sources;
  for (const BatchSources& of_array : t_.sources) sources.push_back(of_array.train.get());
  while (t_.done < end && t_.done != t_.limit()) {
    leave_out_ended_jobs();
    if (in_stretches()) {
      go_a_stretch(end);
      continue;
    }
    const std::vector<double> rates = t_.set_rates(t_.done);
    const std::int64_t position = t_.position_of(t_.done);
    first_uses_.begin(t_.world.communicator, sources, position, t_.position_of(t_.done + 1));
    for (std::size_t turn = 0; turn < turns_.size(); ++turn) {
      t_.stages->set_turn(turn);
      if (t_.waits) t_.waits->set_turn(static_cast<int>(turn));
      t_.stages->begin(position);
      runner_.run(turns_[turn], t_.done, position, [&](const Action&) {
        if (turn + 1 == turns_.size()) reports_.step_ended(runner_, t_.done, rates);
      });
    }
    t_.stages->set_turn(std::nullopt);
    ++t_.done;
    t_.stop->completed(t_.done - t_.start);
  }
  t_.stages->finish_sends();
}

/// Jobs end between two steps. A completed job in an array with active jobs is computed, but unchanged. An
/// array whose jobs have all ended leaves the pipeline, on every rank alike.
void FlushingLoop::leave_out_ended_jobs() {
  const std::vector<char> ended = t_.job_steps.ended_at(t_.done);
  if (ended == ended_) return;
  ended_ = ended;
  first_uses_.start_anew();
  for (std::size_t job = 0; job < ended.size(); ++job)
    t_.stages->decision().jobs()[job].ended = ended[job] != 0;
  std::vector<char> left;  // by array
  auto first = ended.begin();
  for (Lane& lane : t_.stages->lanes()) {
    lane.keep_ended_jobs();
    const auto end = first + t_.layouts[left.size()].model.jobs();
    left.push_back(std::find(first, end, 0) == end);
    first = end;
  }
  if (t_.num_arrays() == 1) return;
  for (std::vector<Action>& actions : turns_) {
    std::erase_if(actions, [&](const Action& action) { return left[runner_.array_of(action)] != 0; });
  }
}

/// Arrays of one rank need not alternate at each step: no rank waits for them, and an array that continues
/// finds its weights in the caches.
bool FlushingLoop::in_stretches() const {
  return t_.num_arrays() > 1 && t_.world.communicator.size() == 1 && turns_.size() == 1 &&
         !t_.stages->decision().scales_loss();
}

/// Does several steps of each array, one array after the other; then they are logged.
void FlushingLoop::go_a_stretch(std::int64_t end) {
  const std::int64_t done = t_.done;
  // Spans are kept only for a short time.
  std::int64_t to = std::min({end, t_.limit(), done + (reports_.is_traced(done) ? 1 : stretch_)});
  for (const TraceWindow& window : reports_.traced())
    if (window.first > done) to = std::min(to, window.first);
  for (std::size_t job = 0; job < t_.job_steps.size(); ++job)
    if (!t_.job_steps.has_ended(job, done)) to = std::min(to, t_.job_steps.end(job));
  std::vector<StepReports::Measured> steps(to - done);
  std::ptrdiff_t job = 0;  // first job of the array
  for (int array = 0; array < t_.num_arrays(); ++array) {
    Lane& lane = t_.stages->lanes()[array];
    std::vector<Action> actions = turns_.front();
    std::erase_if(actions, [&](const Action& action) { return runner_.array_of(action) != array; });
    const std::ptrdiff_t last_job = job + t_.layouts[array].model.jobs();
    for (std::int64_t step = done; step < to; ++step) {
      StepReports::Measured& all = steps[step - done];
      if (actions.empty()) {  // its jobs have ended
        all.losses.push_back(lane.take_losses());
        continue;
      }
      all.lr = t_.set_rates(step);
      lane.begin(t_.position_of(step));
      runner_.run(actions, step, t_.position_of(step), [&](const Action&) {
        const StepReports::Measured own = reports_.measure(runner_);
        all.seconds += own.seconds;
        all.cpu_s += own.cpu_s;
        all.times += own.times;
        all.ended = own.ended;
        all.losses.push_back(lane.take_losses());
        all.gradient_norms.resize(own.gradient_norms.size(), -1);
        std::copy(own.gradient_norms.begin() + job, own.gradient_norms.begin() + last_job,
                  all.gradient_norms.begin() + job);
      });
    }
    job = last_job;
  }
  double seconds = 0;
  TimePoint last{};
  for (const StepReports::Measured& step : steps) {
    seconds += step.seconds;
    last = std::max(last, step.ended);
  }
  // Timed as if the arrays had alternated at each step: work between two steps then took the time between
  // them.
  TimePoint ended = last - duration_of(seconds);
  for (StepReports::Measured& step : steps) {
    ended += duration_of(step.seconds);
    step.ended = ended;
    reports_.log(t_.done++, std::move(step));
  }
  t_.stop->completed(t_.done - t_.start);
  const double of_a_step = seconds / static_cast<double>(steps.size());
  stretch_ = static_cast<std::int64_t>(std::clamp(t_.options.stretch_s / of_a_step, 1., kMostInStretch));
}

}  // namespace millrace
