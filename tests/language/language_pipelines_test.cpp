// Models over tokens, sentences of all lengths and dropout, through every kind of schedule: the weights of
// one process bit for bit. And one process against PyTorch: tests/reference/compare_language.py.
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/layers/sequence_layers.h"
#include "runtime/model/fuse.h"
#include "tests/language/language_fixture.h"

namespace millrace {
namespace {

class Language : public Pipeline {
 protected:
  static constexpr int kMicrobatches = 4;
  static constexpr double kDropout = 0.2;

  Outcome run(const LayeredModel& model, const Plan& plan, const TrainOptions& options,
              int microbatches = kMicrobatches) {
    make_batches_ = [microbatches](const LayeredModel& model) {
      return text_batches(model, kMicrobatch, microbatches);
    };
    return train(model, plan, options);
  }
  static Plan straight(const LayeredModel& model, int stages, ScheduleKind kind,
                       int microbatches = kMicrobatches) {
    return plan_for(model, std::vector<int>(stages, 1), microbatches, kind);
  }
  /// Rows of the embedding are scaled when they are read, and most are too long.
  static LayeredModel with_max_norm() {
    LayeredModel model = small_lm(kDropout);
    const auto encoder = std::ranges::find(model.layers, "encoder", &NamedLayer::name);
    const Shape shape = encoder->layer->parameters().front().shape;
    encoder->layer = embedding({.vocabulary = shape[0], .features = shape[1], .max_norm = 0.5});
    return model;
  }
  static std::vector<LayeredModel> all() {
    return {small_gnmt(kDropout),
            small_gnmt(kDropout, Embeddings::Shared, GnmtForm::MLPerf),
            small_bert(kDropout),
            small_lm(kDropout),
            small_lm(kDropout, Embeddings::Shared),
            small_awd(kDropout),
            small_awd(kDropout, Embeddings::Separate),
            small_lm(kDropout, Embeddings::Separate, small_clusters()),
            small_awd(kDropout, Embeddings::Separate, small_clusters()),
            small_s2vt(kDropout)};
  }
};

TEST_F(Language, PipelinesThatFlushEqualOneProcessBitForBit) {
  std::vector<LayeredModel> models = all();
  models.push_back(with_max_norm());  // this model cannot have replicas
  for (const LayeredModel& model : models) {
    const Outcome one =
        run(model, straight(model, 1, ScheduleKind::OneFOneB), options(3, UpdateRuleKind::Adam));
    for (const ScheduleKind kind :
         {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZeroBubbleH1}) {
      for (int stages : {2, 3, 4})
        expect_equal(run(model, straight(model, stages, kind), options(3, UpdateRuleKind::Adam)), one,
                     model.name + " " + to_string(kind) + " " + std::to_string(stages));
    }
    for (const ScheduleKind kind :
         {ScheduleKind::Interleaved, ScheduleKind::ZeroBubbleV, ScheduleKind::DualPipeV})
      expect_equal(run(model, uniform_plan(model.name, model.layer_names(), 4, 1, kMicrobatches, kind, 2),
                       options(3, UpdateRuleKind::Adam)),
                   one, model.name + " " + to_string(kind));
    Plan again = straight(model, 3, ScheduleKind::OneFOneB);
    for (PlanStage& stage : again.stages) stage.recompute = true;
    expect_equal(run(model, again, options(3, UpdateRuleKind::Adam)), one, model.name + " recompute");
  }
}

TEST_F(Language, AsynchronousPipelinesEqualTheirFormula) {
  for (const LayeredModel& model : {small_gnmt(kDropout), small_lm(kDropout),
                                    small_awd(kDropout, Embeddings::Separate), small_s2vt(kDropout)}) {
    for (int stages : {2, 3, 4}) {
      const Plan plan = straight(model, stages, ScheduleKind::PipeDream, 1);
      const TrainOptions settings = options(8);
      const Outcome ours = run(model, plan, settings, 1);
      Reference reference(model, plan, settings, text_batches(model, kMicrobatch, 1));
      const auto expected =
          reference.delayed(8, 1, [&](int stage, std::int64_t t) { return t - (stages - 1 - stage); });
      for (const auto& [name, tensor] : expected)
        EXPECT_TRUE(at::equal(ours.weights.at(name), tensor)) << model.name << " " << stages << " " << name;
    }
  }
}

TEST_F(Language, ReplicasEqualOneProcessWithinRounding) {
  for (const LayeredModel& model : {small_gnmt(kDropout), small_bert(kDropout), small_lm(kDropout),
                                    small_awd(kDropout), small_s2vt(kDropout)}) {
    const Outcome one = run(model, straight(model, 1, ScheduleKind::OneFOneB), options(3));
    for (const auto& replicas : {std::vector<int>{2}, {2, 1}, {1, 2}, {2, 2}}) {
      const Outcome many =
          run(model, plan_for(model, replicas, kMicrobatches, ScheduleKind::OneFOneB), options(3));
      // Gradients are float32 sums in another order.
      for (const auto& [name, tensor] : one.weights)
        EXPECT_TRUE(at::allclose(many.weights.at(name), tensor, 1e-4, 1e-5))
            << model.name << " " << ::testing::PrintToString(replicas) << " " << name;
      for (std::size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5);
    }
    // The whole model on two ranks: bitwise that of one process that adds in the replicas' order.
    const Plan two = plan_for(model, {2}, kMicrobatches, ScheduleKind::OneFOneB);
    const Outcome parallel = run(model, two, options(3));
    const auto expected = Reference(model, straight(model, 1, ScheduleKind::OneFOneB), options(3),
                                    text_batches(model, kMicrobatch, kMicrobatches))
                              .replicated(3, 2, kMicrobatches);
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::equal(parallel.weights.at(name), tensor)) << model.name << " " << name;
  }
}

TEST_F(Language, ReplicasOfOneMicrobatchEachEqualOneProcessBitForBit) {
  for (const LayeredModel& model : all()) {
    for (int replicas : {2, 3}) {
      const Outcome one =
          run(model, straight(model, 1, ScheduleKind::OneFOneB, replicas), options(5), replicas);
      const Outcome many =
          run(model, plan_for(model, {replicas}, replicas, ScheduleKind::OneFOneB), options(5), replicas);
      for (const auto& [name, tensor] : one.weights)
        EXPECT_TRUE(at::equal(many.weights.at(name), tensor)) << model.name << " " << replicas << " " << name;
    }
  }
}

TEST_F(Language, RunsResumeAtTheSameSentence) {
  for (const LayeredModel& model : {small_gnmt(kDropout), small_bert(kDropout), small_lm(kDropout),
                                    small_awd(kDropout), small_s2vt(kDropout)}) {
    const Outcome whole =
        run(model, straight(model, 2, ScheduleKind::OneFOneB), options(6, UpdateRuleKind::Adam));
    TrainOptions first = options(3, UpdateRuleKind::Adam);
    first.learning_rate.total_steps = 6;
    first.output_dir = (folder_ / model.name).string();
    first.checkpoint_every = 3;
    run(model, straight(model, 2, ScheduleKind::OneFOneB), first);
    TrainOptions rest = options(6, UpdateRuleKind::Adam);
    rest.resume = first.output_dir;
    const Outcome resumed = run(model, straight(model, 3, ScheduleKind::GPipe), rest);
    for (const auto& [name, tensor] : whole.weights)
      EXPECT_TRUE(at::equal(tensor, resumed.weights.at(name))) << model.name << " " << name;
  }
}

/// Windows of drawn lengths over several epochs, the rate with them.
TEST_F(Language, RandomWindowsEqualOneProcessAndResumeAtTheSameToken) {
  const auto batches = [](const LayeredModel& model) {
    const auto data = *make_dataset({.path = "synthetic:40",
                                     .fields = model.fields,
                                     .seed = 5,
                                     .dimensions = model.dimensions,
                                     .per_step = kMicrobatch * kMicrobatches,
                                     .random_bptt = true});
    EXPECT_LT(data->size() / (kMicrobatch * kMicrobatches), 12) << "the run is to have several epochs";
    LoaderOptions options{
        .microbatch = kMicrobatch, .microbatches_per_step = kMicrobatches, .seed = 5, .workers = 0};
    options.read_for(model);
    return std::move(*make_loader(data, options));
  };
  make_batches_ = batches;
  constexpr std::int64_t kSteps = 26, kBreak = 15;
  for (const LayeredModel& model : {small_awd(kDropout), small_lm(kDropout)}) {
    TrainOptions settings = options(kSteps);
    settings.rate_per_length = 7;
    const Outcome one = train(model, straight(model, 1, ScheduleKind::OneFOneB), settings);
    for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::ZeroBubbleH1}) {
      for (int stages : {2, 4})
        expect_equal(train(model, straight(model, stages, kind), settings), one,
                     model.name + " " + to_string(kind) + " " + std::to_string(stages));
    }
    TrainOptions first = settings, rest = settings;
    first.steps = kBreak;
    first.output_dir = rest.resume = (folder_ / model.name).string();
    first.checkpoint_every = kBreak;
    train(model, straight(model, 2, ScheduleKind::OneFOneB), first);
    const Outcome resumed = train(model, straight(model, 3, ScheduleKind::GPipe), rest);
    for (const auto& [name, tensor] : one.weights)
      EXPECT_TRUE(at::equal(tensor, resumed.weights.at(name))) << model.name << " " << name;

