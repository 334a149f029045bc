// Update rules: torch.optim's numbers, and the same bits under every plan.
#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/layers/sequence_layers.h"
#include "runtime/stage/gradient_agreement.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

using Kind = UpdateRuleKind;

/// Weights, biases, norms; one parameter of more than a block.
LayeredModel wide_model() {
  LayeredModel model = classifier("wide", {200}, 5);
  model.layers = {{"a", linear(200, 120), {"input"}},
                  {"b", layer_norm(120), {"a"}},
                  {"c", gelu(), {"b"}},
                  {"d", linear(120, 5), {"c"}}};
  end_in_cross_entropy(model);
  return model;
}

struct RuleCase {
  std::string name;
  std::string optimizer;  ///< its name in tests/reference/update_rules.py
  RuleOptions rule;
  ClipOptions clip = {};
  double lr = 0.01;
  double lr_decay = 1;  ///< factor on the learning rate after each step
};

std::vector<RuleCase> rule_cases() {
  return {
      {"sgd", "SGD", {.momentum = 0}},
      {"momentum", "SGD", {}},
      {"momentum, decay", "SGD", {.weight_decay = 0.1}},
      {"dampening", "SGD", {.dampening = 0.3, .weight_decay = 0.1}},
      {"nesterov", "SGD", {.weight_decay = 0.1, .nesterov = true}},
      {"no decay", "SGD", {.weight_decay = 0.1, .no_decay = {{ParameterGroup::Bias, ParameterGroup::Norm}}}},
      {"clip norm", "SGD", {}, {.norm = 5.0}},
      {"clip value", "SGD", {}, {.value = 0.5}},
      {"adam", "Adam", {.kind = Kind::Adam}},
      {"adam, decay", "Adam", {.kind = Kind::Adam, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.9}},
      {"amsgrad", "Adam", {.kind = Kind::Adam, .weight_decay = 0.01, .amsgrad = true}},
      {"adamw", "AdamW", {.kind = Kind::AdamW, .weight_decay = 0.1}},
      {"adamw, no decay",
       "AdamW",
       {.kind = Kind::AdamW, .weight_decay = 0.1, .amsgrad = true, .no_decay = {{ParameterGroup::Bias}}}},
      {"lamb", "LAMB", {.kind = Kind::Lamb}},
      {"nvlamb", "LAMB", {.kind = Kind::Lamb, .weight_decay = 0.1, .nvlamb = true}, {.norm = 0.0}},
      {"lars", "LARS", {.kind = Kind::Lars, .weight_decay = 0.01, .trust = 0.1}, {}, 1.0},
      {"adadelta", "Adadelta", {.kind = Kind::Adadelta, .weight_decay = 0.1}, {}, 1.0},
      {"rmsprop", "RMSprop", {.kind = Kind::RmsProp}},
      {"rmsprop, all",
       "RMSprop",
       {.kind = Kind::RmsProp, .momentum = 0.7, .weight_decay = 0.1, .alpha = 0.9, .centered = true}},
      {"asgd", "ASGD", {.kind = Kind::Asgd, .weight_decay = 0.1, .average_start = 10}},
      {"asgd, a rate that falls",
       "ASGD",
       {.kind = Kind::Asgd, .weight_decay = 0.1, .lambd = 0.05, .average_start = 10},
       {},
       0.5,
       0.9},
      {"asgd without its own decay", "ASGD", {.kind = Kind::Asgd, .lambd = 0, .average_start = 0}},
  };
}

