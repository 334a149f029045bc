// DLRM beside a plain PyTorch twin, and through plans as in one process.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>

#include <cstdlib>

#include "models/registry.h"
#include "runtime/comm/channel.h"
#include "runtime/layers/autograd_layer.h"
#include "runtime/layers/interaction_layers.h"
#include "runtime/model/spread_tables.h"
#include "tests/models/one_step.h"

namespace millrace {
namespace {

LayeredModel small_dlrm(const char* form = "meta") {
  return *make_model("dlrm", {{"reference", form},
                              {"table-rows", "11,3,40,7"},
                              {"table-rows-cap", "20"},
                              {"dense-features", "5"},
                              {"bottom", "12,8"},
                              {"top", "16,6,1"}});
}

class Dlrm : public OneStep {
 protected:
  TrainOptions evaluated(std::int64_t steps) {
    TrainOptions all = options(steps);
    all.evaluate_every = 2;
    all.rule.momentum = all.rule.weight_decay = 0;  // so that updates touch only the rows that were read
    return all;
  }
  /// Compares the evaluations that the plans' last stages report. AUC is exact in any plan; losses are sums
  /// of floating numbers, so only plans without replicas have the same.
  static void expect_same_auc(const Outcome& a, const Plan& of_a, const Outcome& b, const Plan& of_b,
                              const std::string& what) {
    const auto& ours = a.reports[of_a.stages.back().ranks[0].value].evaluations;
    const auto& theirs = b.reports[of_b.stages.back().ranks[0].value].evaluations;
    ASSERT_EQ(ours.size(), theirs.size()) << what;
    ASSERT_FALSE(ours.empty()) << what;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].values.size(), 3u) << what;
      EXPECT_EQ(ours[i].values[2].first, "auc");
      EXPECT_EQ(ours[i].values[2], theirs[i].values[2]) << what;
    }
  }
};

TEST(Interaction, HasTheGoldenValue) {
  const at::Tensor t = at::sin(at::arange(27 * 4, at::kDouble).mul_(0.1)).view({27, 1, 4});
  std::vector<at::Tensor> vectors;
  for (std::int64_t i = 0; i < 27; ++i) vectors.push_back(t.select(0, i));
  const at::Tensor made = dot_interaction(2)->forward(vectors, {}, {}, {}, nullptr);
  ASSERT_EQ(made.sizes().vec(), (Shape{1, 4 + 351 + 2}));
  EXPECT_NEAR(made.narrow(1, 4, 351).sum().item<double>(), -6.85697085422, 1e-10);
  EXPECT_TRUE(at::equal(made.narrow(1, 0, 4), vectors[0]));
  EXPECT_EQ(made.narrow(1, 355, 2).abs().sum().item<double>(), 0);
  EXPECT_NEAR(made[0][4 + 2].item<double>(), vectors[2].mul(vectors[1]).sum().item<double>(), 1e-12)
      << "pairs are (1,0), (2,0), (2,1), ...";
}

TEST_F(Dlrm, HasTheTwinsNamesLossAndGradients) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python || !*python) GTEST_SKIP() << "tests/reference/install makes it";
  for (const std::string form : {"meta", "nvidia"}) {
    write_step("dlrm-" + form, small_dlrm(form.c_str()));
    write_step("dlrm-" + form + "-fast", small_dlrm(form.c_str()), 4096);
  }
  const std::string command =
      std::string(python) + " " MILLRACE_SOURCE_DIR "/tests/reference/dlrm.py " + folder_.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_F(Dlrm, TrainsAndEvaluatesThroughPlansAsInOneProcess) {
  constexpr int kMicrobatches = 4;
  make_evaluation_ = [](const LayeredModel& model) {
    return Evaluation{std::make_unique<RandomBatches>(model, 3), 5};
  };
  for (const char* form : {"meta", "nvidia"}) {
    const LayeredModel model = small_dlrm(form);
    const auto plan = [&](int stages, ScheduleKind kind, int chunks = 1) {
      return uniform_plan(model.name, model.layer_names(), stages * chunks, 1, kMicrobatches, kind, chunks);
    };
    const Plan alone = plan(1, ScheduleKind::OneFOneB);
    const Outcome one = train(model, alone, evaluated(3));
    for (const double loss : one.losses) EXPECT_TRUE(std::isfinite(loss));
    for (const auto& [stages, kind, chunks] : {std::tuple{2, ScheduleKind::OneFOneB, 1},
                                               {3, ScheduleKind::ZeroBubbleH1, 1},
                                               {4, ScheduleKind::GPipe, 1},
                                               {2, ScheduleKind::Interleaved, 2}}) {
      const Plan cut = plan(stages, kind, chunks);
      const Outcome other = train(model, cut, evaluated(3));
      const std::string what = std::string(form) + " " + to_string(kind) + " " + std::to_string(stages);
      expect_equal(other, one, what);
      expect_same_auc(other, cut, one, alone, what);
    }
    LayeredModel fallback = model;
    for (NamedLayer& layer : fallback.layers) layer.layer = through_autograd(layer.layer);
    expect_equal(train(fallback, alone, evaluated(3)), one, "by autograd");
  }
}