    // A step's rate is that of its windows.
    TrainOptions scaled = options(1), plain = options(1);
    scaled.rate_per_length = 8;  // a power of two: the same bits
    const std::int64_t length = batches(model)->extent(0).lengths.at(0);
    ASSERT_NE(length, 8);
    plain.learning_rate.base *= double(length) / 8;
    expect_equal(train(model, straight(model, 2, ScheduleKind::OneFOneB), scaled),
                 train(model, straight(model, 1, ScheduleKind::OneFOneB), plain), model.name + " rate");
  }
}

/// Text of the model in windows of its own length, in rows of a microbatch.
Evaluation windows_of(const LayeredModel& model, int microbatch) {
  Evaluation evaluation{text_batches(model, microbatch, 1)};
  while (evaluation.microbatches < 12 &&
         (evaluation.microbatches == 0 || evaluation.batches->extent(evaluation.microbatches).follows > 0))
    ++evaluation.microbatches;
  return evaluation;
}

/// Windows go on in an evaluation, from its own beginning, in the same way under every plan, and leave what
/// training carries alone.
TEST_F(Language, EvaluationsCarryStatesOfTheirOwn) {
  const LayeredModel model = small_awd(kDropout);
  make_evaluation_ = [](const LayeredModel& m) { return windows_of(m, kMicrobatch); };
  TrainOptions often = options(5);
  const Outcome undisturbed = run(model, straight(model, 1, ScheduleKind::OneFOneB), often);
  often.evaluate_every = 2;
  const Outcome one = run(model, straight(model, 1, ScheduleKind::OneFOneB), often);
  expect_equal(one, undisturbed, "evaluated often");
  ASSERT_EQ(one.reports[0].evaluations.size(), 3u);
  for (const std::vector<int>& replicas : {std::vector<int>{1, 1, 1}, {2}, {2, 1}, {1, 3}}) {
    const Plan plan = plan_for(model, replicas, kMicrobatches, ScheduleKind::OneFOneB);
    const Outcome many = run(model, plan, often);
    const auto& found = many.reports[plan.stages.back().ranks[0].value].evaluations;
    ASSERT_EQ(found.size(), 3u);
    for (std::size_t e = 0; e < 3; ++e) {
      for (std::size_t v = 0; v < found[e].values.size(); ++v)
        EXPECT_NEAR(found[e].values[v].second, one.reports[0].evaluations[e].values[v].second, 1e-4)
            << ::testing::PrintToString(replicas) << " " << found[e].values[v].first;
    }
  }
}

