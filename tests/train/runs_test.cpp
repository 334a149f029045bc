// A run and its folder: whose it is, what may be resumed, what NaN and a full disk do to it.
#include <signal.h>
#include <sys/resource.h>

#include <cmath>
#include <sstream>

#include <ATen/ops/isfinite.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/scalar_sink.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

class Runs : public Pipeline {
 protected:
  Plan plan(const std::vector<int>& replicas = {1, 1}) const {
    return plan_for(model_, replicas, 4, ScheduleKind::OneFOneB);
  }
  TrainOptions in(const std::string& name, std::int64_t steps, std::int64_t checkpoint_every) {
    TrainOptions o = options(steps);
    o.output_dir = (folder_ / name).string();
    o.checkpoint_every = checkpoint_every;
    return o;
  }
  Outcome run(const TrainOptions& o) { return train(model_, plan(), o); }
  /// The message of the error that a run ends with.
  template <class Class>
  std::string refusal(const TrainOptions& o) {
    try {
      run(o);
    } catch (const Class& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
    ADD_FAILURE() << "was not refused";
    return "";
  }
  static void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  std::int64_t newest(const std::string& name) {
    const auto checkpoint = open_checkpoint((folder_ / name).string());
    return checkpoint ? checkpoint->info.step : -1;
  }
  std::vector<std::int64_t> logged_steps(const std::string& name, int rank = 0) {
    std::vector<std::int64_t> steps;
    std::istringstream lines(*read_file(folder_ / name / ("steps.rank" + std::to_string(rank) + ".jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const auto json = parse_json(line, "steps");
      EXPECT_TRUE(json) << line;
      if (const Json* step = json->find("step")) steps.push_back(step->as_int());
    }
    return steps;
  }

  LayeredModel model_ = small_model();
};

/// Deletes the output folder after the first step.
class DeletingSink final : public ScalarSink {
 public:
  explicit DeletingSink(fs::path folder) : folder_(std::move(folder)) {}
  Status write(std::int64_t step, double, const Scalars&) override {
    std::error_code ignored;  // other ranks write meanwhile
    if (step == 0) fs::remove_all(folder_, ignored);
    return Ok{};
  }

 private:
  fs::path folder_;
};

/// Its last checkpoint makes the folder again.
TEST_F(Runs, AFolderThatWasDeletedMeanwhileIsAnError) {
  TrainOptions o = in("out", 4, 2);
  o.scalars.push_back([&](std::int64_t) { return std::make_unique<DeletingSink>(o.output_dir); });
  for (const RunReport& report : run(o).reports) {
    ASSERT_EQ(report.lost.size(), 1u);
    EXPECT_NE(report.lost.front().find("was deleted or replaced while the run wrote into it"),
              std::string::npos);
  }
  EXPECT_EQ(newest("out"), 4);
}

TEST_F(Runs, AFreshRunDoesNotTouchAnEarlierOne) {
  run(in("out", 30, 10));
  const TrainOptions shorter = in("out", 5, 5);
  expect_parts(refusal<ConfigError>(shorter), {"out", "step-00000030", "--resume", "--overwrite"});
  EXPECT_EQ(newest("out"), 30);
  EXPECT_EQ(logged_steps("out").size(), 30u);
  TrainOptions instead = shorter;
  instead.overwrite = true;
  const std::string first = open_checkpoint((folder_ / "out").string())->info.run;
  run(instead);
  EXPECT_EQ(newest("out"), 5);
  EXPECT_NE(open_checkpoint((folder_ / "out").string())->info.run, first);
  EXPECT_FALSE(fs::exists(folder_ / "out/checkpoints/step-00000030"));
  EXPECT_EQ(logged_steps("out").size(), 5u);
}

TEST_F(Runs, AReturnToAnOlderStepAbandonsTheRest) {
  const Outcome whole = run(in("out", 12, 2));
  TrainOptions back = in("out", 11, 3);
  back.resume = (folder_ / "out/checkpoints/step-00000008").string();
  const Outcome again = run(back);
  EXPECT_EQ(again.losses, (std::vector<double>{whole.losses.begin() + 8, whole.losses.begin() + 11}));
  EXPECT_EQ(newest("out"), 9) << "step 9 is the newest now, 10 and 12 are aside";
  EXPECT_FALSE(fs::exists(folder_ / "out/checkpoints/step-00000012"));
  EXPECT_EQ(open_checkpoint((folder_ / "out/checkpoints/abandoned-1").string())->info.step, 12);
  std::vector<std::int64_t> expected(11);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<std::int64_t>(i);
  for (int rank : {0, 1}) EXPECT_EQ(logged_steps("out", rank), expected) << "each step once";
  const auto checkpoint = open_checkpoint((folder_ / "out").string());
  EXPECT_EQ(checkpoint->info.run, again.reports[0].run) << "it is still the same run";
  // A resume from another folder begins a new run, which records its origin.
  TrainOptions apart = in("apart", 12, 12);
  apart.resume = (folder_ / "out").string();
  run(apart);
  const auto other = open_checkpoint((folder_ / "apart").string());
  EXPECT_NE(other->info.run, checkpoint->info.run);
  EXPECT_EQ(other->info.parent, checkpoint->info.run + " step 9");
  expect_parts(refusal<ConfigError>(apart), {"apart", "an earlier run"});
}

/// The later checkpoints of a branch that was left lie before the new ones by number, and are never taken.
TEST_F(Runs, ADamagedCheckpointDoesNotLeadBackToAnAbandonedBranch) {
  const Outcome whole = run(in("out", 30, 10));
  TrainOptions back = in("out", 25, 25);
  back.resume = (folder_ / "out/checkpoints/step-00000010").string();
  run(back);
  ASSERT_EQ(newest("out"), 25);
  ASSERT_TRUE(write_file_atomically(folder_ / "out/checkpoints/step-00000025/stage1.safetensors", "damaged"));
  EXPECT_EQ(newest("out"), 10) << "not 20, which is of the other branch";
  TrainOptions again = in("out", 30, 30);
  again.resume = again.output_dir;
  const Outcome rest = run(again);
  EXPECT_EQ(rest.reports[0].first_step, 10);
  EXPECT_EQ(rest.losses, (std::vector<double>{whole.losses.begin() + 10, whole.losses.end()}));
  EXPECT_EQ(newest("out"), 30);
}

TEST_F(Runs, OverwritingWhatIsResumedIsRefused) {
  run(in("out", 4, 2));
  TrainOptions both = in("out", 8, 2);
  both.resume = both.output_dir;
  both.overwrite = true;
  expect_parts(refusal<ConfigError>(both), {"--overwrite", "--resume"});
  EXPECT_EQ(newest("out"), 4);
}

TEST_F(Runs, WhatDecidesARunMayNotChangeUnnoticed) {
  TrainOptions first = in("out", 4, 2);
  first.settings = {{"data", "7 images, listing aa"}};
  run(first);
  TrainOptions same = options(6);
  same.settings = first.settings;
  same.resume = first.output_dir;
  EXPECT_EQ(run(same).losses.size(), 2u);
  const std::vector<std::pair<std::string, std::function<void(TrainOptions&)>>> changes{
      {"microbatch", [](TrainOptions& o) { o.microbatch = 6; }},
      {"seed", [](TrainOptions& o) { o.seed = 12; }},
      {"lr", [](TrainOptions& o) { o.learning_rate.base = 0.06; }},
      {"lr-policy", [](TrainOptions& o) { o.learning_rate.policy = RatePolicy::Polynomial; }},
      {"warmup-steps", [](TrainOptions& o) { o.learning_rate.warmup_steps = 3; }},
      {"momentum", [](TrainOptions& o) { o.rule.momentum = 0.8; }},
      {"weight-decay", [](TrainOptions& o) { o.rule.weight_decay = 0; }},
      {"rule", [](TrainOptions& o) { o.rule.kind = UpdateRuleKind::Adam; }},
      {"data", [](TrainOptions& o) {
         o.settings = {{"data", "7 images, listing bb"}};
       }}};
  for (const auto& [key, change] : changes) {
    TrainOptions other = same;
    change(other);
    expect_parts(refusal<CheckpointError>(other), {key + ": ", " there, ", "--resume-changes", key});
  }
  TrainOptions allowed = same;
  allowed.learning_rate.base = 0.06;
  allowed.rule.weight_decay = 0;
  allowed.resume_changes = {"lr"};
  expect_parts(refusal<CheckpointError>(allowed), {"weight-decay"});
  allowed.resume_changes = {"lr", "weight-decay"};
  EXPECT_EQ(run(allowed).losses.size(), 2u);
  allowed.resume_changes = {"all"};
  EXPECT_EQ(run(allowed).losses.size(), 2u);
  allowed.resume_changes = {"weight-decai"};
  expect_parts(refusal<ConfigError>(allowed), {"weight-decai", "did you mean 'weight-decay'"});
  // Another number of microbatches: the data go on where they were, after 16, and a step is 8 of them.
  TrainOptions wider = same;
  const Plan eight = plan_for(model_, {1, 1}, 8, ScheduleKind::OneFOneB);
  EXPECT_THROW(train(model_, eight, wider), CheckpointError);
  wider.resume_changes = {"microbatches"};
  EXPECT_EQ(train(model_, eight, wider).losses.size(), 4u);
}

/// Weights that overflow: the loss of the step itself is still finite, or not, depending on the rate.
TEST_F(Runs, NothingNonFiniteIsSaved) {
  for (const double lr : {1e3, 1e19, 1e38}) {
    for (const std::vector<int>& replicas : {std::vector<int>{1, 1}, {2, 1}, {1, 2}}) {
      const std::string name = "out" + std::to_string(lr) + std::to_string(replicas[0]);
      fs::remove_all(folder_ / name);
      TrainOptions o = in(name, 60, 1);
      o.learning_rate.base = lr;
      try {
        train(model_, plan(replicas), o);
        FAIL() << "lr " << lr << " went well";
      } catch (const NumericError& error) {
        const std::string text = error.hint();
        const std::int64_t saved = newest(name);
        if (saved < 0) {
          expect_parts(text, {"no checkpoint was saved before it"});
          continue;
        }
        expect_parts(text, {"the checkpoint of step " + std::to_string(saved) + " is from before it"});
        const auto checkpoint = open_checkpoint((folder_ / name).string());
        for (const SafetensorsFile& shard : checkpoint->shards) {
          for (const std::string& tensor : shard.names())
            EXPECT_TRUE(at::isfinite(shard.tensor(tensor)).all().item<bool>()) << tensor << " lr " << lr;
        }
      }
    }
  }
}

/// Files end at `bytes`, as on a full disk.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_;
};

/// Whether saves are in the background.
class DiskOfRuns : public Runs, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Saves, DiskOfRuns, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "background" : "foreground"; });

