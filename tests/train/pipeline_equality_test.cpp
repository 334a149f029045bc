// The promises of the runtime: any plan gives the weights of one process, bit for bit.
#include <ATen/ops/allclose.h>

#include <atomic>
#include <fstream>

#include "models/chain.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "tests/comm/fake_nccl.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

// Receives posted ahead, one stream for each direction, sums on their own: the order of messages that NCCL
// relies on, under every schedule that trains. Bitwise, because sums go in the order of ranks there too.
TEST_F(Pipeline, EqualsItselfOverNcclsLogic) {
  const LayeredModel model = small_model();
  const std::vector<std::pair<std::vector<int>, ScheduleKind>> runs{{{1, 1, 1}, ScheduleKind::GPipe},
                                                                    {{1, 1, 1, 1}, ScheduleKind::OneFOneB},
                                                                    {{2, 1}, ScheduleKind::OneFOneB},
                                                                    {{1, 3}, ScheduleKind::OneFOneB},
                                                                    {{1, 1, 1}, ScheduleKind::PipeDream}};
  for (const auto& [replicas, kind] : runs) {
    const Plan plan = plan_for(model, replicas, 6, kind);
    // The first messages go through the host (through_host), of an asynchronous schedule more.
    const std::int64_t steps = is_asynchronous(kind) ? 120 : 6;
    make_ranks_ = local_ranks;
    const Outcome expected = train(model, plan, options(steps));
    const auto world = std::make_shared<FakeNcclWorld>();
    make_ranks_ = [&](int size, std::chrono::milliseconds deadline) {
      return make_fake_nccl_communicators(size, deadline, world);
    };
    expect_equal(train(model, plan, options(steps)), expected, to_string(kind));
    EXPECT_EQ(world->counts().idle, 0) << to_string(kind);
  }
}

// With four microbatches a step, replica 0 of the first stage never sends to replica 1 of the second.
TEST_F(Pipeline, AnEvaluationHasThePairsOfRanksThatItAloneNeeds) {
  const LayeredModel model = small_model();
  const Plan plan = plan_for(model, {2, 3}, 4, ScheduleKind::OneFOneB);
  TrainOptions evaluated = options(2);
  evaluated.evaluate_every = 1;
  evaluation_microbatches_ = 6;
  const Outcome expected = train(model, plan, evaluated);
  make_ranks_ = [](int size, std::chrono::milliseconds deadline) {
    return make_fake_nccl_communicators(size, deadline);
  };
  const Outcome outcome = train(model, plan, evaluated);
  expect_equal(outcome, expected, "NCCL");
  EXPECT_EQ(outcome.reports[2].evaluations.at(1).values, expected.reports[2].evaluations.at(1).values);
}

/// Returns its input, and its gradient, as the transpose of a tensor: neither is contiguous.
class Turned final : public Layer {
 public:
  std::string kind() const override { return "turned"; }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved*) const override {
    return inputs[0].t().contiguous().t();
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {grad.t().contiguous().t()};
  }
};

TEST_F(Pipeline, TensorsThatAreNotContiguousCrossABorder) {
  LayeredModel model = classifier("turned", {6}, 5);
  Chain chain(model);
  chain.then("a", linear(6, 7));
  chain.then("b", std::make_shared<Turned>());
  chain.then("c", std::make_shared<Turned>());
  chain.then("d", linear(7, 5));
  end_in_cross_entropy(model);
  const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), options(3));
  using Ranks = decltype(make_ranks_);
  const Ranks transports[] = {local_ranks, std::bind_front(joined_ranks, Backend::SharedMemory),
                              std::bind_front(joined_ranks, Backend::Tcp),
                              std::bind_front(joined_ranks, Backend::Gloo),
                              [](int size, std::chrono::milliseconds deadline) {
                                return make_fake_nccl_communicators(size, deadline);
                              }};
  for (const Ranks& transport : transports) {
    make_ranks_ = transport;
    expect_equal(train(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), options(3)), one,
                 "transport " + std::to_string(&transport - transports));
  }
}

