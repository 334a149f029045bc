// The promises of the runtime: any plan gives the weights of one process, bit for bit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/layers/basic_layers.h"
#include "runtime/train/trainer.h"
#include "tests/comm/fake_nccl.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

/// Random batches as a function of the position.
class RandomBatches final : public BatchSource {
 public:
  RandomBatches(const LayeredModel& model, int microbatch) : model_(model), microbatch_(microbatch) {}
  Batch get(std::int64_t position) override {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(position) + 1000);
    Shape shape{microbatch_};
    shape.insert(shape.end(), model_.input_shape.begin(), model_.input_shape.end());
    Batch batch{.input = at::empty(shape, at::kFloat).normal_(0, 1, generator)};
    batch.target = at::empty({microbatch_}, at::kLong).random_(0, model_.num_classes, generator);
    return batch;
  }
  void seek(std::int64_t) override {}

 private:
  LayeredModel model_;
  int microbatch_;
};

/// Linear, GELU, dropout, and a skip connection over several layers.
LayeredModel small_model() {
  LayeredModel model{.name = "small", .input_shape = {12}, .num_classes = 5};
  std::string last = "input";
  const auto then = [&](const std::string& name, LayerPtr layer) {
    model.layers.push_back({name, std::move(layer), {last}});
    last = name;
  };
  then("a", linear(12, 16));
  then("b", gelu());
  const std::string skip = last;
  then("c", linear(16, 16));
  then("d", dropout(0.2));
  then("e", linear(16, 16));
  then("f", gelu());
  model.layers.push_back({"g", add(), {last, skip}});
  last = "g";
  then("h", linear(16, 16));
  then("i", relu());
  then("j", linear(16, 5));
  return model;
}

LayeredModel conv_model() {
  LayeredModel model{.name = "conv", .input_shape = {3, 8, 8}, .num_classes = 4};
  std::string last = "input";
  const auto then = [&](const std::string& name, LayerPtr layer) {
    model.layers.push_back({name, std::move(layer), {last}});
    last = name;
  };
  then("conv1", conv2d({.in = 3, .out = 8, .padding = 1}));
  then("bn1", batch_norm2d(8));
  then("relu1", relu());
  then("conv2", conv2d({.in = 8, .out = 8, .padding = 1, .bias = false}));
  then("bn2", batch_norm2d(8));
  then("pool", max_pool2d(2, 2));
  then("flatten", flatten());
  then("fc", linear(128, 4));
  return model;
}

struct Outcome {
  std::map<std::string, at::Tensor> weights;
  std::vector<double> losses;  // of the last stage's first replica
  std::vector<RunReport> reports;
};

