// Models whose forwards write: to weights (max_norm), running statistics, carried states. What a run saves,
// rescues and skips is what it is without.
#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "models/registry.h"
#include "runtime/base/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/layers/job_array.h"
#include "runtime/model/fuse.h"
#include "runtime/saved/rescued.h"
#include "tests/language/language_fixture.h"
#include "tests/train/overflow.h"

namespace millrace {
namespace {

constexpr double kDropout = 0.2, kMaxNorm = 0.1;  // most rows of the embeddings are longer
constexpr std::uint64_t kSeed = 11;               // of Pipeline::options
constexpr int kMicrobatches = 4;

LayeredModel scaling_lm() {
  return transformer_lm_model({.layers = 2,
                               .features = 8,
                               .heads = 2,
                               .feed_forward = 16,
                               .vocabulary = kVocabulary,
                               .dropout = kDropout,
                               .embeddings = Embeddings::Separate,
                               .max_norm = kMaxNorm,
                               .nominal_length = 7});
}

LayeredModel scaling_and_carrying_lm() {
  return awd_lstm_model({.layers = 3,
                         .features = 8,
                         .hidden = 12,
                         .vocabulary = kVocabulary,
                         .dropout = kDropout,
                         .embedding_dropout = kDropout,
                         .embeddings = Embeddings::Separate,
                         .max_norm = kMaxNorm,
                         .nominal_length = 7});
}

bool is_text(const LayeredModel& model) {
  return !model.counts.empty();
}

struct NamedPlan {
  std::string name;
  Plan plan;
  int jobs = 1;
};

class ForwardWrites : public Pipeline {
 protected:
  Outcome run(const LayeredModel& model, const Plan& plan, const TrainOptions& options, int jobs = 1) {
    const bool text = is_text(model);
    make_batches_ = [text, plan](const LayeredModel& of) -> std::unique_ptr<BatchSource> {
      const int per_step = updates_after_each(plan.schedule) ? 1 : plan.microbatches;
      if (text) return text_batches(of, kMicrobatch, per_step);
      return std::make_unique<RandomBatches>(of, kMicrobatch);
    };
    if (jobs == 1) return train(model, plan, options);
    const auto choices = std::make_shared<KernelChoices>(ArrayKernels::Loop, steady_clock());
    TrainOptions of_jobs = options;
    for (int job = 0; job < jobs; ++job)
      of_jobs.jobs.push_back({.seed = kSeed + static_cast<std::uint64_t>(job),
                              .rule = options.rule,
                              .learning_rate = options.learning_rate});
    return train(*fuse(std::vector<LayeredModel>(jobs, model), choices), plan, of_jobs);
  }
  TrainOptions saving(const std::string& name, std::int64_t steps) {
    TrainOptions o = options(steps, UpdateRuleKind::Adam);
    o.output_dir = (folder_ / name).string();
    o.checkpoint_every = 1;
    o.keep_checkpoints = 0;
    o.overwrite = true;
    return o;
  }
  /// Every kind of plan that the models can be trained with: all of them for the first model, some for the
  /// others. Written weights have one version; running statistics may have several.
  static std::vector<NamedPlan> plans(const LayeredModel& model, bool asynchronous = false) {
    const auto cut = [&](const std::vector<int>& replicas, ScheduleKind kind) {
      return plan_for(model, replicas, kMicrobatches, kind);
    };
    std::vector<NamedPlan> all{{"alone", cut({1}, ScheduleKind::OneFOneB)},
                               {"gpipe", cut({1, 1}, ScheduleKind::GPipe)},
                               {"zero bubble", cut({1, 1, 1}, ScheduleKind::ZeroBubbleH1)},
                               {"chunks", uniform_plan(model.name, model.layer_names(), 4, 1, kMicrobatches,
                                                       ScheduleKind::Interleaved, 2)},
                               {"replicas", cut({1, 2}, ScheduleKind::OneFOneB)},
                               {"recompute", cut({1, 1}, ScheduleKind::OneFOneB)},
                               {"jobs", cut({1, 1}, ScheduleKind::OneFOneB), 2}};
    for (PlanStage& stage : all[5].plan.stages) stage.recompute = true;
    if (model.name != scaling_lm().name) all.erase(all.begin(), all.begin() + 4);
    if (asynchronous) {
      all.push_back({"pipedream", cut({1, 1, 1}, ScheduleKind::PipeDream)});
      all.push_back({"2bw", cut({1, 1}, ScheduleKind::PipeDream2BW)});
    }
    return all;
  }
  /// The tensors of a checkpoint by name; each with its bytes.
  std::map<std::string, std::string> tensors_in(const fs::path& of) {
    std::map<std::string, std::string> tensors;
    const Result<Checkpoint> checkpoint = open_checkpoint(of.string());
    EXPECT_TRUE(checkpoint) << of;
    if (!checkpoint) return tensors;
    for (const SafetensorsFile& shard : checkpoint->shards) {
      for (const std::string& name : shard.names()) {
        const at::Tensor tensor = shard.tensor(name).contiguous();
        tensors[name] = {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
      }
    }
    return tensors;
  }
  void expect_same_tensors(const fs::path& a, const fs::path& b, const std::string& what,
                           const std::function<bool(const std::string& name)>& compares = {}) {
    const auto left = tensors_in(a), right = tensors_in(b);
    if (!compares) {
      EXPECT_EQ(left.size(), right.size()) << what;
    }
    for (const auto& [name, bytes] : left) {
      const auto other = right.find(name);
      if (compares && !compares(name)) continue;
      EXPECT_TRUE(other != right.end() && bytes == other->second) << what << ": " << name;
    }
  }
  static fs::path step(const std::string& output, std::int64_t number) {
    return fs::path(output) / "checkpoints" / step_name(number);
  }
};

/// The next step's forwards run before the copy of a save is made, unless they have to wait.
TEST_F(ForwardWrites, BackgroundSavesAreForegroundSaves) {
  constexpr std::int64_t kSteps = 3, kFrom = 1;
  for (const LayeredModel& model : {scaling_lm(), scaling_and_carrying_lm(), conv_model()}) {
    for (const auto& [name, plan, jobs] : plans(model, model.name == "conv")) {
      const std::string what = model.name + " " + name;
      TrainOptions foreground = saving(what, kSteps), background = saving(what + " background", kSteps);
      background.background_saves = true;
      faults_.clear();
      const Outcome whole = run(model, plan, foreground, jobs);
      for (std::int64_t s = 1; s < kSteps; ++s)
        faults_.push_back(
            {.place = "snapshot", .step = s, .action = FailpointAction::Delay, .seconds = 0.03});
      const Outcome ours = run(model, plan, background, jobs);
      expect_equal(ours, whole, what);
      for (std::int64_t s = 1; s <= kSteps; ++s)
        expect_same_tensors(step(background.output_dir, s), step(foreground.output_dir, s),
                            what + " step " + std::to_string(s));
      faults_.clear();
      TrainOptions rest = saving(what + " rest", kSteps);
      rest.resume = step(background.output_dir, kFrom).string();
      const Outcome resumed = run(model, plan, rest, jobs);
      EXPECT_EQ(resumed.losses, (std::vector<double>{whole.losses.begin() + kFrom, whole.losses.end()}))
          << what;
      expect_same_tensors(step(rest.output_dir, kSteps), step(foreground.output_dir, kSteps),
                          what + " resumed");
    }
  }
}

/// A rank is lost in the middle of a step. The others save their state after the last update, or nothing.
TEST_F(ForwardWrites, WhatIsRescuedIsTheStateAfterAnUpdate) {
  constexpr std::int64_t kLost = 2;
  for (const LayeredModel& model : {small_lm(kDropout), scaling_lm(), conv_model()}) {
    const Plan plan = plan_for(model, {1, 2}, kMicrobatches, ScheduleKind::OneFOneB);
    faults_.clear();
    const TrainOptions whole = saving("whole", kLost);
    run(model, plan, whole);
    TrainOptions failing = options(kLost + 2, UpdateRuleKind::Adam);
    failing.output_dir = (folder_ / "lost").string();
    failing.overwrite = true;
    failing.rescues = true;
    faults_ = {{.place = "backward", .rank = 2, .step = kLost, .action = FailpointAction::Throw}};
    EXPECT_ANY_THROW(run(model, plan, failing)) << model.name;
    const fs::path checkpoints = fs::path(failing.output_dir) / "checkpoints";
    const auto rescued = publish_rescued(checkpoints, [](std::int64_t) { return true; });
    const bool writes = model.name == "conv" || std::ranges::any_of(model.layers, [](const NamedLayer& l) {
                          return std::ranges::any_of(l.layer->parameters(), &ParameterSpec::written);
                        });
    EXPECT_EQ(rescued.has_value(), !writes) << model.name;
    if (!rescued) continue;
    EXPECT_EQ(*rescued, kLost);
    expect_same_tensors(checkpoints, step(whole.output_dir, kLost), model.name);
  }
}

/// Microbatch 2 of step 2 is NaN from the first layer on that draws numbers or activates.
LayeredModel with_nan(LayeredModel model) {
  const auto place = std::ranges::find_if(model.layers, [](const NamedLayer& layer) {
    return layer.inputs.size() == 1 && (layer.layer->draws() || layer.layer->kind() == "relu");
  });
  place->layer = std::make_shared<NanForward>(derive_seed(kSeed, place->name, 2 * kMicrobatches + 2));
  return model;
}

/// Weights, running statistics and carried states are as if the step had not been, and those after it are
/// finite. With a scaled loss that holds for weights alone, as in PyTorch for the others.
TEST_F(ForwardWrites, ASkippedStepLeavesNoneBehind) {
  for (const LayeredModel& plain : {scaling_lm(), scaling_and_carrying_lm(), conv_model()}) {
    const LayeredModel model = with_nan(plain);
    for (const bool scaled : {false, true}) {
      if (scaled && plain.name != "transformer_lm") continue;  // NaN stays where it is kept, as in PyTorch
      for (const auto& [name, plan, jobs] : plans(model)) {
        const std::string what = model.name + " " + name + (scaled ? " scaled" : "");
        TrainOptions o = saving(what, 4);
        if (scaled)
          o.loss_scale.kind = LossScaleKind{.scaling = LossScaling::Dynamic};
        else
          o.nonfinite.on = OnNonfinite::Skip;
        const Outcome outcome = run(model, plan, o, jobs);
        for (std::size_t s = 0; s < outcome.losses.size(); ++s)
          EXPECT_TRUE(std::isfinite(outcome.losses[s]) || s == 2) << what << " step " << s;
        const auto skips = [&, jobs = jobs](const std::string& tensor) {
          return jobs == 1 || tensor.find("job0/") != std::string::npos;
        };
        expect_same_tensors(step(o.output_dir, 2), step(o.output_dir, 3), what, skips);
        EXPECT_FALSE(tensors_in(step(o.output_dir, 4)) == tensors_in(step(o.output_dir, 3))) << what;
      }
    }
  }
}

/// Small forms of all registered models, with --max-norm where there is one.
GivenOptions small_form(const ModelDescription& model) {
  const std::map<std::string, std::string> small{{"layers", "2"},
                                                 {"hidden", "8"},
                                                 {"heads", "2"},
                                                 {"feed-forward", "16"},
                                                 {"vocabulary", "37"},
                                                 {"positions", "24"},
                                                 {"length", "12"},
                                                 {"embeddings", "separate"},
                                                 {"max-norm", "0.1"},
                                                 {"embedding-features", "8"},
                                                 {"frame-features", "6"},
                                                 {"points", "16"},
                                                 {"latent", "4"},
                                                 {"generator-features", "2"},
                                                 {"discriminator-features", "2"},
                                                 {"width", "16"},
                                                 {"depth", "2"},
                                                 {"filters", "4"},
                                                 {"levels", "2"},
                                                 {"table-rows-cap", "5"},
                                                 {"bottom", "8,4"},
                                                 {"top", "8,1"},
                                                 {"aux-weight", "0"}};
  const std::map<std::string, std::string> sizes{{"dcgan", "32"}, {"unet3d", "16"}, {"autoencoder", "16"}};
  GivenOptions given;
  for (const auto& [option, value] : small)
    if (model.find(option)) given.push_back({option, value});
  const auto size = sizes.find(model.name);
  if (model.find("image-size")) given.push_back({"image-size", size == sizes.end() ? "75" : size->second});
  return given;
}

/// LibTorch refuses none of them for want of a deterministic kernel either. A large model is taken if it has
/// a kind of layer that no smaller one has.
TEST_F(ForwardWrites, NothingButAnUpdateWritesToAnyModel) {
  struct Deterministic {  // as --deterministic
    Deterministic() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false); }
    ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, false); }
  } deterministic;
  std::multimap<std::int64_t, LayeredModel> models;  // by size
  for (const ModelDescription& description : model_descriptions()) {
    if (description.name == kExportedModels) continue;
    auto model = make_model(description.name, small_form(description));
    ASSERT_TRUE(model) << description.name << ": " << to_string(model.problems());
    const std::int64_t size = model->num_parameters();
    models.emplace(size, *std::move(model));
  }
  std::set<std::string> kinds;
  for (const auto& [size, model] : models) {
    bool is_new = false;
    for (const NamedLayer& layer : model.layers) is_new = kinds.insert(layer.layer->kind()).second || is_new;
    const bool large = size > 500'000, has_windows = model.field("window") != nullptr;
    if (large && !is_new) continue;
    Plan plan = plan_for(model, {1, 1}, large ? 1 : 2, ScheduleKind::OneFOneB);
    for (PlanStage& stage : plan.stages) stage.recompute = true;
    make_evaluation_ = [has_windows](const LayeredModel& of) {
      if (has_windows) return Evaluation{};  // random ones are windows of no volume
      if (is_text(of)) return Evaluation{text_batches(of, kMicrobatch, 1), 1};
      return Evaluation{std::make_unique<RandomBatches>(of, kMicrobatch), 1};
    };
    TrainOptions o = options(large ? 1 : 2);
    o.learning_rate.base = 1e-6;
    o.check_writes = true;
    try {
      run(model, plan, o);
    } catch (const std::exception& error) {
      ADD_FAILURE() << model.name << ": " << error.what();
    }
  }
}