/// The host, pretending to work beside its caller.
class AsynchronousHost final : public Device {
 public:
  std::string name() const override { return "host"; }
  std::string identity() const override { return "host"; }
  at::Device where() const override { return at::kCPU; }
  void bind_thread() override {}
  at::Tensor upload(at::Tensor host) override {
    ++uploads;
    return host;
  }
  /// A mark that never tells that it is reached: the caller must wait for it.
  struct Mark final : DeviceMark {
    explicit Mark(std::unique_ptr<DeviceMark> mark) : host(std::move(mark)) {}
    void wait() override { host->wait(); }
    bool is_reached() const override { return false; }
    double seconds_since(const DeviceMark& earlier) const override {
      return host->seconds_since(*static_cast<const Mark&>(earlier).host);
    }
    std::unique_ptr<DeviceMark> host;
  };
  std::unique_ptr<DeviceMark> mark() override { return std::make_unique<Mark>(host_->mark()); }
  void synchronize() override {}
  DeviceMemory memory() const override { return {.current = 1, .peak = 4321, .total = 9999}; }
  void reset_peak_memory() override {}
  std::atomic<int> uploads{0};

 private:
  std::shared_ptr<Device> host_ = make_cpu_device();
};

TEST_F(Pipeline, AnAsynchronousDeviceIsTimedByItsOwnMarks) {
  const LayeredModel model = small_model();
  const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
  TrainOptions with_log = options(3);
  const Outcome expected = train(model, plan, with_log);
  const auto device = std::make_shared<AsynchronousHost>();
  device_ = device;
  with_log.output_dir = (folder_ / "run").string();
  const Outcome outcome = train(model, plan, with_log);
  expect_equal(outcome, expected, "asynchronous");
  EXPECT_GT(device->uploads, 0);
  EXPECT_EQ(outcome.reports[0].peak_memory_bytes, 4321);
  std::ifstream log(folder_ / "run" / "steps.rank1.jsonl");
  std::string line;
  for (int lines = 0; std::getline(log, line); ++lines) {
    const Result<Json> step = parse_json(line, "steps.rank1.jsonl");
    ASSERT_TRUE(step);
    if (lines == 0) continue;
    for (const char* key : {"forward_s", "backward_s", "update_s"}) {
      EXPECT_GT(step->find(key)->as_double(), 0) << line;
      EXPECT_LE(step->find(key)->as_double(), step->find("step_s")->as_double()) << line;
    }
    EXPECT_EQ(step->find("peak_memory_bytes")->as_int(), 4321);
  }
}

TEST_F(Pipeline, EqualsOneProcessBitForBit) {
  for (const LayeredModel& model : {small_model(), conv_model()}) {
    for (UpdateRuleKind rule : {UpdateRuleKind::Sgd, UpdateRuleKind::Adam}) {
      const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), options(5, rule));
      ASSERT_EQ(one.losses.size(), 5u);
      for (int stages : {2, 3, 4}) {
        for (ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB}) {
          expect_equal(
              train(model, plan_for(model, std::vector<int>(stages, 1), 4, kind), options(5, rule)), one,
              model.name + " " + to_string(rule) + " " + to_string(kind) + " " + std::to_string(stages));
        }
      }
    }
  }
}

/// One tensor that six layers read, and two branches that a plan may cut across the order of layers.
LayeredModel shared_tensor_model() {
  LayeredModel model = classifier("shared", {12}, 5);
  const auto put = [&](const std::string& name, LayerPtr layer, const std::vector<std::string>& inputs) {
    model.layers.push_back({name, std::move(layer), inputs});
  };
  put("a", linear(12, 16), {"input"});
  put("s", gelu(), {"a"});
  put("c", linear(16, 16), {"s"});
  put("d", add(), {"c", "s"});
  put("left", linear(16, 16), {"s"});
  put("right", linear(16, 16), {"d"});
  put("f", add(), {"left", "right"});
  put("g", add(), {"f", "s"});
  put("h", add(), {"g", "s"});
  put("i", linear(16, 16), {"h"});
  put("k", add(), {"i", "s"});
  put("l", linear(16, 5), {"k"});
  end_in_cross_entropy(model);
  return model;
}

TEST_F(Pipeline, GradientsOfASharedTensorAreSummedInTheOrderOfOneProcess) {
  const LayeredModel model = shared_tensor_model();
  const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), options(4));
  using Cut = std::vector<std::vector<std::string>>;
  const Cut three{{"a", "s", "c", "d"}, {"left", "right", "f", "g", "h"}, {"i", "k", "l"}};
  const Cut four{{"a", "s"}, {"c", "d", "left", "right"}, {"f", "g", "h"}, {"i", "k", "l"}};
  const Cut against_the_order{{"a", "s", "left"}, {"c", "d", "right", "f"}, {"g", "h", "i", "k", "l"}};
  for (const Cut& cut : {three, four, against_the_order}) {
    Plan plan = plan_for(model, std::vector<int>(cut.size(), 1), 4, ScheduleKind::OneFOneB);
    for (std::size_t s = 0; s < cut.size(); ++s) plan.stages[s].layers = cut[s];
    expect_equal(train(model, plan, options(4)), one, std::to_string(cut.size()) + " stages");
  }
}