/// Windows of which none follows another.
struct Standing final : BatchSource {
  explicit Standing(std::unique_ptr<BatchSource> source) : inner(std::move(source)) {}
  Batch get(std::int64_t position) override { return inner->get(position); }
  void seek(std::int64_t position) override { inner->seek(position); }
  BatchExtent extent(std::int64_t position) const override {
    BatchExtent extent = inner->extent(position);
    extent.follows = 0;
    return extent;
  }
  std::unique_ptr<BatchSource> inner;
};

/// Cutting the text finer changes nothing but rounding where weights stay and nothing is dropped; where no
/// state is carried it does.
TEST_F(Language, WindowsThatGoOnAreOneLongWindow) {
  TrainOptions trained = options(40, UpdateRuleKind::Adam);
  trained.learning_rate.base = 0.02;
  run(small_awd(0), straight(small_awd(0), 1, ScheduleKind::OneFOneB), trained);
  const std::string weights = (folder_ / "trained.safetensors").string();
  fs::copy_file(folder_ / "weights.safetensors", weights);
  const auto perplexity = [&](std::int64_t length, bool carries = true) {
    LayeredModel model = small_awd(0);
    model.dimensions[0].nominal = length;
    TrainOptions still = options(1);
    still.learning_rate.base = 0;
    still.init_from = weights;
    make_evaluation_ = [=](const LayeredModel& m) {
      Evaluation evaluation = windows_of(m, kMicrobatch);
      if (!carries) evaluation.batches = std::make_unique<Standing>(std::move(evaluation.batches));
      evaluation.microbatches = 48 / length;
      return evaluation;
    };
    const Outcome outcome = run(model, straight(model, 2, ScheduleKind::OneFOneB), still);
    const EvaluationReport& report = outcome.reports[1].evaluations.back();
    EXPECT_EQ(report.samples, 48 * kMicrobatch);
    for (const auto& [name, value] : report.values) {
      if (name == "tokens.perplexity") return value;
    }
    return 0.0;
  };
  const double whole = perplexity(48);
  EXPECT_GT(whole, 1);
  EXPECT_NEAR(perplexity(12), whole, 1e-5 * whole);
  EXPECT_NEAR(perplexity(4), whole, 1e-5 * whole);
  EXPECT_GT(std::abs(perplexity(4, false) - whole), 1e-3 * whole);
}

