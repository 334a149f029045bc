// Tests the messages between replicas of a stage: gradients once in each step, statistics of batch
// normalisation, and losses.
#include <gtest/gtest.h>

#include <fstream>
#include <tuple>

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/comm/channel.h"
#include "runtime/train/measured_times.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

/// The messages and computations of every rank, in its order.
struct Events {
  struct One {
    std::string what;
    std::int64_t bytes = 0;
  };
  std::mutex mutex;
  std::map<int, std::vector<One>> of_rank;

  void add(int rank, One one) {
    const std::lock_guard lock(mutex);
    of_rank[rank].push_back(std::move(one));
  }
  std::int64_t count(int rank, const std::string& part) {
    return std::ranges::count_if(of_rank[rank],
                                 [&](const One& e) { return e.what.find(part) != std::string::npos; });
  }
  std::int64_t bytes(int rank, const std::string& part) {
    std::int64_t sum = 0;
    for (const One& e : of_rank[rank]) sum += e.what.find(part) != std::string::npos ? e.bytes : 0;
    return sum;
  }
};

thread_local int rank_here = -1;

class RecordingChannel final : public ForwardingChannel {
 public:
  RecordingChannel(std::shared_ptr<Channel> inner, std::shared_ptr<Events> events)
      : ForwardingChannel(std::move(inner)), events_(std::move(events)) {}
  std::unique_ptr<Pending> post(const Transfer& t) override {
    rank_here = rank();
    if (t.direction == Direction::Send)
      events_->add(rank(), {t.what.text(), static_cast<std::int64_t>(t.tensor.nbytes())});
    return ForwardingChannel::post(t);
  }

 private:
  std::shared_ptr<Events> events_;
};

/// A first layer that notes each of its backwards: the last thing that a backward does.
class Probe final : public Layer {
 public:
  explicit Probe(std::shared_ptr<Events> events) : events_(std::move(events)) {}
  std::string kind() const override { return "probe"; }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "bias", .shape = {12}, .init = Init::Ones}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved*) const override {
    return at::add(inputs[0], p[0]);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {grad};
  }
  void backward_weight(const at::Tensor& grad, Saved&, std::span<at::Tensor> grads) const override {
    events_->add(rank_here, {"backward"});
    grads[0].add_(grad.sum({0}));
  }

 private:
  std::shared_ptr<Events> events_;
};

/// `count` microbatches of RandomBatches as one.
struct JoinedBatches final : BatchSource {
  JoinedBatches(const LayeredModel& model, int microbatch, int n) : parts(model, microbatch), count(n) {}
  Batch get(std::int64_t position) override {
    Batch whole = parts.get(count * position);
    for (int i = 1; i < count; ++i) {
      const Batch next = parts.get(count * position + i);
      for (std::size_t f = 0; f < whole.fields.size(); ++f)
        whole.fields[f] = at::cat({whole.fields[f], next.fields[f]});
    }
    return whole;
  }
  void seek(std::int64_t) override {}
  BatchExtent extent(std::int64_t position) const override {
    return {.samples = count * parts.extent(position).samples};
  }
  RandomBatches parts;
  int count;
};

class Replicas : public Pipeline {
 protected:
  void SetUp() override {
    Pipeline::SetUp();
    make_ranks_ = [this](int size, std::chrono::milliseconds deadline) {
      return make_local_communicators(size, deadline, {[this](std::shared_ptr<Channel> inner) {
                                        return std::make_shared<RecordingChannel>(std::move(inner), events_);
                                      }});
    };
  }
  std::shared_ptr<Events> events_ = std::make_shared<Events>();
};

TEST_F(Replicas, GradientsAreAddedUpOnceAStepBesideTheLastMicrobatchesBackward) {
  LayeredModel model = small_model();
  model.layers.insert(model.layers.begin(), {"probe", std::make_shared<Probe>(events_), {"input"}});
  model.layers[1].inputs = {"probe"};
  constexpr int kSteps = 3, kOwn = 4;  // microbatches of each replica
  TrainOptions few = options(kSteps);
  few.bucket_bytes = 1;  // a bucket for each layer that has weights
  train(model, plan_for(model, {2}, 2 * kOwn, ScheduleKind::OneFOneB), few);
  for (int rank = 0; rank < 2; ++rank) {
    // Each with 5 linear layers and the probe: as many messages a step, whatever the microbatches.
    EXPECT_EQ(events_->count(rank, "REDUCE of bucket"), kSteps * 6) << rank;
    EXPECT_EQ(events_->count(rank, "backward"), kSteps * kOwn);
    int backwards = 0, early = 0;
    for (const Events::One& e : events_->of_rank[rank]) {
      if (e.what == "backward") {
        ++backwards;
      } else if (e.what.find("REDUCE of bucket") != std::string::npos && backwards % kOwn != 0) {
        // All but the probe's own leave before the backward of the step's last microbatch is through.
        EXPECT_EQ(backwards % kOwn, kOwn - 1) << rank;
        ++early;
      }
    }
    EXPECT_EQ(early, kSteps * 5) << rank;
  }
}