TEST_F(Pipeline, ReplicatedStagesEqualOneProcessWithinRounding) {
  const LayeredModel model = small_model();
  const Outcome one = train(model, plan_for(model, {1}, 6, ScheduleKind::OneFOneB), options(5));
  for (const auto& replicas : {std::vector<int>{2}, {3}, {2, 1}, {1, 2}, {2, 2}, {3, 1}}) {
    const Outcome many = train(model, plan_for(model, replicas, 6, ScheduleKind::OneFOneB), options(5));
    // The same float32 gradients are added in another order. Over five steps that makes a few units in the
    // last place of sums of order one.
    for (const auto& [name, tensor] : one.weights) {
      EXPECT_TRUE(at::allclose(many.weights.at(name), tensor, 1e-4, 1e-6))
          << ::testing::PrintToString(replicas) << " " << name;
    }
    for (std::size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5);
  }
}

TEST_F(Pipeline, ReplicasEqualOneProcessThatAddsInTheirOrderBitForBit) {
  const LayeredModel model = small_model();
  for (const auto& [replicas, rule] :
       {std::pair{2, UpdateRuleKind::Sgd}, {2, UpdateRuleKind::Adam}, {3, UpdateRuleKind::Sgd}}) {
    const Plan plan = plan_for(model, {replicas}, 6, ScheduleKind::OneFOneB);
    const Outcome ours = train(model, plan, options(5, rule));
    const auto expected = Reference(model, plan, options(5, rule)).replicated(5, replicas, 6);
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::equal(tensor, ours.weights.at(name)))
          << replicas << " " << to_string(rule) << ": " << name;
  }
}

TEST_F(Pipeline, ResumesWithTheSameLossesUnderAnyPlan) {
  const LayeredModel model = conv_model();
  TrainOptions unbroken = options(8, UpdateRuleKind::Adam);
  const Outcome whole = train(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), unbroken);
  TrainOptions first = unbroken;
  first.steps = 5;
  first.learning_rate.total_steps = 8;
  first.output_dir = (folder_ / "out").string();
  first.checkpoint_every = 2;
  train(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), first);
  for (int stages : {1, 2, 3}) {
    TrainOptions rest = unbroken;
    rest.resume = first.output_dir;
    const Outcome resumed =
        train(model, plan_for(model, std::vector<int>(stages, 1), 4, ScheduleKind::GPipe), rest);
    EXPECT_EQ(resumed.losses, (std::vector<double>{whole.losses.begin() + 4, whole.losses.end()}));
    for (const auto& [name, tensor] : whole.weights)
      EXPECT_TRUE(at::equal(tensor, resumed.weights.at(name))) << name;
  }
}

TEST_F(Pipeline, RefusesUnusableCheckpoints) {
  const LayeredModel model = conv_model();
  TrainOptions first = options(2);
  first.output_dir = (folder_ / "out").string();
  first.checkpoint_every = 1;
  const Plan plan = plan_for(model, {1}, 2, ScheduleKind::OneFOneB);
  train(model, plan, first);
  TrainOptions rest = options(4);
  rest.resume = first.output_dir;
  const LayeredModel other = small_model();
  EXPECT_THROW(train(other, plan_for(other, {1}, 2, ScheduleKind::OneFOneB), rest), CheckpointError);
  // The newest is truncated: the one before is taken; both: refused.
  const auto shard = [&](int step) {
    return folder_ / "out/checkpoints" / ("step-0000000" + std::to_string(step)) / "stage0.safetensors";
  };
  fs::resize_file(shard(2), fs::file_size(shard(2)) / 2);
  EXPECT_EQ(train(model, plan, rest).losses.size(), 3u);
  fs::resize_file(shard(1), 4);
  EXPECT_THROW(train(model, plan, rest), CheckpointError);
}

TEST_F(Pipeline, PlansThatDoNotFitAreRefused) {
  const LayeredModel model = small_model();
  Plan plan = plan_for(model, {1, 1}, 2, ScheduleKind::OneFOneB);
  plan.stages[1].layers.push_back("zzz");
  EXPECT_THROW(train(model, plan, options(1)), ConfigError);
  EXPECT_THROW(train(model, plan_for(model, {2, 1}, 2, ScheduleKind::PipeDreamVSync), options(5)),
               ConfigError);
}

}  // namespace
}  // namespace millrace
