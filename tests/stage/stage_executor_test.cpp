// Executors of several stages on threads against the whole model by hand: every tensor that crosses a border,
// every gradient, statistic and weight has the same bits.
#include "runtime/stage/stage_executor.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>

#include <limits>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "tests/stage/stage_fixture.h"

namespace millrace {
namespace {

constexpr std::uint64_t kSeed = 11;

/// `g` is read in every stage, and in the middle one twice:
///   a -> g -> b -> t -> d -> c -> s -> h
///        g --------^              ^
///        g -----------------------/
LayeredModel skipping_model() {
  LayeredModel model = classifier("skipping", {6}, 4);
  model.layers.push_back({"a", linear(6, 8), {"input"}});
  model.layers.push_back({"g", gelu(), {"a"}});
  model.layers.push_back({"b", linear(8, 8), {"g"}});
  model.layers.push_back({"t", add(), {"b", "g"}});
  model.layers.push_back({"d", dropout(0.25), {"t"}});
  model.layers.push_back({"c", linear(8, 8), {"d"}});
  model.layers.push_back({"s", add(), {"c", "g"}});
  model.layers.push_back({"h", linear(8, 4), {"s"}});
  end_in_cross_entropy(model);
  return model;
}
const std::vector<std::vector<std::string>> kThreeStages{{"a", "g"}, {"b", "t"}, {"d", "c", "s", "h"}};

LayeredModel normalising_model() {
  LayeredModel model = classifier("normalising", {6}, 4);
  model.layers.push_back({"a", linear(6, 8), {"input"}});
  model.layers.push_back({"n", batch_norm1d(8), {"a"}});
  model.layers.push_back({"h", linear(8, 4), {"n"}});
  end_in_cross_entropy(model);
  return model;
}

Batch batch_at(std::int64_t position) {
  const auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(position) + 500);
  return {{at::empty({3, 6}, at::kFloat).normal_(0, 1, generator),
           at::empty({3}, at::kLong).random_(0, 4, generator)}};
}

/// The whole model without stages: each layer is called once each way for a microbatch.
class ByHand {
 public:
  ByHand(const LayeredModel& model, int microbatches)
      : layout_(layout_of_one_stage(model)),
        store(layout_, StageId(0), kSeed),
        sums(num_head_sums(model), 0.0),
        scale_{.share = 3.0 / (3.0 * microbatches), .unit = 1.0 / (3.0 * microbatches)} {}

  struct Pass {
    std::map<std::string, at::Tensor> values;                        ///< key: tensor
    std::map<std::string, std::map<std::string, at::Tensor>> parts;  ///< gradients by tensor and reader
  };
  Pass run(std::int64_t position) {
    const LayeredModel& model = layout_.model;
    const Batch batch = batch_at(position);
    Pass pass;
    for (std::size_t f = 0; f < model.fields.size(); ++f) pass.values[model.fields[f].name] = batch.fields[f];
    std::vector<Saved> saved(model.layers.size() + 1);
    const auto inputs_of = [&](const std::vector<std::string>& names) {
      std::vector<at::Tensor> inputs;
      for (const std::string& name : names) inputs.push_back(pass.values.at(name));
      return inputs;
    };
    for (std::size_t l = 0; l < model.layers.size(); ++l) {
      const NamedLayer& named = model.layers[l];
      CallContext context;
      if (named.layer->draws())
        context.random_seed = derive_seed(kSeed, named.name, static_cast<std::uint64_t>(position));
      const int layer = static_cast<int>(l);
      pass.values[named.name] = named.layer->forward(inputs_of(named.inputs), store.current_parameters(layer),
                                                     store.buffers(layer), context, &saved[l]);
    }
    const NamedHead& head = model.heads.front();
    head.head->forward(inputs_of(head.inputs), &saved.back(), sums);
    std::map<std::string, at::Tensor> gradients;  // the sum from the last reader to the first
    const auto give = [&](const std::string& reader, const std::vector<std::string>& to,
                          std::vector<at::Tensor> values) {
      for (std::size_t i = 0; i < to.size(); ++i) {
        if (!values[i].defined()) continue;
        pass.parts[to[i]][reader] = values[i];
        at::Tensor& sum = gradients[to[i]];
        sum = sum.defined() ? at::add(sum, values[i]) : values[i];
      }
    };
    const bool of_head[] = {true, false};
    give("head", head.inputs, head.head->backward(saved.back(), scale_, of_head));
    for (std::size_t l = model.layers.size(); l-- > 0;) {
      const NamedLayer& named = model.layers[l];
      const bool wanted = named.inputs.front() != "input";
      const bool needs[] = {wanted, wanted};
      const int layer = static_cast<int>(l);
      give(named.name, named.inputs,
           named.layer->backward(gradients.at(named.name), store.current_parameters(layer), saved[l],
                                 std::span(needs).first(named.inputs.size()), store.gradients(layer)));
    }
    return pass;
  }
  at::Tensor gradient_of(const std::string& parameter) {
    return store.view(store.flat_gradient(), slot_named(store, parameter));
  }
  at::Tensor weight_of(const std::string& parameter) {
    return store.view(store.flat_weights(), slot_named(store, parameter));
  }
  /// Half of the gradient exactly: rounded once, with or without a fused multiply-add.
  void update() {
    store.publish([](at::Tensor weights, const at::Tensor& gradient) { weights.sub_(gradient, 0.5); });
  }