TEST_F(Language, RowsThatAreScaledWhereWeightsAreSeveralAreRefused) {
  const LayeredModel model = with_max_norm();
  const auto refused = [&](const Plan& plan, const std::string& part) {
    try {
      run(model, plan, options(2));
      ADD_FAILURE() << "not refused: " << part;
    } catch (const ConfigError& error) {
      EXPECT_NE(
          std::string(error.what()).find("encoder scales the rows that it reads (max_norm), and " + part),
          std::string::npos)
          << error.what();
    }
  };
  refused(plan_for(model, {2, 1}, kMicrobatches, ScheduleKind::OneFOneB), "each of its 2 replicas");
  refused(straight(model, 2, ScheduleKind::PipeDream, 1), "schedule pipedream has several versions");
  const Outcome one = run(model, straight(model, 1, ScheduleKind::OneFOneB), options(2));
  EXPECT_TRUE(std::isfinite(one.losses.back()));
  const at::Tensor rows = one.weights.at("encoder.weight");
  EXPECT_FALSE(at::equal(rows, run(small_lm(kDropout), straight(model, 1, ScheduleKind::OneFOneB), options(2))
                                   .weights.at("encoder.weight")));
}

TEST_F(Language, StatesThatWouldChangeHandsAreRefused) {
  const LayeredModel model = small_awd(kDropout, Embeddings::Separate);
  const auto refused = [&](const std::function<void()>& work, const std::string& part) {
    try {
      work();
      ADD_FAILURE() << "not refused: " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused(
      [&] {
        run(model, plan_for(model, {2, 1}, 1, ScheduleKind::PipeDream), options(4), 1);
      },
      "the replicas of a stage take turns");
  // A checkpoint goes on with the rows that it has.
  TrainOptions first = options(3);
  first.output_dir = (folder_ / "first").string();
  first.checkpoint_every = 3;
  run(model, straight(model, 2, ScheduleKind::OneFOneB), first);
  TrainOptions rest = options(6);
  rest.resume = first.output_dir;
  rest.resume_changes = {"all"};
  refused([&] { run(model, straight(model, 2, ScheduleKind::OneFOneB, 2), rest, 2); },
          "has other rows in carried/rnns.0.module/h");
}

/// One step of two microbatches in one process, after as many steps that only leave their states where the
/// model carries any: fields of all, weights, gradients and loss, as a file.
void write_step(const LayeredModel& model, const std::string& path, const std::shared_ptr<Device>& device) {
  at::NoGradGuard no_grad;
  constexpr int kSamples = 3, kTogether = 2;
  const Plan plan = uniform_plan(model.name, model.layer_names(), 1, 1, kTogether, ScheduleKind::OneFOneB);
  const StageLayout layout = *make_layout(model, plan, kSamples);
  ParameterStore store(layout, StageId(0), 7);
  auto rule = make_update_rule({}, store);
  Alone alone;
  StageExecutor executor({layout, StageId(0), store, *rule, alone, nullptr, *device},
                         {.seeds = {7}, .microbatches_per_update = kTogether});
  const auto batches = text_batches(model, kSamples, kTogether);
  NamedTensors tensors;
  LossSums losses;
  for (int first = 0; first <= (executor.program().writes.carried ? kTogether : 0); first += kTogether) {
    executor.begin({.first_position = first,
                    .extent_of = [&](std::int64_t position) { return batches->extent(position); }});
    store.flat_gradient().zero_();
    for (const TiedUse& use : store.tied()) at::Tensor(use.gradient).zero_();
    for (int m = 0; m < kTogether; ++m) {
      const Batch batch = batches->get(first + m);
      for (std::size_t f = 0; f < model.fields.size(); ++f)
        tensors.emplace_back("field/" + std::to_string(first + m) + "/" + model.fields[f].name,
                             batch.fields[f].contiguous());
      executor.feed(MicrobatchId(m), batch);
      executor.execute({Op::Forward, StageId(0), MicrobatchId(m)});
      executor.execute({Op::Backward, StageId(0), MicrobatchId(m)});
    }
    losses = executor.heads().take_losses();
  }
  tensors.emplace_back("loss", at::full({1}, losses.values[0].second, at::kFloat));
  for (const TiedUse& use : store.tied())
    store.add_tied_gradient(static_cast<std::size_t>(use.slot), use.gradient);
  for (std::size_t i = 0; i < store.slots().size(); ++i) {
    const std::string& name = store.slots()[i].name;
    tensors.emplace_back("weight/" + name, store.view(store.flat_weights(), i).clone());
    tensors.emplace_back("gradient/" + name, store.view(store.flat_gradient(), i).clone());
  }
  write_safetensors(path, tensors);
}

TEST_F(Language, LossAndGradientsArePyTorchs) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python) GTEST_SKIP() << "tests/reference/install makes it";
  const std::pair<const char*, LayeredModel> models[] = {
      {"gnmt", small_gnmt(0)},
      {"gnmt_shared", small_gnmt(0, Embeddings::Shared, GnmtForm::MLPerf)},
      {"gnmt_deep",
       gnmt_model(
           {.layers = 4, .hidden = 16, .vocabulary = kVocabulary, .dropout = 0, .nominal_length = 20})},
      {"bert", small_bert(0)},
      {"transformer_lm", small_lm(0)},
      {"awd_lstm", small_awd(0)},
      {"awd_lstm_separate", small_awd(0, Embeddings::Separate)},
      {"transformer_lm_adaptive", small_lm(0, Embeddings::Separate, small_clusters())},
      {"awd_lstm_adaptive", small_awd(0, Embeddings::Separate, small_clusters())},
      {"s2vt", small_s2vt(0)}};
  for (const auto& [name, model] : models)
    write_step(model, (folder_ / (std::string(name) + ".safetensors")).string(), device_);
  const std::string command = std::string(python) + " " + MILLRACE_SOURCE_DIR +
                              "/tests/reference/compare_language.py " + folder_.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace millrace