/// Passes on, and at one moment adds to tensors that it has no right to write then.
class Rogue final : public Layer {
 public:
  enum class Moment { Never, Forward, Backward, EvaluatedWeight, EvaluatedBuffer };
  explicit Rogue(Moment moment) : moment_(moment) {}
  std::string kind() const override { return "rogue"; }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "scale", .shape = {16}}, {.name = "seen", .shape = {1}, .is_buffer = true}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor> buffers, const CallContext& context, Saved*) const override {
    if (moment_ == (context.training ? Moment::Forward : Moment::EvaluatedWeight)) parameters[0].add_(1);
    if (context.training || moment_ == Moment::EvaluatedBuffer) buffers[0].add_(1);
    return inputs[0];
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> parameters,
                                         Saved&, std::span<const bool>) const override {
    if (moment_ == Moment::Backward) parameters[0].add_(1);
    return {grad};
  }

 private:
  Moment moment_;
};

TEST_F(ForwardWrites, AWriteThatIsNoUpdateIsFound) {
  using Moment = Rogue::Moment;
  evaluation_microbatches_ = 1;
  const struct {
    Moment moment;
    const char *action, *tensor;
  } cases[] = {{Moment::Forward, "action 2F0", "stage 2, layer i: parameter i.scale of version 0"},
               {Moment::Backward, "action 2B0", "stage 2, layer i: parameter i.scale of version 0"},
               {Moment::EvaluatedWeight, "action 2F0", "stage 2, layer i: parameter i.scale of version 2"},
               {Moment::EvaluatedBuffer, "action 2F0", "stage 2, layer i: buffer i.seen"}};
  const auto trained = [&](Moment moment, bool checks, ScheduleKind kind = ScheduleKind::OneFOneB) {
    LayeredModel model = small_model();
    model.layers[8].layer = std::make_shared<Rogue>(moment);
    TrainOptions o = options(2);
    o.check_writes = checks;
    return train(model, plan_for(model, {1, 1, 1}, 4, kind), o);
  };
  for (const ScheduleKind kind :
       {ScheduleKind::OneFOneB, ScheduleKind::PipeDream, ScheduleKind::PipeDream2BW})
    expect_equal(trained(Moment::Never, true, kind), trained(Moment::Never, false, kind), to_string(kind));
  for (const auto& c : cases) {
    try {
      trained(c.moment, true);
      ADD_FAILURE() << "not found: " << c.tensor << " in " << c.action;
    } catch (const InternalError& error) {
      for (const char* part : {c.action, c.tensor})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace millrace