 private:
  StageLayout layout_;

 public:
  ParameterStore store;
  std::vector<double> sums;  ///< sums of the head

 private:
  LossScale scale_;
};

UpdateScalars half_rate() {
  return {.lr = 0.5};
}

/// One stage on one rank, with all that it needs.
struct StageOnRank {
  StageOnRank(const StageLayout& layout, int stage, Communicator& world, Communicator* replicas,
              const ExecutorOptions& options, std::vector<std::vector<RankId>> ranks_of_stage = {})
      : store(layout, StageId(stage), kSeed),
        rule(make_update_rule({.kind = UpdateRuleKind::Sgd, .momentum = 0}, store)),
        executor({layout, StageId(stage), store, *rule, world, replicas, *device, std::move(ranks_of_stage)},
                 options) {}
  std::shared_ptr<Device> device = make_cpu_device();
  ParameterStore store;
  std::unique_ptr<UpdateRule> rule;
  StageExecutor executor;

  /// Does what a rank's list says, up to the Update.
  void run(const std::vector<Action>& actions, std::int64_t first_position) {
    executor.begin({.first_position = first_position});
    const auto is_last = [](const Action& a) { return a.op == Op::Backward || a.op == Op::BackwardWeight; };
    std::size_t last = actions.size();
    while (last-- > 0 && !is_last(actions[last])) continue;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].op == Op::Update) continue;
      if (actions[i].op == Op::Forward && executor.program().reads_batch())
        executor.feed(actions[i].microbatch, batch_at(first_position + actions[i].microbatch.value));
      executor.execute(actions[i], i == last);
    }
    executor.complete_gradients();
  }
  void expect_gradients(ByHand& by_hand, const std::string& where) {
    for (std::size_t s = 0; s < store.slots().size(); ++s)
      expect_bits(store.view(store.flat_gradient(), s), by_hand.gradient_of(store.slots()[s].name),
                  where + "gradient of " + store.slots()[s].name);
  }
  void expect_weights(ByHand& by_hand, const std::string& where) {
    for (std::size_t s = 0; s < store.slots().size(); ++s)
      expect_bits(store.view(store.flat_weights(), s), by_hand.weight_of(store.slots()[s].name),
                  where + store.slots()[s].name);
  }
};

/// Messages of skipping_model() in three stages, by the name of their action and tensor.
std::map<std::string, at::Tensor> messages_of(const ByHand::Pass& pass, std::int64_t microbatch, int from) {
  std::map<std::string, at::Tensor> messages;
  const auto add = [&](Op op, int to, const std::string& tensor, const at::Tensor& value) {
    if (!value.defined()) return;
    const Action action{op, StageId(from), MicrobatchId(microbatch), StageId(to), RankId(to)};
    messages[to_string(action) + " of " + tensor] = value;
  };
  if (from == 0) {
    add(Op::SendActivation, 1, "g", pass.values.at("g"));
    add(Op::SendActivation, 2, "g", pass.values.at("g"));
  } else if (from == 1) {
    add(Op::SendActivation, 2, "t", pass.values.at("t"));
    // The parts are sent, not their sum: the sum must begin with the later stage's part.
    add(Op::SendGradient, 0, "g", at::cat({pass.parts.at("g").at("t"), pass.parts.at("g").at("b")}));
  } else {
    add(Op::SendGradient, 0, "g", pass.parts.at("g").at("s"));
    add(Op::SendGradient, 1, "t", pass.parts.at("t").at("d"));
  }
  return messages;
}