class UpdateRules : public Pipeline {
 protected:
  /// `cases` with 50 updates each, as tests/reference/update_rules.py reads them.
  void write_cases() {
    constexpr int kSteps = 50;
    const StageLayout layout = *make_layout(
        wide_model(), uniform_plan("wide", wide_model().layer_names(), 1, 1, 1, ScheduleKind::OneFOneB), 2);
    auto generator = at::detail::createCPUGenerator(7);
    std::vector<at::Tensor> gradients;
    Json json = Json::object({{"steps", kSteps}});
    Json list = Json::array();
    NamedTensors shared;
    for (const RuleCase& c : rule_cases()) {
      ParameterStore store(layout, StageId(0), 3);
      if (gradients.empty()) {
        for (int step = 0; step < kSteps; ++step) {
          gradients.push_back(at::zeros_like(store.flat_weights()));
          for (std::size_t s = 0; s < store.slots().size(); ++s) {
            at::Tensor part = store.view(gradients.back(), s);
            part.copy_(at::randn(part.sizes(), generator, at::TensorOptions(at::kFloat)));
            shared.emplace_back("gradient/" + std::to_string(step) + "/" + store.slots()[s].name, part);
          }
        }
        for (std::size_t s = 0; s < store.slots().size(); ++s)
          shared.emplace_back("weight/" + store.slots()[s].name, store.view(store.flat_weights(), s).clone());
        write_safetensors((folder_ / "shared.safetensors").string(), shared);
      }
      auto rule = make_update_rule(c.rule, store);
      double lr = c.lr;
      for (const at::Tensor& gradient : gradients) {
        store.flat_gradient().copy_(gradient);
        if (c.clip.value > 0) store.flat_gradient().clamp_(-c.clip.value, c.clip.value);
        if (const double limit = clip_norm_of(c.rule, c.clip); limit > 0) {
          const double norm = norm_of(square_sums_by_slot(store, store.flat_gradient()));
          store.flat_gradient().mul_(clip_factor(norm, limit, c.rule.kind == Kind::Lamb));
        }
        store.publish([&](const at::Tensor& w, const at::Tensor& g) { rule->apply_(w, g, {.lr = {lr}}); });
        lr *= c.lr_decay;
      }
      const std::string file = "case" + std::to_string(list.items().size()) + ".safetensors";
      write_safetensors((folder_ / file).string(), whole_stage_state(store, *rule));
      Json one = Json::object({{"name", c.name},
                               {"file", file},
                               {"optimizer", c.optimizer},
                               {"lr", c.lr},
                               {"lr_decay", c.lr_decay},
                               {"clip_norm", clip_norm_of(c.rule, c.clip)},
                               {"clip_value", c.clip.value}});
      for (const RuleNumber& number : rule_numbers())
        one[std::string(number.flag)] = value_of(c.rule, number.member);
      for (const RuleSwitch& option : rule_switches()) one[std::string(option.flag)] = c.rule.*option.member;
      Json spared = Json::array();
      for (const ParameterSlot& slot : store.slots()) {
        const auto groups = no_decay_of(c.rule);
        if (std::ranges::find(groups, static_cast<ParameterGroup>(slot.kind)) != groups.end())
          spared.push_back(slot.name);
      }
      one["no_decay"] = std::move(spared);
      list.push_back(std::move(one));
    }
    json["cases"] = std::move(list);
    ASSERT_TRUE(write_file_atomically(folder_ / "cases.json", json.dump()));
  }

  /// Clipped to less than any gradient has.
  TrainOptions clipped(std::int64_t steps, Kind kind) {
    TrainOptions result = options(steps, kind);
    result.rule.weight_decay = 0.01;
    result.clip.norm = 0.05;
    if (kind == Kind::RmsProp) result.rule.momentum = 0.5;
    if (kind == Kind::Asgd) result.rule.average_start = 1;
    return result;
  }
};

constexpr Kind kKinds[] = {Kind::Sgd,  Kind::Adam,     Kind::AdamW,   Kind::Lamb,
                           Kind::Lars, Kind::Adadelta, Kind::RmsProp, Kind::Asgd};

TEST_F(UpdateRules, PipelinesEqualOneProcessWithClipping) {
  for (const LayeredModel& model : {small_model(), conv_model()}) {
    for (Kind kind : kKinds) {
      const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), clipped(4, kind));
      TrainOptions unclipped = clipped(4, kind);
      unclipped.clip.norm = 0;
      if (kind == Kind::Sgd) {
        EXPECT_NE(train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), unclipped).losses,
                  one.losses);
      }
      const std::string what = model.name + " " + to_string(kind) + " ";
      expect_equal(train(model, plan_for(model, {1, 1}, 4, ScheduleKind::GPipe), clipped(4, kind)), one,
                   what + "gpipe");
      expect_equal(train(model, plan_for(model, {1, 1, 1}, 4, ScheduleKind::OneFOneB), clipped(4, kind)), one,
                   what + "1f1b");
      for (ScheduleKind schedule :
           {ScheduleKind::Interleaved, ScheduleKind::ZeroBubbleV, ScheduleKind::DualPipeV}) {
        expect_equal(train(model, uniform_plan(model.name, model.layer_names(), 4, 1, 4, schedule, 2),
                           clipped(4, kind)),
                     one, what + to_string(schedule));
      }
    }
  }
}