TEST_F(Dlrm, ReplicasFindTheSameAuc) {
  make_evaluation_ = [](const LayeredModel& model) {
    return Evaluation{std::make_unique<RandomBatches>(model, 3), 7};
  };
  const LayeredModel model = small_dlrm();
  const auto evaluate = [&](const Plan& plan) {
    TrainOptions settings = evaluated(2);
    settings.learning_rate.base = 0;  // sums of gradients come in another order, so weights stay as they are
    settings.rule.weight_decay = 0;
    return train(model, plan, settings);
  };
  const Plan alone = plan_for(model, {1}, 6, ScheduleKind::OneFOneB);
  const Outcome one = evaluate(alone);
  for (const std::vector<int>& replicas : {std::vector{2}, {3}, {1, 2}, {2, 3}}) {
    const Plan plan = plan_for(model, replicas, 6, ScheduleKind::OneFOneB);
    expect_same_auc(evaluate(plan), plan, one, alone, ::testing::PrintToString(replicas));
  }
}

TEST_F(Dlrm, TablesSpreadOverRanksTrainAndEvaluateAsInOneProcess) {
  make_evaluation_ = [](const LayeredModel& model) {
    return Evaluation{std::make_unique<RandomBatches>(model, 3), 5};
  };
  for (const auto& [form, ranks] : {std::pair{"meta", 2}, {"nvidia", 3}, {"meta", 4}}) {
    const LayeredModel model = small_dlrm(form);
    const Plan alone = plan_for(model, {1}, ranks, ScheduleKind::OneFOneB);
    const Plan spread = *spread_tables_plan(model, ranks, ranks);
    const std::string what = std::string(form) + " " + std::to_string(ranks);
    TrainOptions clipped = options(3);  // momentum and decay, so all rows change, and a norm over all ranks
    clipped.clip.norm = 0.05;
    for (const TrainOptions& settings : {evaluated(3), clipped}) {
      const Outcome one = train(model, alone, settings), other = train(model, spread, settings);
      expect_equal(other, one, what);
      if (settings.evaluate_every > 0) expect_same_auc(other, spread, one, alone, what);
      for (const RunReport& report : other.reports) EXPECT_EQ(report.peak_stash, ranks + 2) << what;
    }
  }
}

/// A rank has several microbatches: sums of the replicas come in their order, those of tables in the step's.
TEST_F(Dlrm, SpreadTablesAddGradientsInTheOrderOfMicrobatches) {
  const LayeredModel model = small_dlrm();
  for (const int microbatches : {4, 5}) {
    const Outcome one =
        train(model, plan_for(model, {1}, microbatches, ScheduleKind::OneFOneB), evaluated(1));
    const Outcome other = train(model, *spread_tables_plan(model, 2, microbatches), evaluated(1));
    for (const auto& [name, tensor] : one.weights) {
      if (name.starts_with("emb_l."))
        EXPECT_TRUE(at::equal(other.weights.at(name), tensor)) << name << " of " << microbatches;
      else
        EXPECT_TRUE(at::allclose(other.weights.at(name), tensor, 1e-5, 1e-7)) << name;
    }
    const Outcome replicas =
        train(model, plan_for(model, {2}, microbatches, ScheduleKind::OneFOneB), evaluated(1));
    for (const auto& [name, tensor] : replicas.weights) {
      if (!name.starts_with("emb_l.")) {
        EXPECT_TRUE(at::equal(other.weights.at(name), tensor)) << name << " of " << microbatches;
      }
    }
  }
}

/// Holds the texts of the messages that each rank sends to each other one.
struct SentTexts {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::vector<std::string>> of_pair;  ///< sender, receiver
};

class ListeningChannel final : public ForwardingChannel {
 public:
  ListeningChannel(std::shared_ptr<Channel> inner, std::shared_ptr<SentTexts> sent)
      : ForwardingChannel(std::move(inner)), sent_(std::move(sent)) {}
  std::unique_ptr<Pending> post(const Transfer& t) override {
    if (t.direction == Direction::Send) {
      const std::lock_guard lock(sent_->mutex);
      sent_->of_pair[{rank(), t.peer.value}].push_back(t.what.text());
    }
    return ForwardingChannel::post(t);
  }

 private:
  std::shared_ptr<SentTexts> sent_;
};

