// The report takes a wrong prediction apart: times that were wrong, and a model that is.
#include "experiments/report/error_split.h"

#include <gtest/gtest.h>

#include <cmath>

#include "experiments/report/report.h"
#include "runtime/schedule/measured_costs.h"
#include "runtime/schedule/simulate.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

constexpr int kSplitSteps = 5;

/// A run of 1F1B on two ranks: every action takes `slower` times what the plan says, and each step `idle`
/// seconds more that no action explains.
void write_run(const TemporaryFolder& folder, double slower, double idle) {
  Plan plan = uniform_plan("m", {"a", "b"}, 2, 1, 4, ScheduleKind::OneFOneB);
  for (PlanStage& stage : plan.stages) {
    stage.forward_s = 0.01;
    stage.backward_s = 0.02;
  }
  const PipelineShape shape = shape_of(plan);
  ScheduleCosts costs{.forward = {0.01, 0.01},
                      .backward_input = {0.01, 0.01},
                      .backward_weight = {0.01, 0.01},
                      .reduce = {},
                      .update = {0.001, 0.001},
                      .transfer = {}};
  plan.predicted_step_s = *simulated_step(plan, shape, costs);
  plan.predicted_spread = 0.125;
  folder.write("plan.json", plan.to_json());
  const Schedule schedule = *make_schedule(ScheduleKind::OneFOneB, shape, Transport::Buffered);
  const Simulation simulation = simulate(schedule, shape, costs);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<Span> spans;
    for (int step = 0; step < kSplitSteps; ++step) {
      const double start = step * (simulation.makespan * slower + idle);
      for (const TimedAction& timed : simulation.ranks[rank]) {
        if (timed.action.op != Op::Forward && timed.action.op != Op::Backward &&
            timed.action.op != Op::Update)
          continue;
        const bool last = timed.action.op == Op::Update;
        spans.push_back({timed.action.op == Op::Forward ? SpanKind::Forward
                         : last                         ? SpanKind::Update
                                                        : SpanKind::Backward,
                         static_cast<std::int16_t>(rank), -1, step * 4 + timed.action.microbatch.value, step,
                         std::llround((start + timed.start * slower) * 1e9),
                         std::llround((start + timed.end * slower) * 1e9)});
        // Waits of the pipeline are waits, not work: a wait span ends where the next computation starts.
      }
    }
    std::vector<Span> filled;
    std::int64_t before = 0;
    for (const Span& span : spans) {
      if (span.start > before)
        filled.push_back(
            {SpanKind::Wait, span.stage, 1 - rank, span.microbatch, span.step, before, span.start});
      filled.push_back(span);
      before = span.end;
    }
    folder.write("trace.rank" + std::to_string(rank) + ".json", spans_to_json(filled));
    folder.write("steps.rank" + std::to_string(rank) + ".jsonl",
                 R"({"format": "millrace-steps-1", "stage": )" + std::to_string(rank) + "}\n");
  }
}

TEST(ErrorSplit, SlowerActionsAreTheTimesFault) {
  const TemporaryFolder folder;
  write_run(folder, 1.25, 0);
  const Result<RunData> run = read_run(folder.path());
  ASSERT_TRUE(run);
  const Result<ErrorSplit> split = split_error(*run);
  ASSERT_TRUE(split) << to_string(split.problems());
  EXPECT_NEAR(split->of_times(), 0.25, 1e-6);
  EXPECT_NEAR(split->of_model(), 0, 1e-6);
  EXPECT_EQ(split->steps, kSplitSteps - 1);
  EXPECT_NE(error_split_text(*split).find("times +25.0 %, jitter +0.0 %, model +0.0 %"), std::string::npos)
      << error_split_text(*split);
  const std::string page = report_html(*run);
  EXPECT_NE(page.find("id=\"error-split\""), std::string::npos);
  EXPECT_NE(page.find("+25.0 %"), std::string::npos);
  EXPECT_NE(page.find("12.5 %"), std::string::npos);  // the profile's spread
}

TEST(ErrorSplit, TimeThatNoActionExplainsIsTheModelsFault) {
  const TemporaryFolder folder;
  write_run(folder, 1, 0.03);
  const Result<ErrorSplit> split = split_error(*read_run(folder.path()));
  ASSERT_TRUE(split) << to_string(split.problems());
  EXPECT_NEAR(split->of_times(), 0, 1e-6);
  EXPECT_NEAR(split->traced_s - split->simulated_s, 0.03, 1e-6);
}

TEST(ErrorSplit, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  write_run(folder, 1, 0);
  std::filesystem::remove(folder.path("trace.rank1.json"));
  const Result<RunData> run = read_run(folder.path());
  ASSERT_TRUE(run);
  ASSERT_FALSE(split_error(*run));
  EXPECT_NE(error_split_html(*run).find("Not known: not every rank of the plan has a trace"),
            std::string::npos)
      << error_split_html(*run);
}

}  // namespace
}  // namespace millrace