TEST_F(UpdateRules, SharedStateGivesTheSameBits) {
  for (const LayeredModel& model : {small_model(), wide_model()}) {
    for (Kind kind : kKinds) {
      const Outcome one = train(model, plan_for(model, {3}, 6, ScheduleKind::OneFOneB), clipped(4, kind));
      TrainOptions sharing = clipped(4, kind);
      sharing.rule.shard_state = true;
      const std::string what = model.name + " " + to_string(kind);
      expect_equal(train(model, plan_for(model, {3}, 6, ScheduleKind::OneFOneB), sharing), one, what);
      expect_equal(train(model, plan_for(model, {3, 3}, 6, ScheduleKind::OneFOneB), sharing), one,
                   what + " in two stages");
      expect_equal(
          train(model, uniform_plan(model.name, model.layer_names(), 4, 3, 6, ScheduleKind::DualPipeV, 2),
                sharing),
          one, what + " dualpipev");
    }
  }
}

/// Also where several versions of the weights are alive.
TEST_F(UpdateRules, SharedStateGivesTheSameBitsWithoutAFlush) {
  const LayeredModel model = wide_model();
  for (ScheduleKind kind : {ScheduleKind::PipeDream, ScheduleKind::PipeDream2BW}) {
    const Plan plan = plan_for(model, {2, 1}, 4, kind);
    TrainOptions sharing = options(8, Kind::Adam);
    const Outcome one = train(model, plan, sharing);
    sharing.rule.shard_state = true;
    expect_equal(train(model, plan, sharing), one, to_string(kind));
  }
}

/// Each replica has a part of the state, and all of them together have it once.
TEST_F(UpdateRules, ShardsAreDisjointAndComplete) {
  const LayeredModel model = wide_model();
  const StageLayout layout =
      *make_layout(model, uniform_plan("wide", model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB), 2);
  const ParameterStore store(layout, StageId(0), 3);
  const std::int64_t elements = store.flat_weights().numel();
  const auto blocks = blocks_of(store.slots(), elements);
  for (int shards : {1, 2, 3, 4, 7, 100}) {
    std::int64_t end = 0;
    for (int s = 0; s < shards; ++s) {
      const FlatRange range = shard_of(blocks, elements, s, shards);
      EXPECT_EQ(range.begin, end) << s << " of " << shards;
      EXPECT_GE(range.size(), 0);
      EXPECT_LE(range.size(), elements / shards + 2 * kBlockElements);
      end = range.end;
    }
    EXPECT_EQ(end, elements);
  }
}

TEST_F(UpdateRules, ARunGoesOnWithSharedStateAndWithout) {
  const LayeredModel model = wide_model();
  for (Kind kind : {Kind::Adam, Kind::Lamb, Kind::Lars}) {
    const auto part = [&](std::int64_t steps, bool shares, const std::string& resume,
                          const std::string& out) {
      TrainOptions result = clipped(steps, kind);
      result.rule.shard_state = shares;
      if (!resume.empty()) result.resume = (folder_ / resume).string();
      if (!out.empty()) result.output_dir = (folder_ / out).string();
      result.checkpoint_at_end = !out.empty();
      return result;
    };
    const Plan two = plan_for(model, {2}, 4, ScheduleKind::OneFOneB),
               four = plan_for(model, {2, 2}, 4, ScheduleKind::GPipe);
    const Outcome whole = train(model, two, part(6, false, "", ""));
    train(model, two, part(2, true, "", "first"));
    train(model, four, part(4, false, "first", "second"));
    const Outcome end = train(model, four, part(6, true, "second", ""));
    for (const auto& [name, tensor] : whole.weights)
      EXPECT_TRUE(at::equal(tensor, end.weights.at(name))) << to_string(kind) << " " << name;
    // The checkpoint of shared state is that of whole state.
    train(model, two, part(2, false, "", "alone"));
    const auto shared = open_checkpoint((folder_ / "first").string()),
               alone = open_checkpoint((folder_ / "alone").string());
    ASSERT_TRUE(shared && alone);
    for (const std::string& name : alone->shards[0].names())
      EXPECT_TRUE(at::equal(shared->find(name)->tensor(name), alone->find(name)->tensor(name))) << name;
    for (const char* folder : {"first", "second", "alone"}) fs::remove_all(folder_ / folder);
  }
}