class Pipeline : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    char name[] = "/tmp/millrace-train-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static constexpr int kMicrobatch = 3;

  TrainOptions options(std::int64_t steps, const std::string& rule = "sgd") {
    return {.steps = steps,
            .microbatch = kMicrobatch,
            .seed = 11,
            .rule = {.kind = rule, .weight_decay = 1e-3},
            .learning_rate = {.base = rule == "sgd" ? 0.05 : 0.003},
            .print_every = 1 << 20};
  }

  Outcome train(const LayeredModel& model, const Plan& plan, TrainOptions options) {
    options.save_weights = (folder_ / "weights.safetensors").string();
    auto communicators = make_ranks_(plan.num_ranks(), std::chrono::milliseconds(60'000));
    Outcome outcome;
    outcome.reports.resize(communicators.size());
    std::mutex mutex;
    std::exception_ptr first;
    {
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < communicators.size(); ++r) {
        threads.emplace_back([&, r] {
          try {
            at::set_num_threads(1);
            SteadyClock clock;
            Trainer trainer(
                {*communicators[r], clock, *device_}, model, plan, options,
                [&](const BatchNeeds&, const BatchNeeds&) {
                  return BatchSources{.train = std::make_unique<RandomBatches>(model, kMicrobatch)};
                });
            outcome.reports[r] = trainer.run();
          } catch (const std::exception& error) {
            std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
            communicators[r]->abort(error.what());
          }
        });
      }
    }
    if (first) std::rethrow_exception(first);
    const auto file = SafetensorsFile::open(options.save_weights);
    EXPECT_TRUE(file);
    for (const std::string& name : file->names()) outcome.weights[name] = file->tensor(name);
    outcome.losses = outcome.reports[static_cast<std::size_t>(plan.stages.back().ranks[0].value)].losses;
    return outcome;
  }

  static void expect_equal(const Outcome& a, const Outcome& b, const std::string& what) {
    EXPECT_EQ(a.losses, b.losses) << what;
    ASSERT_EQ(a.weights.size(), b.weights.size());
    for (const auto& [name, tensor] : a.weights)
      EXPECT_TRUE(at::equal(tensor, b.weights.at(name))) << what << ": " << name;
  }

  static Plan plan_for(const LayeredModel& model, const std::vector<int>& replicas, int microbatches,
                       ScheduleKind kind) {
    Plan plan = uniform_plan(model.name, model.layer_names(), static_cast<int>(replicas.size()), 1,
                             microbatches, kind);
    int rank = 0;
    for (std::size_t s = 0; s < replicas.size(); ++s) {
      plan.stages[s].ranks.clear();
      for (int r = 0; r < replicas[s]; ++r) plan.stages[s].ranks.emplace_back(rank++);
    }
    return plan;
  }

  fs::path folder_;
  std::function<std::vector<std::unique_ptr<Communicator>>(int size, std::chrono::milliseconds deadline)>
      make_ranks_ = make_local_communicators;
  std::shared_ptr<Device> device_ = make_cpu_device();
};

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
    make_ranks_ = make_local_communicators;
    const Outcome expected = train(model, plan, options(6));
    make_ranks_ = [](int size, std::chrono::milliseconds deadline) {
      return make_fake_nccl_communicators(size, deadline);
    };
    expect_equal(train(model, plan, options(6)), expected, to_string(kind));
  }
}

/// The host, pretending to work beside its caller.
class AsynchronousHost final : public Device {
 public:
  std::string name() const override { return "host"; }
  std::string identity() const override { return "host"; }
  at::Device where() const override { return at::kCPU; }
  bool is_asynchronous() const override { return true; }
  void bind_thread() override {}
  at::Tensor upload(at::Tensor host) override {
    ++uploads;
    return host;
  }
  std::unique_ptr<DeviceMark> mark() override { return host_->mark(); }
  void synchronize() override {}
  DeviceMemory memory() const override { return {.current = 1, .peak = 4321, .total = 9999}; }
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
    for (const char* rule : {"sgd", "adam"}) {
      const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), options(5, rule));
      ASSERT_EQ(one.losses.size(), 5u);
      for (int stages : {2, 3, 4}) {
        for (ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB}) {
          expect_equal(
              train(model, plan_for(model, std::vector<int>(static_cast<std::size_t>(stages), 1), 4, kind),
                    options(5, rule)),
              one, model.name + " " + rule + " " + to_string(kind) + " " + std::to_string(stages));
        }
      }
    }
  }
}

/// One tensor that six layers read, and two branches that a plan may cut across the order of layers.
LayeredModel shared_tensor_model() {
  LayeredModel model{.name = "shared", .input_shape = {12}, .num_classes = 5};
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
    // The same float32 gradients added in another order: a few units in the last place of sums of order one,
    // over five steps.
    for (const auto& [name, tensor] : one.weights) {
      EXPECT_TRUE(at::allclose(many.weights.at(name), tensor, 1e-4, 1e-6))
          << ::testing::PrintToString(replicas) << " " << name;
    }
    for (std::size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5);
  }
}

/// For one process: nobody to talk to.
struct Alone final : Communicator {
  RankId rank() const override { return RankId(0); }
  int size() const override { return 1; }
  bool buffers_sends() const override { return true; }
  std::unique_ptr<Pending> exchange(std::span<const Transfer>) override { return nullptr; }
  std::unique_ptr<Pending> all_reduce(at::Tensor, std::string) override { return nullptr; }
  void broadcast(at::Tensor, RankId) override {}
  void barrier() override {}
  std::unique_ptr<Communicator> subgroup(const std::vector<RankId>&, const std::string&) override {
    return nullptr;
  }
  void abort(const std::string&) noexcept override {}
};