TEST_F(Replicas, ASleepingRunSendsTheWeightsOfSharedStateToo) {
  const LayeredModel model = small_model();
  const Plan plan = plan_for(model, {2}, 2, ScheduleKind::OneFOneB);
  TrainOptions few = options(3);
  few.rule.shard_state = true;
  const auto sent = [&] {
    train(model, plan, few);
    const std::pair seen(events_->bytes(0, "updated weights"), events_->bytes(1, "updated weights"));
    events_->of_rank.clear();
    return seen;
  };
  const auto computing = sent();
  EXPECT_GT(computing.first, 0);
  MeasuredTimes times;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<Span> spans;
    for (const SpanKind kind : {SpanKind::Forward, SpanKind::Backward, SpanKind::Update})
      spans.push_back({.kind = kind, .stage = 0, .microbatch = rank, .step = 0, .start = 0, .end = 1});
    times.add(std::move(spans));
  }
  few.waits = std::make_shared<const MeasuredTimes>(std::move(times));
  EXPECT_EQ(sent(), computing);
}

TEST_F(Replicas, MicrobatchesOfAStepAreOneBatch) {
  LayeredModel plain = small_model();
  for (NamedLayer& named : plain.layers) {
    if (named.layer->kind() == "dropout") named.layer = gelu();
  }
  const Outcome accumulated = train(plain, plan_for(plain, {1}, 4, ScheduleKind::OneFOneB), options(4));
  make_batches_ = [](const LayeredModel& m) -> std::unique_ptr<BatchSource> {
    return std::make_unique<JoinedBatches>(m, kMicrobatch, 4);
  };
  TrainOptions large = options(4);
  large.microbatch = 4 * kMicrobatch;
  const Outcome at_once = train(plain, plan_for(plain, {1}, 1, ScheduleKind::OneFOneB), large);
  for (const auto& [name, tensor] : at_once.weights)
    EXPECT_TRUE(at::allclose(accumulated.weights.at(name), tensor, 1e-4, 1e-6)) << name;
}

/// BLAS adds a product in parts where there are many rows, and onto the sum itself where that has few.
TEST_F(Replicas, OfOneMicrobatchEachEqualOneProcessBitForBit) {
  LayeredModel narrow = classifier("narrow", {12}, 2);
  narrow.layers.push_back({"hidden", linear(12, 48), {"input"}});
  narrow.layers.push_back({"gelu", gelu(), {"hidden"}});
  narrow.layers.push_back({"scores", linear(48, 2), {"gelu"}});
  end_in_cross_entropy(narrow);
  for (const LayeredModel& model : {narrow, small_model()}) {
    for (const int microbatch : {kMicrobatch, 400}) {
      make_batches_ = [microbatch](const LayeredModel& m) -> std::unique_ptr<BatchSource> {
        return std::make_unique<RandomBatches>(m, microbatch);
      };
      TrainOptions settings = options(5);
      settings.microbatch = microbatch;
      for (const int replicas : {2, 3}) {
        const Outcome one = train(model, plan_for(model, {1}, replicas, ScheduleKind::OneFOneB), settings),
                      many = train(model, plan_for(model, {replicas}, replicas, ScheduleKind::OneFOneB),
                                   settings);
        for (const auto& [name, tensor] : one.weights)
          EXPECT_TRUE(at::equal(tensor, many.weights.at(name)))
              << model.name << " of " << microbatch << ", " << replicas << " replicas: " << name;
      }
    }
  }
}

TEST_F(Replicas, AnEvaluationAddsUpItsLossesAndNothingElse) {
  const LayeredModel model = conv_model();
  const Plan plan = plan_for(model, {2, 2}, 4, ScheduleKind::OneFOneB);
  const auto trained = train(model, plan, options(2)).weights;
  const auto without = std::exchange(events_->of_rank, {});
  evaluation_microbatches_ = 6;
  TrainOptions evaluating = options(2);
  evaluating.evaluate_every = 1;
  const Outcome outcome = train(model, plan, evaluating);
  ASSERT_EQ(outcome.reports[2].evaluations.size(), 2u);
  Events before;
  before.of_rank = without;
  for (int rank = 0; rank < 4; ++rank) {
    for (const char* part : {"REDUCE of bucket", "mean of running statistics", "SEND_B"})
      EXPECT_EQ(events_->bytes(rank, part), before.bytes(rank, part)) << rank << " " << part;
    // Three microbatches for each replica in each evaluation; loss, top1, top5 and the weight, in double.
    if (rank < 2) {
      EXPECT_EQ(events_->count(rank, "SEND_F") - before.count(rank, "SEND_F"), 2 * 3) << rank;
    }
    if (rank >= 2) {
      EXPECT_EQ(events_->count(rank, "REDUCE of the losses") - before.count(rank, "REDUCE of the losses"), 2);
      EXPECT_EQ(events_->bytes(rank, "REDUCE of the losses") - before.bytes(rank, "REDUCE of the losses"),
                2 * 4 * 8);
    }
  }
  for (const auto& [name, tensor] : trained) EXPECT_TRUE(at::equal(tensor, outcome.weights.at(name))) << name;
}

