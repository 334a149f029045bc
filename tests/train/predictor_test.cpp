// A trained model that computes: the bits of an evaluation, from weights in memory and in files.
#include "runtime/train/predictor.h"

#include <ATen/ops/zeros.h>

#include "runtime/base/error.h"
#include "runtime/model/stage_program.h"
#include "runtime/train/local_training.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

class Predictions : public Pipeline {
 protected:
  static constexpr std::int64_t kEvaluated = 5;

  MakeBatches with_evaluation(const LayeredModel& model) {
    return [&model](const BatchNeeds&, const BatchNeeds&) {
      return BatchSources{.train = std::make_unique<RandomBatches>(model, kMicrobatch),
                          .evaluation = {.batches = std::make_unique<RandomBatches>(model, kMicrobatch),
                                         .microbatches = kEvaluated}};
    };
  }

  /// What the model's first head says of the evaluation's batches, as a predictor computes them.
  static NamedValues judged(Predictor& predictor) {
    const LayeredModel& model = predictor.model();
    RandomBatches batches(model, kMicrobatch);
    const Head& head = *model.heads.front().head;
    std::vector<double> sums(head.metrics().size() + 1);
    for (std::int64_t position = 0; position < kEvaluated; ++position) {
      Batch batch = batches.get(position);
      const at::Tensor target = batch.fields.back();
      batch.fields.pop_back();
      const std::vector<at::Tensor> inputs{predictor.forward(batch).front(), target};
      head.forward(inputs, nullptr, sums);
    }
    return head_values(model, sums);
  }
};

TEST_F(Predictions, AreAnEvaluationsBitForBitInEveryPlanAndPrecision) {
  for (const LayeredModel& model : {small_model(), conv_model()}) {
    for (const std::vector<int>& replicas : {std::vector{1}, {1, 2}}) {
      for (const Precision precision : {Precision::Float32, Precision::BFloat16}) {
        TrainOptions wanted = options(4);
        wanted.precision = precision;
        wanted.save_weights = (folder_ / "w.safetensors").string();
        NamedTensors weights;
        const RunReport report = train_locally(model, plan_for(model, replicas, 4, ScheduleKind::OneFOneB),
                                               wanted, with_evaluation(model), {.weights = &weights});
        Predictor in_memory(model, weights, {.precision = precision});
        ASSERT_EQ(report.evaluations.size(), 1u);
        EXPECT_EQ(judged(in_memory), report.evaluations.front().values) << model.name;
        const auto file = OpenedWeights::open(wanted.save_weights);
        ASSERT_TRUE(file);
        Predictor from_file(model, *file, {.precision = precision});
        EXPECT_EQ(judged(from_file), report.evaluations.front().values) << model.name;
      }
    }
  }
}

TEST_F(Predictions, OfARunUnderWayAreOfItsNewestStepAndDoNotChangeIt) {
  const LayeredModel model = conv_model();
  for (const ScheduleKind schedule : {ScheduleKind::OneFOneB, ScheduleKind::PipeDream}) {
    const Plan plan = plan_for(model, {1}, 4, schedule);
    const auto losses_of = [&](bool asks) {
      const auto world = make_local_communicators(1, std::chrono::seconds(60));
      const auto device = make_cpu_device();
      Trainer trainer({*world[0], steady_clock(), *device}, model, plan, options(6), with_evaluation(model));
      NamedTensors before;
      while (trainer.step()) {
        if (!asks) continue;
        const NamedTensors weights = trainer.weights();
        Predictor predictor(model, weights);
        EXPECT_GT(judged(predictor).front().second, 0);
        if (!before.empty()) {
          EXPECT_FALSE(at::equal(before.front().second, weights.front().second));
        }
        before = weights;
      }
      RunReport report = trainer.run();
      if (asks) {
        Predictor predictor(model, trainer.weights());
        EXPECT_EQ(judged(predictor), report.evaluations.back().values);
      }
      return report.losses;
    };
    EXPECT_EQ(losses_of(true), losses_of(false));
  }
}

TEST_F(Predictions, SayWhatDoesNotFit) {
  const LayeredModel model = small_model();
  NamedTensors weights;
  train_locally(model, plan_for(model, {1}, 1, ScheduleKind::OneFOneB), options(1), with_evaluation(model),
                {.weights = &weights});
  const auto refused = [&](const NamedTensors& wrong) -> std::string {
    try {
      Predictor predictor(model, wrong);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "taken";
  };
  NamedTensors less = weights, more = weights, other = weights;
  less.erase(less.begin());
  more.emplace_back("z.weight", at::zeros({2}));
  other.front().second = at::zeros({3, 3});
  EXPECT_NE(refused(less).find("have no tensor a.weight"), std::string::npos) << refused(less);
  EXPECT_NE(refused(more).find("z.weight"), std::string::npos) << refused(more);
  EXPECT_NE(refused(other).find("a.weight has shape [3, 3], the model has [16, 12]"), std::string::npos)
      << refused(other);
  Predictor predictor(model, weights);
  EXPECT_EQ(predictor.reads(), (std::vector<char>{1, 0}));
  EXPECT_EQ(predictor.forward({{at::zeros({2, 12})}}).front().sizes(), (std::vector<std::int64_t>{2, 5}));
  EXPECT_THROW(predictor.forward({}), DataError);
  EXPECT_THROW(predictor.forward({{at::zeros({2, 11})}}), DataError);
  EXPECT_THROW(predictor.forward({{at::zeros({12})}}), DataError);
  EXPECT_THROW(predictor.forward({{at::zeros({2, 12}, at::kLong)}}), DataError);
}

}  // namespace
}  // namespace millrace