/// A store and a rule of it, for one job.
struct RuleOfJob {
  RuleOfJob(const StageLayout& layout, const RuleOptions& options, at::ScalarType dtype,
            UpdateKernels kernels)
      : store(layout, StageId(0), 3, at::kCPU, dtype),
        weights(store.flat_weights()),
        rule(make_update_rule(options, store, nullptr, kernels)) {}
  ParameterStore store;
  at::Tensor weights;
  std::unique_ptr<UpdateRule> rule;
};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}
void expect_same_state(const RuleOfJob& a, const RuleOfJob& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.weights, b.weights)) << what;
  ASSERT_EQ(a.rule->state().size(), b.rule->state().size());
  for (std::size_t s = 0; s < a.rule->state().size(); ++s)
    EXPECT_TRUE(same_bits(a.rule->state()[s].second, b.rule->state()[s].second))
        << what << " " << a.rule->state()[s].first;
}

/// Returns the rules of rule_cases(), and others whose kernels have further branches.
std::vector<RuleOptions> rules_to_compare() {
  std::vector<RuleOptions> all;
  for (const RuleCase& c : rule_cases()) all.push_back(c.rule);
  all.push_back({.kind = Kind::Adam, .weight_decay = 0.1, .beta1 = 0.4, .beta2 = 0.3});
  all.push_back(
      {.kind = Kind::Sgd, .dampening = 0.5, .weight_decay = 0.1, .no_decay = {{ParameterGroup::Norm}}});
  all.push_back({.kind = Kind::RmsProp, .momentum = 0.3, .no_decay = {{ParameterGroup::Bias}}});
  all.push_back({.kind = Kind::RmsProp, .weight_decay = 0.1, .centered = true});
  all.push_back({.kind = Kind::Adadelta, .rho = 0.95, .no_decay = {{ParameterGroup::Bias}}});
  all.push_back({.kind = Kind::Asgd, .nonmonotone = 2});  // averages have not begun
  return all;
}
at::Tensor gradient_of(const at::Tensor& weights, int step) {
  return at::randn(weights.sizes(), weights.options()).mul_(std::pow(10.0, 1 - step));
}

TEST_F(UpdateRules, OwnLoopsHaveTheBitsOfTorchsKernels) {
  const LayeredModel model = wide_model();
  const StageLayout layout =
      *make_layout(model, uniform_plan("wide", model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB), 2);
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    int number = 0;
    for (const RuleOptions& options : rules_to_compare()) {
      RuleOfJob own(layout, options, dtype, UpdateKernels::Own),
          torch(layout, options, dtype, UpdateKernels::Torch);
      for (int step = 0; step < 6; ++step) {
        at::Tensor gradient = gradient_of(own.weights, step);
        if (step == 5) gradient.slice(0, 700, 703).fill_(NAN), gradient[900] = INFINITY;
        const UpdateScalars scalars{.lr = 0.0103 / (step + 1), .gradient_factor = step % 2 ? 0.37 : 1};
        own.rule->apply_(own.weights, gradient.clone(), scalars);
        torch.rule->apply_(torch.weights, gradient.clone(), scalars);
        if (step < 5) {
          expect_same_state(
              own, torch,
              printed("rule %d ", number) + to_string(options.kind) + " step " + std::to_string(step));
        } else {
          EXPECT_TRUE(at::allclose(own.weights, torch.weights, 0, 0, /*equal_nan=*/true));
        }
      }
      ++number;
    }
  }
}