TEST_F(Dlrm, VectorsOfAllTablesOfARankAreOneMessageEachWay) {
  const auto sent = std::make_shared<SentTexts>();
  make_ranks_ = [&](int size, std::chrono::milliseconds deadline) {
    return make_local_communicators(size, deadline, {[&](std::shared_ptr<Channel> inner) {
                                      return std::make_shared<ListeningChannel>(std::move(inner), sent);
                                    }});
  };
  constexpr int kSteps = 2;
  const LayeredModel model = small_dlrm();
  train(model, *spread_tables_plan(model, 2, 2), options(kSteps));
  const auto count = [&](int from, const std::string& part) {
    return std::ranges::count_if(sent->of_pair[{from, 1 - from}], [&](const std::string& text) {
      return text.find(part) != std::string::npos;
    });
  };
  for (const int rank : {0, 1}) {
    EXPECT_EQ(count(rank, "SEND_F"), kSteps) << rank;
    EXPECT_EQ(count(rank, "SEND_B"), kSteps) << rank;
  }
  EXPECT_EQ(count(0, "and 2 more"), kSteps) << "gradients of three tables of rank 1";
  EXPECT_EQ(count(1, "and 2 more"), kSteps) << "their vectors";
}

TEST(SpreadTables, ArePlacedBySizeAndEachRankHoldsItsOwn) {
  const LayeredModel model = small_dlrm();  // tables of 11, 3, 20 and 7 rows of 8 numbers
  const Plan plan = *spread_tables_plan(model, 2, 2);
  EXPECT_EQ(to_string(validate(plan, model.name, model.layer_names())), "");
  ASSERT_EQ(plan.num_stages(), 4);
  EXPECT_EQ(plan.stages[0].layers, (std::vector<std::string>{"emb_l.2"}));
  EXPECT_EQ(plan.stages[1].layers, (std::vector<std::string>{"emb_l.0", "emb_l.1", "emb_l.3"}));
  EXPECT_EQ(plan.stages[2].layers, (std::vector<std::string>{"bot_l.0", "bot_l.1", "bot_l.2", "bot_l.3"}));
  EXPECT_EQ(plan.stages[3].layers.front(), "interaction");
  EXPECT_EQ(text_of_spread_tables(plan),
            "tables: rank 0: emb_l.2 (0.001 MB); rank 1: emb_l.0, emb_l.1, emb_l.3 (0.001 MB)");
  const StageLayout layout = *make_layout(model, plan, 3);
  EXPECT_EQ(shape_of(plan).links, layout.links) << "of the bottom MLP and the tables to the rest";
  std::vector<std::int64_t> rows;
  for (const int stage : {0, 1}) {
    const ParameterStore store(layout, StageId(stage), 1);
    std::int64_t elements = 0;
    for (const ParameterSlot& slot : store.slots()) elements += slot.elements;
    EXPECT_EQ(elements * 4, plan.stages[stage].parameter_bytes);
    rows.push_back(elements / 8);
  }
  EXPECT_EQ(rows, (std::vector<std::int64_t>{20, 21}));
  const auto refused = [](const LayeredModel& of, int ranks) {
    const Result<Plan> made = spread_tables_plan(of, ranks, 8);
    return made ? "" : to_string(made.problems());
  };
  EXPECT_NE(refused(model, 5).find("5 replicas for 4 tables"), std::string::npos) << refused(model, 5);
  EXPECT_NE(refused(model, 1).find("--replicas N"), std::string::npos);
  EXPECT_NE(refused(small_model(), 2).find("has no tables"), std::string::npos);
}

TEST(DlrmOptions, TablesFollowFromTheFlags) {
  const auto limits = [](const GivenOptions& options) {
    std::vector<std::int64_t> rows;
    const auto model = make_model("dlrm", options);
    for (const FieldSpec& field : model->fields)
      if (field.name.starts_with("category")) rows.push_back(field.limit);
    return rows;
  };
  EXPECT_EQ(limits({{"table-rows", "5,9,2"}}), (std::vector<std::int64_t>{5, 9, 2}));
  EXPECT_EQ(limits({{"table-rows", "5,9,2"}, {"table-rows-cap", "5"}}), (std::vector<std::int64_t>{5, 5, 2}));
  EXPECT_EQ(limits({{"tables", "mlperf"}})[0], 39884406);
  EXPECT_EQ(limits({{"tables", "threshold"}})[19], 8165896);
  for (const GivenOptions& wrong :
       {GivenOptions{{"table-rows", "5,0"}}, {{"top", "16,2"}}, {{"table-rows", "5,,3"}}, {{"bottom", "0"}}})
    EXPECT_FALSE(make_model("dlrm", wrong)) << wrong[0].text;
}

}  // namespace
}  // namespace millrace