// ---- batch normalisation ---------------------------------------------------------------------------------

/// Moves the cut between two stages: `layer` becomes the first layer of the second stage.
void cut_before(Plan& plan, const std::string& layer) {
  std::vector<std::string> all = plan.stages[0].layers;
  all.insert(all.end(), plan.stages[1].layers.begin(), plan.stages[1].layers.end());
  const auto cut = std::ranges::find(all, layer);
  plan.stages[0].layers.assign(all.begin(), cut);
  plan.stages[1].layers.assign(cut, all.end());
}

TEST_F(Replicas, SynchronisedBatchNormalisationIsThatOfTheJoinedBatch) {
  const LayeredModel model = conv_model();
  make_batches_ = [](const LayeredModel& m) -> std::unique_ptr<BatchSource> {
    return std::make_unique<JoinedBatches>(m, kMicrobatch, 2);
  };
  TrainOptions joined = options(5);
  joined.microbatch = 2 * kMicrobatch;
  const Outcome expected = train(model, plan_for(model, {1}, 3, ScheduleKind::OneFOneB), joined);
  make_batches_ = [](const LayeredModel& m) -> std::unique_ptr<BatchSource> {
    return std::make_unique<RandomBatches>(m, kMicrobatch);
  };
  const auto furthest = [&](const Outcome& outcome) {
    double most = 0;
    for (const auto& [name, tensor] : expected.weights) {
      if (tensor.is_floating_point())
        most = std::max(most, outcome.weights.at(name).sub(tensor).abs().max().item<double>());
    }
    return most;
  };
  TrainOptions synchronised = options(5);
  synchronised.sync_batch_norm = true;
  for (const auto& [replicas, kind] : {std::pair{std::vector<int>{2}, ScheduleKind::OneFOneB},
                                       {{2, 2}, ScheduleKind::OneFOneB},
                                       {{2, 2}, ScheduleKind::GPipe},
                                       {{2, 1}, ScheduleKind::GPipe},
                                       {{1, 2}, ScheduleKind::OneFOneB},
                                       {{2, 2}, ScheduleKind::ZeroBubbleH1}}) {
    Plan plan = plan_for(model, replicas, 6, kind);
    // A stage on one rank has the statistics of single microbatches: here such a stage has no such layers.
    if (replicas.back() < replicas.front()) cut_before(plan, "pool");
    if (replicas.back() > replicas.front()) cut_before(plan, "bn1");
    for (const bool recompute : {false, true}) {
      for (PlanStage& stage : plan.stages) stage.recompute = recompute;
      const Outcome outcome = train(model, plan, synchronised);
      EXPECT_LT(furthest(outcome), 2e-5) << to_string(kind) << " " << replicas.size();
      for (std::size_t i = 0; i < expected.losses.size(); ++i)
        EXPECT_NEAR(outcome.losses[i], expected.losses[i], 1e-5) << i;
    }
  }
  EXPECT_GT(furthest(train(model, plan_for(model, {2}, 6, ScheduleKind::OneFOneB), options(5))), 1e-3);
}

