// A run of VGG-16 on four ranks as the worker would have written it: 2-1-1 replicas, 1F1B, 8 microbatches.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "optimizer/planner/planner.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "runtime/plan/plan.h"
#include "runtime/schedule/schedule.h"
#include "runtime/trace/trace.h"

namespace millrace::example {

inline void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

inline Plan plan(ScheduleKind kind = ScheduleKind::OneFOneB) {
  Plan plan{.model = "vgg16", .schedule = kind, .microbatches = 8};
  const auto layers = [](const char* prefix, int first, int last) {
    std::vector<std::string> names;
    for (int i = first; i <= last; ++i) names.push_back(prefix + std::to_string(i));
    return names;
  };
  plan.stages = {{.layers = layers("features.", 0, 13),
                  .ranks = {RankId(0), RankId(1)},
                  .forward_s = 9.1e-3,
                  .backward_s = 18.4e-3,
                  .parameter_bytes = 2'221'000,
                  .peak_bytes = 61'000'000},
                 {.layers = layers("features.", 14, 30),
                  .ranks = {RankId(2)},
                  .forward_s = 4.6e-3,
                  .backward_s = 9.9e-3,
                  .parameter_bytes = 56'600'000,
                  .peak_bytes = 240'000'000},
                 {.layers = layers("classifier.", 0, 6),
                  .ranks = {RankId(3)},
                  .forward_s = 3.8e-3,
                  .backward_s = 8.2e-3,
                  .parameter_bytes = 478'000'000,
                  .peak_bytes = 1'900'000'000}};
  plan.crossings = {{StageId(0), StageId(1), 1'638'400}, {StageId(1), StageId(2), 100'352}};
  plan.planner = "hierarchical";
  plan.predicted_step_s = 0.1556;
  return plan;
}

inline ScheduleCosts costs(const Plan& plan, const PipelineShape& shape, double stretch) {
  ScheduleCosts costs;
  for (const PlanStage& stage : plan.stages) {
    costs.forward.push_back(stage.forward_s * stretch);
    costs.backward_input.push_back(stage.backward_s * stretch / 2);
    costs.backward_weight.push_back(stage.backward_s * stretch / 2);
    costs.update.push_back(1.5e-3);
    costs.reduce.push_back(stage.ranks.size() > 1 ? 2.4e-3 : 0);
  }
  for (std::size_t i = 0; i < shape.all_links().size(); ++i) costs.transfer.push_back(0.8e-3);
  return costs;
}

/// Spans of `steps` steps, with waits in the gaps between them.
inline std::vector<Span> spans_of(const Simulation& simulation, std::size_t rank, int stage, int microbatches,
                                  int first_step, int steps) {
  std::vector<Span> spans;
  for (int step = first_step; step < first_step + steps; ++step) {
    const double origin = 1000 + step * (simulation.makespan + 1e-3);
    double last = 0;
    for (const TimedAction& timed : simulation.ranks[rank]) {
      if (is_transfer(timed.action.op) || timed.end <= timed.start) continue;
      const auto at = [&](double seconds) { return static_cast<std::int64_t>((origin + seconds) * 1e9); };
      Span span{.stage = static_cast<std::int16_t>(stage),
                .microbatch = std::int64_t{step} * microbatches + timed.action.microbatch.value,
                .step = step};
      if (timed.start > last + 1e-5) {
        span.kind = SpanKind::Wait, span.start = at(last), span.end = at(timed.start);
        spans.push_back(span);
      }
      span.kind = span_kind(timed.action.op), span.start = at(timed.start), span.end = at(timed.end);
      spans.push_back(span);
      last = timed.end;
    }
  }
  return spans;
}

/// plan.json, steps, traces and summary.json of `steps` steps into a folder that exists.
inline void write_run(const std::filesystem::path& folder, const Plan& plan, int steps = 240) {
  write(folder / "plan.json", plan.to_json());
  const PipelineShape shape = shape_of(plan);
  const Schedule schedule = *make_schedule(plan.schedule, shape);
  const Simulation measured = simulate(schedule, shape, costs(plan, shape, 1.08));
  Json evaluations = Json::array();
  double last_loss = 0;
  for (int s = 0; s < plan.num_stages(); ++s) {
    const PlanStage& stage = plan.stages[s];
    const bool last = s + 1 == plan.num_stages();
    // Asynchronous: a line for each minibatch.
    const bool async = plan.schedule == ScheduleKind::PipeDream;
    const double per_step =
        async ? 1 : static_cast<double>(plan.microbatches) / static_cast<double>(stage.ranks.size());
    for (RankId rank : stage.ranks) {
      RandomStream noise(derive_seed(7, "noise", static_cast<std::uint64_t>(rank.value)));
      std::string lines = Json::object({{"format", "millrace-steps-1"},
                                        {"rank", rank.value},
                                        {"stage", s},
                                        {"ranks", plan.num_ranks()}})
                              .dump() +
                          "\n";
      for (int step = 0; step < steps; ++step) {
        const double slow = (step == 0 ? 3.0 : 1.0) *
                            (1 + 0.02 * std::abs(noise.normal()) + (noise.uniform() < 0.02 ? 0.4 : 0));
        const double seconds = measured.makespan * slow / (async ? plan.microbatches : 1),
                     forward = stage.forward_s * 1.08 * per_step,
                     backward = stage.backward_s * 1.08 * per_step;
        const double reduce = stage.ranks.size() > 1 ? 2.4e-3 : 0;
        Json line = Json::object({{"step", step}});
        last_loss = 0.35 + 2.1 * std::exp(-step / 70.0) + 0.08 * noise.normal();
        line["loss"] = last ? Json(last_loss) : Json();
        line["top1"] = last ? Json(1 - last_loss / 3) : Json();
        line["samples_per_s"] = 128 / seconds;
        line["step_s"] = seconds;
        line["forward_s"] = forward;
        line["backward_s"] = backward;
        line["send_s"] = 0.9e-3;
        line["receive_s"] = 0.3e-3;
        line["wait_s"] = std::max(0.0, seconds - forward - backward - reduce - 6e-3);
        line["all_reduce_s"] = reduce;
        line["update_s"] = 1.5e-3;
        line["data_s"] = s == 0 || last ? 1.6e-3 : 0;
        line["bubble_share"] = 1 - (forward + backward + 1.5e-3) / seconds;
        line["peak_memory_bytes"] = stage.peak_bytes + stage.peak_bytes / 20;
        line["weight_versions"] = 1;
        line["stashed_microbatches"] = measured.peak_stash[rank.value];
        line["lr"] = 0.01;
        lines += line.dump() + "\n";
      }
      const std::string number = std::to_string(rank.value);
      write(folder / ("steps.rank" + number + ".jsonl"), lines);
      write(folder / ("trace.rank" + number + ".json"),
            spans_to_json(
                spans_of(measured, static_cast<std::size_t>(rank.value), s, plan.microbatches, 10, 3)));
    }
  }
  for (int step : {60, 120, 180, 240}) {
    evaluations.push_back(Json::object({{"step", step},
                                        {"loss", 0.45 + 1.9 * std::exp(-step / 75.0)},
                                        {"top1", 0.85 - 0.5 * std::exp(-step / 75.0)},
                                        {"top5", 0.98},
                                        {"samples", 2000}}));
  }
  write(folder / "summary.json", Json::object({{"format", "millrace-summary-1"},
                                               {"model", plan.model},
                                               {"data", "cifar10"},
                                               {"steps", steps},
                                               {"final_loss", last_loss},
                                               {"evaluations", evaluations}})
                                     .dump(1));
}

}  // namespace millrace::example