constexpr int kMicrobatches = 4, kSteps = 2;

struct StepByHand {
  std::vector<ByHand::Pass> passes;
  std::unique_ptr<ByHand> before;  ///< the update: with the gradients of the step
};

/// The steps of skipping_model(); `before` of step k + 1 has the weights after step k.
std::vector<StepByHand> steps_by_hand() {
  const at::NoGradGuard no_grad;
  std::vector<StepByHand> steps;
  for (int step = 0; step <= kSteps; ++step) {
    StepByHand& one = steps.emplace_back();
    one.before = std::make_unique<ByHand>(skipping_model(), kMicrobatches);
    if (step > 0) {
      const ByHand& last = *steps[static_cast<std::size_t>(step) - 1].before;
      one.before->store.flat_weights().copy_(last.store.flat_weights());
      one.before->store.flat_gradient().copy_(last.store.flat_gradient());
      one.before->update();
    }
    for (int m = 0; m < kMicrobatches && step < kSteps; ++m)
      one.passes.push_back(one.before->run(step * kMicrobatches + m));
  }
  return steps;
}

void expect_stages_as_by_hand(ScheduleKind kind, bool recompute) {
  const StageLayout layout = layout_of(skipping_model(), kThreeStages, recompute);
  PipelineShape shape = chain_shape(3, kMicrobatches);
  shape.links = layout.links;
  const Schedule schedule = *make_schedule(kind, shape);
  const std::vector<StepByHand> expected = steps_by_hand();
  on_ranks(3, [&](Communicator& ranks) {
    const int rank = ranks.rank().value;
    RecordingCommunicator recorded(ranks);
    StageOnRank stage(layout, rank, recorded, nullptr,
                      {.seeds = {kSeed}, .microbatches_per_update = kMicrobatches});
    for (int step = 0; step < kSteps; ++step) {
      const StepByHand& hand = expected[step];
      const std::string where = to_string(kind) + (recompute ? " recomputing" : "") + ", stage " +
                                std::to_string(rank) + ", step " + std::to_string(step) + ": ";
      stage.run(schedule.ranks[rank], step * kMicrobatches);
      stage.executor.finish_sends();
      std::size_t messages = 0;
      for (int m = 0; m < kMicrobatches; ++m) {
        for (const auto& [name, value] : messages_of(hand.passes[m], m, rank)) {
          expect_bits(recorded.sent[name], value, where + "message " + name);
          ++messages;
        }
      }
      EXPECT_EQ(recorded.sent.size(), messages) << where;
      recorded.sent.clear();
      stage.expect_gradients(*hand.before, where);
      EXPECT_EQ(stage.executor.heads().take_sums(),
                rank == 2 ? hand.before->sums : std::vector<double>(hand.before->sums.size(), 0.0))
          << where;
      EXPECT_EQ(stage.executor.stashed_microbatches(), 0) << where;
      stage.executor.update({half_rate()});
      stage.expect_weights(*expected[static_cast<std::size_t>(step) + 1].before, where);
    }
  });
}

TEST(StageExecutor, WhatCrossesBetweenStagesIsWhatOneProcessHas) {
  for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZeroBubbleH1})
    expect_stages_as_by_hand(kind, false);
}

TEST(StageExecutor, AStageThatRecomputesSendsTheSame) {
  expect_stages_as_by_hand(ScheduleKind::OneFOneB, true);
}

TEST(StageExecutor, StagesOfOneRankHandTensorsOverInMemory) {
  const StageLayout layout = layout_of(skipping_model(), kThreeStages);
  const std::vector<StepByHand> expected = steps_by_hand();
  on_ranks(1, [&](Communicator& ranks) {
    RecordingCommunicator recorded(ranks);
    std::vector<std::unique_ptr<StageOnRank>> stages;
    for (const int s : {0, 1, 2})
      stages.push_back(std::make_unique<StageOnRank>(
          layout, s, recorded, nullptr,
          ExecutorOptions{.seeds = {kSeed}, .microbatches_per_update = kMicrobatches},
          std::vector<std::vector<RankId>>(3, {RankId(0)})));
    for (const auto& one : stages) {
      for (const auto& other : stages)
        if (one != other) one->executor.connect(other->executor);
      one->executor.begin({});
    }
    for (int m = 0; m < kMicrobatches; ++m) {
      for (const auto& stage : stages) {
        if (stage->executor.program().reads_batch()) stage->executor.feed(MicrobatchId(m), batch_at(m));
        stage->executor.execute({Op::Forward, stage->executor.program().stage, MicrobatchId(m)});
      }
      for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
        (*stage)->executor.execute({Op::Backward, (*stage)->executor.program().stage, MicrobatchId(m)});
    }
    for (const auto& stage : stages) {
      stage->executor.complete_gradients();
      stage->expect_gradients(*expected[0].before,
                              "stage " + std::to_string(stage->executor.program().stage.value) + ": ");
    }
    EXPECT_TRUE(recorded.sent.empty());
  });
}