TEST_P(DiskOfRuns, AFullOneDoesNotEndTraining) {
  const Outcome expected = run(options(12));
  TrainOptions o = in("out", 12, 4);
  o.background_saves = GetParam();
  Outcome full;
  {
    const SizeLimit limit(3000);  // a log of some steps, and no shard
    std::vector<std::string> lost;
    full.reports.resize(2);
    auto communicators = make_local_communicators(2, std::chrono::milliseconds(60'000));
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        at::set_num_threads(1);
        SteadyClock clock;
        TrainOptions mine = o;
        mine.save_weights = (folder_ / "full.safetensors").string();
        Trainer trainer({*communicators[r], clock, *device_}, model_, plan(), mine,
                        [&](const BatchNeeds&, const BatchNeeds&) {
                          return BatchSources{.train = std::make_unique<RandomBatches>(model_, kMicrobatch)};
                        });
        full.reports[r] = trainer.run();
      });
    }
  }
  EXPECT_EQ(full.reports[1].losses, expected.losses);
  for (const RunReport& report : full.reports) {
    EXPECT_EQ(report.failed_saves, 4);  // three that were due, and one instead of the weights
    EXPECT_EQ(report.saved_step, -1);
    EXPECT_GT(report.lost_log_lines, 0);
    EXPECT_TRUE(report.lost_checkpoint);
    ASSERT_EQ(report.lost.size(), 2u);
    expect_parts(report.lost[0], {"the weights", "File too large"});
    expect_parts(report.lost[1], {"the checkpoint of step 12"});
  }
  EXPECT_EQ(full.reports[0].lost_log_lines, full.reports[1].lost_log_lines);
  EXPECT_FALSE(fs::exists(folder_ / "full.safetensors"));
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "out"))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  EXPECT_FALSE(logged_steps("out").empty()) << "and every line that is there is whole";
}