/// Jobs of different rules, sizes and settings at once: each as by itself, whatever is skipped or not finite.
TEST_F(UpdateRules, ManyJobsAtOnceHaveTheBitsOfEach) {
  const LayeredModel wide = wide_model(), small = small_model();
  std::vector<StageLayout> layouts;
  for (const LayeredModel& model : {wide, small})
    layouts.push_back(*make_layout(
        model, uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB), 2));
  at::manual_seed(2);
  std::vector<std::unique_ptr<RuleOfJob>> together, alone;
  for (const RuleOptions& options : rules_to_compare()) {
    for (const StageLayout& layout : layouts) {
      for (auto* jobs : {&together, &alone})
        jobs->push_back(std::make_unique<RuleOfJob>(layout, options, at::kFloat, UpdateKernels::Own));
    }
  }
  for (int step = 0; step < 4; ++step) {
    std::vector<UpdateRule::Update> updates;
    for (std::size_t job = 0; job < together.size(); ++job) {
      at::Tensor gradient = gradient_of(alone[job]->weights, step);
      if (job % 5 == 2 && step == 1) gradient.fill_(NAN);
      const UpdateScalars scalars{.lr = 0.01 * double(job + 1),
                                  .gradient_factor = job % 3 ? 1 : 0.7,
                                  .skip = job % 4 == 1 && step == 2};
      updates.push_back({together[job]->rule.get(), together[job]->weights, gradient.clone(), scalars});
      alone[job]->rule->apply_(alone[job]->weights, gradient, scalars);
    }
    UpdateRule::apply_all_(updates);
    for (std::size_t job = 0; job < together.size(); ++job) {
      if (job % 5 == 2 && step > 0) continue;  // NaNs may have different bits
      expect_same_state(*together[job], *alone[job], printed("job %d step %d", static_cast<int>(job), step));
      EXPECT_EQ(together[job]->rule->updates(), alone[job]->rule->updates());
    }
  }
}

TEST_F(UpdateRules, WithoutAFlushOnlyTheStagesNormIsThere) {
  const LayeredModel model = small_model();
  for (ScheduleKind kind : {ScheduleKind::PipeDream, ScheduleKind::PipeDream2BW}) {
    const Plan plan = plan_for(model, {1, 1}, 4, kind);
    TrainOptions clip = clipped(8, Kind::Sgd);
    EXPECT_THROW(train(model, plan, clip), ConfigError);
    clip.clip.scope = ClipScope::Stage;
    const Outcome by_stage = train(model, plan, clip);
    clip.clip.norm = 0;
    EXPECT_NE(by_stage.losses, train(model, plan, clip).losses);
  }
}

/// Evaluation and the saved weights are of the average; what is trained is not touched.
TEST_F(UpdateRules, AveragedWeightsAreEvaluated) {
  const LayeredModel model = small_model();
  evaluation_microbatches_ = 3;
  TrainOptions averaging = options(6, Kind::Asgd);
  averaging.rule.average_start = 0;
  TrainOptions often = averaging;
  often.evaluate_every = 2;
  const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), averaging);
  const Outcome pauses = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), often);
  expect_equal(pauses, one, "evaluated often");
  const Outcome piped = train(model, plan_for(model, {1, 1, 1}, 4, ScheduleKind::OneFOneB), often);
  expect_equal(piped, one, "in three stages");
  ASSERT_EQ(piped.reports[2].evaluations.size(), pauses.reports[0].evaluations.size());
  for (std::size_t e = 0; e < piped.reports[2].evaluations.size(); ++e)
    EXPECT_EQ(piped.reports[2].evaluations[e].values, pauses.reports[0].evaluations[e].values);
  // An average that begins after the run is the newest weights: others.
  averaging.rule.average_start = 100;
  const Outcome newest = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), averaging);
  EXPECT_EQ(newest.losses, one.losses);
  EXPECT_FALSE(at::equal(newest.weights.at("a.weight"), one.weights.at("a.weight")));
}