/// Three: the sum of two is the same in either order.
TEST(StageExecutor, ReplicasAddGradientsLossesAndStatisticsInTheOrderOfRanks) {
  constexpr int kReplicas = 3, kOfAll = 7;  // replica 0 has one more: its counters are everybody's
  const LayeredModel model = normalising_model();
  const StageLayout layout = layout_of_one_stage(model);
  std::vector<std::unique_ptr<ByHand>> hands;
  {
    const at::NoGradGuard no_grad;
    for (int r = 0; r < kReplicas; ++r) {
      hands.push_back(std::make_unique<ByHand>(model, kOfAll));
      for (int m = r; m < kOfAll; m += kReplicas) hands.back()->run(m);
    }
  }
  const auto in_order = [&](const auto& of) {
    return at::add(at::add(of(*hands[0]), of(*hands[1])), of(*hands[2]));
  };
  on_ranks(kReplicas, [&](Communicator& ranks) {
    const int replica = ranks.rank().value;
    const std::string where = "replica " + std::to_string(replica) + ": ";
    StageOnRank stage(layout, 0, ranks, &ranks,
                      {.seeds = {kSeed}, .microbatches_per_update = kOfAll, .bucket_bytes = 300});
    std::vector<Action> actions;
    for (int m = replica; m < kOfAll; m += kReplicas)
      for (const Op op : {Op::Forward, Op::Backward}) actions.push_back({op, StageId(0), MicrobatchId(m)});
    actions.push_back({Op::Reduce, StageId(0), MicrobatchId(kOfAll - 1)});
    stage.run(actions, 0);
    for (std::size_t s = 0; s < stage.store.slots().size(); ++s)
      expect_bits(stage.store.view(stage.store.flat_gradient(), s),
                  in_order([&](ByHand& hand) { return hand.gradient_of(stage.store.slots()[s].name); }),
                  where + "gradient of " + stage.store.slots()[s].name);
    std::vector<double> sums;
    for (std::size_t i = 0; i < hands[0]->sums.size(); ++i)
      sums.push_back((hands[0]->sums[i] + hands[1]->sums[i]) + hands[2]->sums[i]);
    EXPECT_EQ(stage.executor.heads().take_sums(), sums) << where;
    const auto buffers = stage.store.named_buffers();
    EXPECT_EQ(buffers.size(), 3u);
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      at::Tensor mean = in_order([&](ByHand& hand) {
                          return hand.store.named_buffers()[b].second.to(at::kDouble);
                        }).div(kReplicas);
      if (!buffers[b].second.is_floating_point()) mean.ceil_();
      expect_bits(buffers[b].second, mean.to(buffers[b].second.scalar_type()), where + buffers[b].first);
    }
  });
}

/// PipeDream's forward of microbatch m on a stage that lags by one: weights of version m - 1.
TEST(StageExecutor, AnAsynchronousForwardUsesTheVersionOfItsRule) {
  const LayeredModel model = chain_of_linears({6, 4});
  const StageLayout layout = layout_of_one_stage(model);
  on_ranks(1, [&](Communicator& ranks) {
    StageOnRank stage(layout, 0, ranks, nullptr, {.seeds = {kSeed}});
    stage.executor.begin({});
    stage.executor.versions().follow({.per_version = 1, .lag = 1}, VersionId(0), 0, 1);
    std::vector<at::Tensor> versions{stage.store.flat_weights().clone()};
    for (int m = 0; m < 5; ++m) {
      ByHand hand(model, 1);
      hand.store.flat_weights().copy_(versions[std::max(0, m - 1)]);
      hand.run(m);
      const std::string where = "microbatch " + std::to_string(m) + ": ";
      stage.executor.feed(MicrobatchId(m), batch_at(m));
      stage.executor.execute({Op::Forward, StageId(0), MicrobatchId(m)});
      stage.executor.execute({Op::Backward, StageId(0), MicrobatchId(m)}, true);
      EXPECT_EQ(stage.executor.heads().take_sums(), hand.sums) << where;
      stage.expect_gradients(hand, where);
      versions.push_back(at::add(versions.back(), stage.store.flat_gradient(), -0.5));
      stage.executor.update({half_rate()});
      expect_bits(stage.store.flat_weights(), versions.back(), where + "weights");
      EXPECT_LE(stage.store.live_versions(), 3) << where;
    }
  });
}