TEST_F(Replicas, WhereTheyCannotMeetSynchronisedBatchNormalisationIsRefused) {
  const LayeredModel model = conv_model();
  TrainOptions synchronised = options(2);
  synchronised.sync_batch_norm = true;
  for (const auto& [kind, microbatches, part] :
       {std::tuple{ScheduleKind::PipeDream, 4, "take turns"}, {ScheduleKind::OneFOneB, 5, "whole cycles"}}) {
    try {
      train(model, plan_for(model, {2}, microbatches, kind), synchronised);
      ADD_FAILURE() << to_string(kind);
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

// The variance of one value is 0, and the running variance divides by 0.
TEST_F(Replicas, BatchNormalisationOfOneValueIsRefusedUnlessReplicasJoin) {
  LayeredModel model = classifier("one value", {3, 1, 1}, 5);
  model.layers.push_back({"conv", conv2d({.in = 3, .out = 4, .kernel = 1}), {"input"}});
  model.layers.push_back({"bn", batch_norm2d(4), {"conv"}});
  model.layers.push_back({"flatten", flatten(), {"bn"}});
  model.layers.push_back({"last", linear(4, 5), {"flatten"}});
  end_in_cross_entropy(model);
  make_batches_ = [](const LayeredModel& m) -> std::unique_ptr<BatchSource> {
    return std::make_unique<RandomBatches>(m, 1);
  };
  TrainOptions one = options(2);
  one.microbatch = 1;
  for (const std::vector<int>& replicas : {std::vector<int>{1}, {2}}) {
    try {
      train(model, plan_for(model, replicas, 2, ScheduleKind::OneFOneB), one);
      ADD_FAILURE() << replicas.front();
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("layer bn: normalises input [1, 4, 1, 1] in training"),
                std::string::npos)
          << error.what();
    }
  }
  one.sync_batch_norm = true;
  const Outcome outcome = train(model, plan_for(model, {2}, 2, ScheduleKind::OneFOneB), one);
  for (const auto& [name, tensor] : outcome.weights)
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
}

// A later microbatch may be the only one with a single value for each channel. It is refused when it runs.
TEST_F(Replicas, AShortMicrobatchOfOneValueEndsTheRunByName) {
  const LayerPtr layer = batch_norm2d(4);
  const std::vector<at::Tensor> weights{at::ones({4}), at::zeros({4})};
  std::vector<at::Tensor> buffers{at::zeros({4}), at::ones({4}), at::zeros({}, at::kLong)};
  Saved saved;
  const std::vector<at::Tensor> input{at::ones({1, 4, 1, 1})};
  EXPECT_THROW(layer->forward(input, weights, buffers, {}, &saved), ConfigError);
  EXPECT_TRUE(buffers[1].isfinite().all().item<bool>());
  EXPECT_NO_THROW(layer->forward(input, weights, buffers, {.training = false}, nullptr));
}

TEST_F(Replicas, RunningStatisticsAreOneSetAndAResumedRunHasTheSame) {
  const LayeredModel model = conv_model();
  for (const bool synchronised : {false, true}) {
    const Plan plan = plan_for(model, {2, 2}, 4, ScheduleKind::OneFOneB);
    TrainOptions whole = options(6);
    whole.sync_batch_norm = synchronised;
    evaluation_microbatches_ = 4;
    const Outcome expected = train(model, plan, whole);
    TrainOptions half = whole;
    half.steps = 3;
    half.output_dir = (folder_ / "run").string();
    half.overwrite = true;
    half.checkpoint_at_end = true;
    half.learning_rate.total_steps = whole.learning_rate.total_steps;
    train(model, plan, half);
    TrainOptions rest = whole;
    rest.resume = (folder_ / "run" / "checkpoints").string();
    const Outcome resumed = train(model, plan, rest);
    for (const auto& [name, tensor] : expected.weights)
      EXPECT_TRUE(at::equal(tensor, resumed.weights.at(name))) << name;
    EXPECT_EQ(expected.reports[2].evaluations.back().values, resumed.reports[2].evaluations.back().values);
  }
}

// ---- throughput ------------------------------------------------------------------------------------------

TEST_F(Pipeline, SamplesPerSecondCountTheSamplesThatThereWere) {
  const LayeredModel model = small_model();
  make_batches_ = [](const LayeredModel& m) -> std::unique_ptr<BatchSource> {
    /// Every second step has microbatches of one sample.
    struct Ragged final : BatchSource {
      explicit Ragged(const LayeredModel& model) : full(model, kMicrobatch) {}
      Batch get(std::int64_t position) override {
        Batch batch = full.get(position);
        for (at::Tensor& field : batch.fields) field = field.narrow(0, 0, extent(position).samples).clone();
        return batch;
      }
      void seek(std::int64_t) override {}
      BatchExtent extent(std::int64_t position) const override {
        return {.samples = position % 8 < 4 ? kMicrobatch : 1};
      }
      RandomBatches full;
    };
    return std::make_unique<Ragged>(m);
  };
  TrainOptions logged = options(6);
  logged.output_dir = (folder_ / "run").string();
  train(model, plan_for(model, {2}, 4, ScheduleKind::OneFOneB), logged);
  std::ifstream log(folder_ / "run" / "steps.rank0.jsonl");
  int steps = 0;
  for (std::string line; std::getline(log, line);) {
    const auto record = parse_json(line, "log");
    ASSERT_TRUE(record) << line;
    if (!record->find("step_s")) continue;
    const double samples = record->find("samples_per_s")->as_double() * record->find("step_s")->as_double();
    EXPECT_NEAR(samples, steps++ % 2 == 0 ? 4 * kMicrobatch : 4, 1e-6) << line;
  }
  EXPECT_EQ(steps, 6);
}

}  // namespace
}  // namespace millrace