/// NT-ASGD: plain descent, then the mean of all weights since an evaluation that was worse than the best but
/// the newest: in any plan, and with a break anywhere.
TEST_F(UpdateRules, AveragesBeginWhenEvaluationsSaySo) {
  const LayeredModel model = small_model();
  evaluation_microbatches_ = 3;
  TrainOptions descent = options(12);
  descent.rule.momentum = 0;
  descent.rule.weight_decay = 0;
  descent.learning_rate.base = 0.3;
  descent.evaluate_every = 1;
  const Outcome plain = train(model, plan_for(model, {1}, 2, ScheduleKind::OneFOneB), descent);
  TrainOptions waiting = descent;
  waiting.rule = {.kind = Kind::Asgd, .lambd = 0, .average_start = 0, .nonmonotone = 2};
  waiting.checkpoint_every = 1;
  waiting.keep_checkpoints = 0;
  waiting.output_dir = (folder_ / "one").string();
  const Outcome one = train(model, plan_for(model, {1}, 2, ScheduleKind::OneFOneB), waiting);
  EXPECT_EQ(one.losses, plain.losses);  // the average does not change the training

  // Computes from the evaluations of plain descent when the average must begin.
  const auto& evaluations = plain.reports[0].evaluations;
  std::int64_t begins = -1;
  double best = INFINITY;
  for (std::size_t e = 0; e < evaluations.size() && begins < 0; ++e) {
    if (e > 2) best = std::min(best, evaluations[e - 3].values[0].second);
    if (evaluations[e].values[0].second > best) begins = evaluations[e].step;
  }
  ASSERT_GT(begins, 3);
  ASSERT_LT(begins, 10);
  // torch.optim's: the second update's weight is 1 as the first's, so that the first's weights are left out.
  const std::int64_t first_averaged = begins + 2;
  at::Tensor mean;
  for (std::int64_t step = first_averaged; step <= 12; ++step) {
    const auto checkpoint = open_checkpoint(
        (fs::path(waiting.output_dir) / "checkpoints" / printed("step-%08d", int(step))).string());
    ASSERT_TRUE(checkpoint);
    const at::Tensor weight = checkpoint->find("a.weight")->tensor("a.weight").to(at::kDouble);
    mean = mean.defined() ? at::add(mean, weight) : weight.clone();
  }
  mean.div_(double(12 - first_averaged + 1));
  EXPECT_TRUE(at::allclose(one.weights.at("a.weight").to(at::kDouble), mean, 0, 1e-6));
  EXPECT_FALSE(at::equal(one.weights.at("a.weight"), plain.weights.at("a.weight")));
  for (std::size_t e = 0; e < evaluations.size(); ++e) {
    const bool averaged = evaluations[e].step > first_averaged;  // an average of one step equals that step
    EXPECT_EQ(one.reports[0].evaluations[e].values[0].second != evaluations[e].values[0].second, averaged)
        << e;
  }

  for (const std::int64_t stop : {begins - 1, begins, begins + 2}) {
    const std::string where = (folder_ / ("stop" + std::to_string(stop))).string();
    TrainOptions first = waiting;
    first.steps = stop;
    first.learning_rate.total_steps = 12;
    first.output_dir = where;
    train(model, plan_for(model, {1, 1}, 2, ScheduleKind::OneFOneB), first);
    TrainOptions rest = waiting;
    rest.output_dir.clear();
    rest.checkpoint_every = 0;
    rest.resume = where;
    rest.learning_rate.total_steps = 12;
    const Outcome resumed = train(model, plan_for(model, {1, 1, 1}, 2, ScheduleKind::GPipe), rest);
    for (const auto& [name, tensor] : one.weights)
      EXPECT_TRUE(at::equal(resumed.weights.at(name), tensor)) << stop << " " << name;
  }
  // Asked to stop after the step, before its evaluation: who goes on begins with that.
  StopFlag stop{false};
  on_batch_ = [&](std::int64_t position) {
    if (position / 2 == begins - 1) stop = true;
  };
  TrainOptions asked = waiting;
  asked.checkpoint_every = 0;
  asked.stop = &stop;
  asked.output_dir = (folder_ / "asked").string();
  train(model, plan_for(model, {1}, 2, ScheduleKind::OneFOneB), asked);
  on_batch_ = nullptr;
  ASSERT_EQ(open_checkpoint(asked.output_dir)->info.step, begins);
  TrainOptions rest = waiting;
  rest.output_dir.clear();
  rest.checkpoint_every = 0;
  rest.resume = asked.output_dir;
  for (const std::vector<int>& replicas : {std::vector{1}, {1, 1}}) {
    const Outcome resumed = train(model, plan_for(model, replicas, 2, ScheduleKind::OneFOneB), rest);
    for (const auto& [name, tensor] : one.weights)
      EXPECT_TRUE(at::equal(resumed.weights.at(name), tensor)) << "asked to stop: " << name;
  }
  waiting.evaluate_every = 0;
  EXPECT_THROW(train(model, plan_for(model, {1}, 2, ScheduleKind::OneFOneB), waiting), ConfigError);
}

