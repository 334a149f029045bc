#include "runtime/train/training.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/rules/learning_rate.h"

namespace millrace {
namespace {

std::vector<StageLayout> layouts_or_throw(const std::vector<TrainedArray>& arrays, const Plan& plan,
                                          const TrainOptions& options) {
  std::vector<StageLayout> layouts;
  for (const TrainedArray& array : arrays) {
    Result<StageLayout> layout = make_layout(array.model, plan, options.microbatch, options.precision);
    if (!layout) throw ConfigError(to_string(layout.problems()));
    layouts.push_back(*std::move(layout));
  }
  return layouts;
}

/// Combines the jobs of all arrays into one array, for their settings.
LayeredModel with_all_jobs(const std::vector<TrainedArray>& arrays) {
  LayeredModel all = arrays.front().model;
  if (arrays.size() == 1) return all;
  all.of_jobs.clear();
  for (const TrainedArray& array : arrays) {
    const std::vector<LayeredModel>& jobs = array.model.of_jobs;
    if (jobs.empty())
      all.of_jobs.push_back(array.model);
    else
      all.of_jobs.insert(all.of_jobs.end(), jobs.begin(), jobs.end());
  }
  return all;
}

}  // namespace

int microbatches_per_step(const Plan& plan) {
  return updates_after_each(plan.schedule) ? 1 : plan.microbatches;
}

LossSums joined(std::vector<LossSums> arrays) {
  if (arrays.size() == 1) return std::move(arrays.front());
  LossSums all{.weight = arrays.front().weight};
  for (LossSums& array : arrays) std::ranges::move(array.jobs, std::back_inserter(all.jobs));
  all.values = values_of_jobs(all.jobs);
  return all;
}

Training::Training(World w, const std::vector<TrainedArray>& arrays, Plan p, TrainOptions o)
    : world(w),
      plan(std::move(p)),
      options(std::move(o)),
      layouts(layouts_or_throw(arrays, plan, options)),
      model(with_all_jobs(arrays)),
      job_steps(wanted_steps(options), asynchronous()) {
  if (updates_after_each()) cycle = shape_of(plan).replica_cycle();
  // The loader's threads use the host's clock.
  if (options.phases && &world.clock == &steady_clock()) loader_spans = std::make_shared<SpanList>();
  if (options.waits)
    waits = std::make_unique<ComputeWaits>(*options.waits, options.seed, plan, world.communicator.rank(),
                                           world.clock);
}

std::string Training::name_of_job(std::size_t job) const {
  return is_one_of_several() ? "job " + std::to_string(first_job() + static_cast<int>(job)) + ": " : "";
}

RunnerParts Training::runner_parts() {
  RunnerParts parts{*stages, {}, world.clock, trace, status, world.device, steps_per_update()};
  parts.failpoints = world.failpoints;
  parts.recorder = world.recorder;
  parts.phases = options.phases;
  parts.waits = waits.get();
  parts.first_step = start;
  for (const BatchSources& of_array : sources) parts.batches.push_back(of_array.train.get());
  if (num_arrays() > 1) parts.of_each_array = plan.microbatches;
  return parts;
}

std::int64_t Training::limit() const {
  return stop->limit() == StopVote::kNever ? StopVote::kNever : start + stop->limit();
}

std::vector<double> Training::set_rates(std::int64_t step) {
  std::vector<double> rates;
  for (int array = 0; array < num_arrays(); ++array) {
    double share = 1;
    if (options.rate_per_length != 0) {
      const BatchExtent extent = sources[array].train->extent(position_of(step));
      share = double(extent.lengths.at(0)) / double(options.rate_per_length);
    }
    for (int b = layouts[array].model.jobs(); b > 0; --b) {
      const std::size_t job = rates.size();
      rates.push_back(share * learning_rate(options.jobs[job].learning_rate, step - job_steps.joined(job)));
      stages->decision().jobs()[job].lr = rates.back();
    }
  }
  return rates;
}

std::optional<LossScaleState> Training::loss_scale(std::size_t job) const {
  if (!stages->decision().scales_loss()) return std::nullopt;
  return stages->decision().jobs()[job].scaler.state();
}

std::vector<LossSums> Training::take_losses() {
  std::vector<LossSums> losses;
  for (Lane& lane : stages->lanes()) losses.push_back(lane.take_losses());
  return losses;
}

}  // namespace millrace