/// One process, by hand: the engine's layers, a list of past weights, no scheduler.
class Reference {
 public:
  Reference(const LayeredModel& model, const Plan& plan, const TrainOptions& options)
      : layout_(*make_layout(model, plan, options.microbatch)),
        whole_(*make_layout(model,
                            uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB),
                            options.microbatch)),
        options_(options),
        batches_(model, options.microbatch) {
    for (int s = 0; s < layout_.num_stages(); ++s) {
      stores_.emplace_back(layout_, StageId(s), options.seed);
      rules_.push_back(std::move(*make_update_rule(options.rule, stores_.back().flat_weights())));
    }
  }

  /// One stage on `replicas` ranks, in one process: the gradients of each replica's microbatches (m mod
  /// replicas) are added up in their order, then the replicas' sums in the order of ranks.
  std::map<std::string, at::Tensor> replicated(std::int64_t steps, int replicas, int microbatches) {
    at::NoGradGuard no_grad;
    ParameterStore& store = stores_.at(0);
    StageExecutor executor({layout_, StageId(0), store, *rules_.at(0), alone_},
                           {.seed = options_.seed, .loss_scale = 1.0 / microbatches});
    for (std::int64_t step = 0; step < steps; ++step) {
      executor.begin(step * microbatches, learning_rate(options_.learning_rate, step));
      at::Tensor sum;
      for (int replica = 0; replica < replicas; ++replica) {
        store.flat_gradient().zero_();
        for (int m = replica; m < microbatches; m += replicas) {
          const Batch batch = batches_.get(step * microbatches + m);
          executor.feed(MicrobatchId(m), batch.input, batch.target);
          executor.execute({Op::Forward, StageId(0), MicrobatchId(m)});
          executor.execute({Op::Backward, StageId(0), MicrobatchId(m)});
        }
        sum = replica == 0 ? store.flat_gradient().clone() : at::add(sum, store.flat_gradient());
      }
      store.flat_gradient().copy_(sum);
      executor.execute({Op::Update, StageId(0), MicrobatchId(microbatches - 1)});
    }
    return weights();
  }

  /// w(t+1) = w(t) - lr grad f(w_1^(t-p+1), ..., w_p^(t)): stage s uses the weights of p-1-s updates ago.
  std::map<std::string, at::Tensor> asynchronous(std::int64_t steps) {
    at::NoGradGuard no_grad;
    const int p = layout_.num_stages();
    std::vector<std::vector<at::Tensor>> history(static_cast<std::size_t>(p));
    for (int s = 0; s < p; ++s)
      history[static_cast<std::size_t>(s)].push_back(
          stores_[static_cast<std::size_t>(s)].flat_weights().clone());
    for (std::int64_t t = 0; t < steps; ++t) {
      std::vector<at::Tensor> newest;
      for (int s = 0; s < p; ++s) {
        auto& store = stores_[static_cast<std::size_t>(s)];
        newest.push_back(store.flat_weights().clone());
        const std::int64_t version = std::max<std::int64_t>(0, t - (p - 1 - s));
        store.flat_weights().copy_(history[static_cast<std::size_t>(s)][static_cast<std::size_t>(version)]);
      }
      gradients(t);
      for (int s = 0; s < p; ++s) {
        auto& store = stores_[static_cast<std::size_t>(s)];
        store.flat_weights().copy_(newest[static_cast<std::size_t>(s)]);
        store.publish([&](at::Tensor w, const at::Tensor& g) {
          rules_[static_cast<std::size_t>(s)]->apply_(std::move(w), g, options_.learning_rate.base);
        });
        history[static_cast<std::size_t>(s)].push_back(store.flat_weights().clone());
      }
    }
    return weights();
  }

 private:
  void gradients(std::int64_t position) {
    // One executor over the whole model, whose parameters are set from the stages' stores.
    ParameterStore store(whole_, StageId(0), options_.seed);
    auto rule = std::move(*make_update_rule(options_.rule, store.flat_weights()));
    StageExecutor executor({whole_, StageId(0), store, *rule, alone_}, {.seed = options_.seed});
    const auto named = weights();
    for (std::size_t i = 0; i < store.slots().size(); ++i)
      store.view(store.flat_weights(), i).copy_(named.at(store.slots()[i].name));
    executor.begin(position, 0);
    Batch batch = batches_.get(position);
    executor.feed(MicrobatchId(0), batch.input, batch.target);
    executor.execute({Op::Forward, StageId(0), MicrobatchId(0)});
    executor.execute({Op::Backward, StageId(0), MicrobatchId(0)});
    std::map<std::string, at::Tensor> grads;
    for (std::size_t i = 0; i < store.slots().size(); ++i)
      grads[store.slots()[i].name] = store.view(store.flat_gradient(), i);
    for (auto& stage : stores_) {
      for (std::size_t i = 0; i < stage.slots().size(); ++i)
        stage.view(stage.flat_gradient(), i).copy_(grads.at(stage.slots()[i].name));
    }
  }

  std::map<std::string, at::Tensor> weights() {
    std::map<std::string, at::Tensor> result;
    for (auto& store : stores_) {
      for (std::size_t i = 0; i < store.slots().size(); ++i)
        result[store.slots()[i].name] = store.view(store.flat_weights(), i).clone();
    }
    return result;
  }

  StageLayout layout_, whole_;
  TrainOptions options_;
  RandomBatches batches_;
  std::vector<ParameterStore> stores_;
  std::vector<std::unique_ptr<UpdateRule>> rules_;
  Alone alone_;
};