/// The rate of the newest update is part of the state.
TEST_F(UpdateRules, AveragingGoesOnWithTheRateOfTheStepBefore) {
  const LayeredModel model = small_model();
  TrainOptions falling = options(6, Kind::Asgd);
  falling.learning_rate = {.base = 0.1, .policy = RatePolicy::Exponential, .total_steps = 6, .gamma = 0.01};
  const Outcome whole = train(model, plan_for(model, {1}, 2, ScheduleKind::OneFOneB), falling);
  TrainOptions first = falling;
  first.steps = 3;
  first.output_dir = (folder_ / "first").string();
  first.checkpoint_every = 3;
  train(model, plan_for(model, {1}, 2, ScheduleKind::OneFOneB), first);
  TrainOptions rest = falling;
  rest.resume = first.output_dir;
  const Outcome resumed = train(model, plan_for(model, {1, 1}, 2, ScheduleKind::OneFOneB), rest);
  for (const auto& [name, tensor] : whole.weights)
    EXPECT_TRUE(at::equal(resumed.weights.at(name), tensor)) << name;
}

/// All ranks find it in the same step, before any of them updates.
TEST_F(UpdateRules, ANormThatIsNotFiniteEndsTheRun) {
  const LayeredModel model = small_model();
  TrainOptions wild = clipped(20, Kind::Sgd);
  wild.clip.norm = 1e30;
  wild.learning_rate.base = 1e18;
  for (const std::vector<int>& replicas : {std::vector{1}, {1, 1}, {2, 1}})
    EXPECT_THROW(train(model, plan_for(model, replicas, 4, ScheduleKind::OneFOneB), wild), NumericError);
}

/// Language models' report: w (.5 -1 2) and a bias, with the published formula in doubles.
TEST_F(UpdateRules, LambsPublishedNumbers) {
  LayeredModel model = classifier("tiny", {3}, 1);
  model.layers = {{"a", linear(3, 1), {"input"}}};
  end_in_cross_entropy(model);
  const StageLayout layout =
      *make_layout(model, uniform_plan("tiny", model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB), 2);
  ParameterStore store(layout, StageId(0), 3, at::kCPU, at::kDouble);
  const auto set = [&](const at::Tensor& flat, std::vector<double> weight, double bias) {
    store.view(flat, 0).copy_(at::tensor(weight, at::kDouble).view({1, 3}));
    store.view(flat, 1).fill_(bias);
  };
  set(store.flat_weights(), {0.5, -1, 2}, 0.1);
  auto rule = make_update_rule({.kind = Kind::Lamb}, store);
  const auto update = [&](std::vector<double> weight, double bias) {
    set(store.flat_gradient(), std::move(weight), bias);
    store.publish([&](const at::Tensor& w, const at::Tensor& g) { rule->apply_(w, g, {.lr = {0.01}}); });
  };
  update({0.1, 0.2, -0.3}, 0.05);
  const at::Tensor weight = store.view(store.flat_weights(), 0).view({-1});
  const double expected[] = {0.486594147662, -1.013205829694, 2.013072459033};
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(weight[i].item<double>(), expected[i], 1e-12) << i;
  EXPECT_NEAR(store.view(store.flat_weights(), 1).item<double>(), 0.090000199996, 1e-12);
  // The second step's norm is that of all parameters, among them the other bias: sqrt(19).
  const double norm = std::sqrt(19.0);
  EXPECT_EQ(clip_factor(norm, 1, true), 1 / norm);
  update({3 / norm, -1 / norm, 2 / norm}, 1 / norm);
  const double after[] = {0.464937627175, -1.009819244916, 2.005923457126};
  for (int i = 0; i < 3; ++i)
    EXPECT_NEAR(store.view(store.flat_weights(), 0).view({-1})[i].item<double>(), after[i], 1e-12) << i;
  EXPECT_NEAR(store.view(store.flat_weights(), 1).item<double>(), 0.081303212994, 1e-12);
}

TEST_F(UpdateRules, AreTorchs) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python) GTEST_SKIP() << "tests/reference/install makes it";
  write_cases();
  const std::string command = std::string(python) + " " + MILLRACE_SOURCE_DIR +
                              "/tests/reference/update_rules.py " + folder_.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace millrace