/// An evaluation between two steps leaves no trace in the step that is under way.
TEST(StageExecutor, AnEvaluationInBetweenChangesNothing) {
  const LayeredModel model = normalising_model();
  const StageLayout layout = layout_of_one_stage(model);
  on_ranks(1, [&](Communicator& ranks) {
    ByHand hand(model, 2);
    StageOnRank stage(layout, 0, ranks, nullptr, {.seeds = {kSeed}, .microbatches_per_update = 2});
    for (const int m : {0, 1}) hand.run(m);
    stage.executor.begin({});
    for (const int m : {0, 1}) {
      stage.executor.feed(MicrobatchId(m), batch_at(m));
      stage.executor.execute({Op::Forward, StageId(0), MicrobatchId(m)});
    }
    EXPECT_EQ(stage.executor.heads().take_sums(), hand.sums);
    stage.executor.pause(0);
    stage.executor.use_averages(true);
    stage.executor.begin({.training = false, .first_position = 70});
    stage.executor.feed(MicrobatchId(0), batch_at(70));
    stage.executor.execute({Op::Forward, StageId(0), MicrobatchId(0)});
    EXPECT_GT(stage.executor.heads().take_losses().mean_loss(), 0);
    stage.executor.use_averages(false);
    stage.executor.go_on();
    EXPECT_EQ(stage.executor.stashed_microbatches(), 2);
    for (const int m : {0, 1}) stage.executor.execute({Op::Backward, StageId(0), MicrobatchId(m)}, m == 1);
    stage.expect_gradients(hand, "");
    const auto buffers = stage.store.named_buffers(), expected = hand.store.named_buffers();
    for (std::size_t b = 0; b < buffers.size(); ++b)
      expect_bits(buffers[b].second, expected[b].second, buffers[b].first);
  });
}

/// The message says which tensor of which microbatch did not come.
TEST(StageExecutor, ATensorThatNeverComesIsNamedAtTheDeadline) {
  const StageLayout layout = layout_of(skipping_model(), kThreeStages);
  std::string message;
  try {
    on_ranks(3, [&](Communicator& ranks) {
      if (ranks.rank() != RankId(1)) return;
      StageOnRank stage(layout, 1, ranks, nullptr,
                        {.seeds = {kSeed}, .microbatches_per_update = kMicrobatches});
      stage.run({{Op::RecvActivation, StageId(1), MicrobatchId(2), StageId(0), RankId(0)}}, 0);
    });
  } catch (const PeerError& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("1RECV_F2<0@0 of g"), std::string::npos) << message;
  EXPECT_NE(message.find("60.0 s"), std::string::npos) << message;
}

TEST(StageExecutor, ALossThatIsNotFiniteEndsBeforeTheUpdate) {
  const LayeredModel model = chain_of_linears({6, 4});
  const StageLayout layout = layout_of_one_stage(model);
  on_ranks(1, [&](Communicator& ranks) {
    StageOnRank stage(layout, 0, ranks, nullptr, {.seeds = {kSeed}, .stop_on_nonfinite = true});
    stage.store.flat_weights().fill_(std::numeric_limits<float>::infinity());
    stage.executor.begin({});
    stage.executor.feed(MicrobatchId(0), batch_at(0));
    stage.executor.execute({Op::Forward, StageId(0), MicrobatchId(0)});
    stage.executor.execute({Op::Backward, StageId(0), MicrobatchId(0)}, true);
    EXPECT_THROW(stage.executor.update({half_rate()}), NumericError);
    EXPECT_EQ(stage.store.current(), VersionId(0));
  });
}

}  // namespace
}  // namespace millrace