TEST_F(Pipeline, ReplicasEqualOneProcessThatAddsInTheirOrderBitForBit) {
  const LayeredModel model = small_model();
  for (const auto& [replicas, rule] : {std::pair{2, "sgd"}, {2, "adam"}, {3, "sgd"}}) {
    const Plan plan = plan_for(model, {replicas}, 6, ScheduleKind::OneFOneB);
    const Outcome ours = train(model, plan, options(5, rule));
    const auto expected = Reference(model, plan, options(5, rule)).replicated(5, replicas, 6);
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::equal(tensor, ours.weights.at(name))) << replicas << " " << rule << ": " << name;
  }
}

TEST_F(Pipeline, AsynchronousEqualsTheDelayedGradientFormula) {
  const LayeredModel model = small_model();
  for (int stages : {1, 2, 3, 4}) {
    const Plan plan =
        plan_for(model, std::vector<int>(static_cast<std::size_t>(stages), 1), 1, ScheduleKind::PipeDream);
    const Outcome ours = train(model, plan, options(12));
    const auto expected = Reference(model, plan, options(12)).asynchronous(12);
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::equal(tensor, ours.weights.at(name))) << stages << " stages: " << name;
  }
}

TEST_F(Pipeline, StashAndVersionsAreWhatSimulateSays) {
  const LayeredModel model = small_model();
  for (ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::PipeDream}) {
    for (const auto& replicas : {std::vector<int>{1, 1}, {1, 1, 1, 1}, {2, 1}, {2, 2}}) {
      const Plan plan = plan_for(model, replicas, 8, kind);
      const auto layout = *make_layout(model, plan, kMicrobatch);
      const PipelineShape shape = shape_of(plan, layout, 8);
      const Simulation predicted = simulate(*make_schedule(kind, shape), shape, {});
      const Outcome outcome = train(model, plan, options(kind == ScheduleKind::PipeDream ? 8 : 2));
      for (std::size_t r = 0; r < outcome.reports.size(); ++r) {
        EXPECT_EQ(outcome.reports[r].peak_versions, predicted.peak_versions[r])
            << to_string(kind) << " rank " << r;
        EXPECT_EQ(outcome.reports[r].peak_stash, predicted.peak_stash[r]) << to_string(kind) << " rank " << r;
      }
    }
  }
}

TEST_F(Pipeline, ResumesWithTheSameLossesUnderAnyPlan) {
  const LayeredModel model = conv_model();
  TrainOptions unbroken = options(8, "adam");
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
    const Outcome resumed = train(
        model, plan_for(model, std::vector<int>(static_cast<std::size_t>(stages), 1), 4, ScheduleKind::GPipe),
        rest);
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
  EXPECT_THROW(train(model, plan_for(model, {2, 1}, 2, ScheduleKind::PipeDream), options(5)), ConfigError);
}

}  // namespace
}  // namespace millrace