TEST_P(DiskOfRuns, AFullOneEndsARunThatRequiresItsCheckpoints) {
  TrainOptions o = in("out", 12, 4);
  run(in("out", 4, 4));
  o.background_saves = GetParam();
  o.resume = o.output_dir;
  o.checkpoint_required = true;
  {
    const SizeLimit limit(3000);
    expect_parts(refusal<CheckpointError>(o), {"checkpoint step=8 NOT saved", "File too large",
                                               "The last one is of step 4", "--checkpoint-required"});
  }
  EXPECT_EQ(newest("out"), 4);
  run(o);
  EXPECT_EQ(newest("out"), 12);
}

TEST_F(Runs, AFolderInUseIsRefused) {
  fs::create_directories(folder_ / "out");
  const auto other = RunLock::acquire(folder_ / "out", "feed");
  ASSERT_TRUE(other);
  expect_parts(refusal<ConfigError>(in("out", 2, 1)), {"in use by run feed", std::to_string(::getpid())});
  EXPECT_FALSE(fs::exists(folder_ / "out/steps.rank0.jsonl"));
}

TEST_F(Runs, EveryOutputIsLookedAtBeforeTheFirstStep) {
  TrainOptions o = options(2);
  fs::create_directories(folder_ / "taken");
  auto communicators = make_local_communicators(1, std::chrono::milliseconds(1000));
  SteadyClock clock;
  bool read = false;
  o.save_weights = (folder_ / "taken").string();
  const auto start = [&] {
    Trainer trainer({*communicators[0], clock, *device_}, model_, plan({1}), o,
                    [&](const BatchNeeds&, const BatchNeeds&) {
                      read = true;
                      return BatchSources{.train = std::make_unique<RandomBatches>(model_, kMicrobatch)};
                    });
    trainer.run();
  };
  EXPECT_THROW(start(), ConfigError);
  EXPECT_FALSE(read);
  o.save_weights = (folder_ / "not/yet/there/w.safetensors").string();
  start();
  EXPECT_TRUE(fs::exists(o.save_weights));
}

}  // namespace
}  // namespace millrace
