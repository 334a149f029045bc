#include "driver/launch/job_spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "driver/cli/cli.h"
#include "driver/flags/compute_specs.h"
#include "runtime/plan/smaller_plans.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

Plan two_stages() {
  Plan plan = uniform_plan("mlp", {"a", "b", "c"}, 2, 1, 4, ScheduleKind::OneFOneB);
  return plan;
}

Models some_models() {
  const ModelOption dropout = number_option("dropout", -1, {-1, 0.999}, "Probability.", "P");
  return {
      {.name = "mlp", .options = {integer_option("width", 256, {1, 99}, "Width of the layers."), dropout}},
      {.name = "vgg16", .options = {integer_option("image-size", 0, {0, 999}, "Pixels."), dropout}}};
}

Result<JobSpec> job(const std::string& yaml, const std::vector<JobOverride>& overrides = {}) {
  const Result<Json> json = parse_yaml(yaml, "job.yaml");
  if (!json) return json.problems();
  return job_from(*json, "job.yaml", overrides,
                  [](const std::string&) { return Result<Models>(some_models()); });
}

std::string problems_of(const std::string& yaml, const std::vector<JobOverride>& overrides = {}) {
  const Result<JobSpec> result = job(yaml, overrides);
  return result ? "" : to_string(result.problems());
}

TEST(JobSpec, TheEnvironmentWinsOverTheFileAndSetOverBoth) {
  const std::string yaml = "model: mlp\nlr: 0.1\nsteps: 5\n";
  ::setenv("MILLRACE_JOB_LR", "0.2", 1);
  ::setenv("MILLRACE_JOB_STEPS", "6", 1);
  ::setenv("MILLRACE_JOB_SLURM__TIME", "1:00:00", 1);
  const Result<JobSpec> result = job(yaml, {{"steps", "7"}});
  ::setenv("MILLRACE_JOB_LR", "much", 1);
  const std::string problems = problems_of(yaml);
  for (const char* name : {"MILLRACE_JOB_LR", "MILLRACE_JOB_STEPS", "MILLRACE_JOB_SLURM__TIME"})
    ::unsetenv(name);
  ASSERT_TRUE(result) << to_string(result.problems());
  EXPECT_EQ(*result->find("lr"), "0.2");
  EXPECT_EQ(*result->find("steps"), "7");
  EXPECT_NE(to_yaml(*result).find("1:00:00"), std::string::npos) << to_yaml(*result);
  EXPECT_NE(problems.find("MILLRACE_JOB_LR"), std::string::npos) << problems;
}

TEST(JobSpec, AnArraysListsBecomeWordsOfTheWorker) {
  const Result<JobSpec> array = job("model: mlp\nfused: true\nlr: [0.1, 0.2]\ndropout: [0, 0.5]\nseed: 3\n");
  ASSERT_TRUE(array) << to_string(array.problems());
  const std::vector<std::string> words = train_arguments(*array);
  const auto lr = std::ranges::find(words, "--lr");
  ASSERT_NE(lr, words.end());
  EXPECT_EQ(std::vector<std::string>(lr, lr + 3), (std::vector<std::string>{"--lr", "0.1", "0.2"}));
  EXPECT_NE(std::ranges::find(words, "--dropout"), words.end());
  EXPECT_NE(std::ranges::find(words, "--seed=3"), words.end());
  const Result<JobSpec> again = job(to_yaml(*array));
  ASSERT_TRUE(again) << to_yaml(*array) << to_string(again.problems());
  EXPECT_EQ(train_arguments(*again), words);
  const Result<JobSpec> one = job("model: mlp\nfused: true\nlr: [0.1, 0.2]\n", {{"lr", "0.3"}});
  ASSERT_TRUE(one);
  EXPECT_TRUE(one->lists.empty()) << "--set wins";
  EXPECT_NE(problems_of("model: mlp\nlr: [0.1, 0.2]\n").find("with fused: true"), std::string::npos);
  EXPECT_NE(problems_of("model: mlp\nreplicas: [2, 2]\n").find("replicas: \"2,2\""), std::string::npos)
      << problems_of("model: mlp\nreplicas: [2, 2]\n");
  EXPECT_EQ(problems_of("model: mlp\nstages: [2, 2]\n").find("fused"), std::string::npos);
  EXPECT_NE(
      problems_of("model: mlp\nfused: true\nlr: [0.1, 0.2]\nseed: [1, 2, 3]\n").find("seed has 3 values"),
      std::string::npos);
  EXPECT_NE(problems_of("model: mlp\nfused: true\nlr: [0.1, fast]\n").find("job.yaml:3:11: lr: 'fast'"),
            std::string::npos)
      << problems_of("model: mlp\nfused: true\nlr: [0.1, fast]\n");
}

TEST(JobSpec, EveryTrainFlagIsAKey) {
  const Result<JobSpec> result = job("name: first\nmodel: mlp\nsamples: 1\n");
  ASSERT_FALSE(result);  // "samples" is none
  for (const Flag& flag : train_spec().flags) {
    if (flag.name == "dry-run" || flag.name == "model") continue;
    if (flag.name == "plan" || flag.name == "schedule-file") continue;  // read at once
    // A flag without a default gets a value that its form allows.
    const std::map<std::string, std::string> allowed{{"F", "0.5"},
                                                     {"N", "1"},
                                                     {"LIST", "1,2"},
                                                     {"KINDS", "bias,norm"},
                                                     {"none|dynamic|NUMBER", "none"},
                                                     {"original|instrumented|sleep|generated", "original"},
                                                     {"TIME", "2h"},
                                                     {"SECONDS", "1"},
                                                     {"METRIC", "top1"},
                                                     {"METRIC:N", "top1:3"},
                                                     {"profile|RANK:FACTOR,...", "0:2,1:1.5"},
                                                     {"SHARE[,SEED]", "0.1"},
                                                     {"STEP[,STEP...]", "mixup"},
                                                     {"NAME|LATENCY,BANDWIDTH[,DEPTH]", "hdd"}};
    const auto named = allowed.find(flag.value);
    const std::string value = flag.value.empty()              ? "true"
                              : !flag.target.fallback.empty() ? flag.target.fallback
                              : named != allowed.end()        ? named->second
                                                              : flag.value;
    std::string key = flag.name;
    for (const bool underscores : {false, true}) {
      if (underscores) std::replace(key.begin(), key.end(), '-', '_');
      const Result<JobSpec> one = job("model: mlp\n" + key + ": " + value + "\n");
      ASSERT_TRUE(one) << key << ": " << to_string(one.problems());
      EXPECT_NE(one->find(flag.name), nullptr) << key;
    }
  }
}

TEST(JobSpec, TheWorkerUnderstandsTheArguments) {
  const Result<JobSpec> result =
      job("model: mlp\nlr: 1e-3\ndropout: -1\ndeterministic: true\nno-evaluation: false\nseed: 7\ndata: 'a "
          "b'\nargs: {steps: 12}\n");
  ASSERT_TRUE(result) << to_string(result.problems());
  const std::vector<std::string> argv = train_arguments(*result);
  EXPECT_EQ(argv.front(), "train");
  GivenOptions given;
  TrainFlags flags;
  const Result<Arguments> parsed = parse_arguments(
      with_model_options(train_spec(flags), some_models(), given), {argv.begin() + 1, argv.end()});
  ASSERT_TRUE(parsed) << to_string(parsed.problems());
  EXPECT_TRUE(parsed->problems().empty()) << to_string(parsed->problems());
  EXPECT_EQ(flags.data, "a b");
  EXPECT_EQ(flags.options.learning_rate.base, 1e-3);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0].name + given[0].text, "dropout-1");
  EXPECT_EQ(flags.options.steps, 12);
  EXPECT_TRUE(flags.deterministic);
  EXPECT_TRUE(flags.evaluate);
  EXPECT_EQ(flags.options.output_dir, "runs/job");
}

TEST(JobSpec, EveryProblemAtOnceWithItsPlace) {
  const std::string all = problems_of(
      "modle: mlp\nlr: 0.5x\nsteps: 1.5\nrule: sgdd\ndeterministic: maybe\nseed: [1]\nranks: 0\nenv: {RANK: "
      "3}\nlr_policy:\nname: a/b\nmicro_batch_size: 3\n");
  for (const char* expected :
       {"job.yaml:1:8: unknown key 'modle'. Hint: did you mean 'model'?", "lr: '0.5x' is not a number",
        "steps: '1.5' is not an integer", "rule: unknown update rule 'sgdd'. Hint: did you mean 'sgd'?",
        "deterministic: 'maybe' is not true or false", "seed needs one value, found a list", "ranks is '0'",
        "RANK is set by the launcher", "lr_policy needs one value and has none", "cannot name a folder",
        "unknown key 'micro_batch_size'"}) {
    EXPECT_NE(all.find(expected), std::string::npos) << expected << "\n" << all;
  }
}

TEST(JobSpec, HintsAreAdviceAndNumbersAreShownAsWritten) {
  const std::string all = problems_of(
      "model: mlp\nno_evaluation: yes\nlr: 99999999999999999999\nsteps: 99999999999999999999\n"
      "momentum: 0x2\n");
  for (const char* expected :
       {"no_evaluation: 'yes' is not true or false. Hint: write true, or leave the key out",
        "lr: 99999999999999999999 is out of range. Hint: expected from 0 to 1000000",
        "steps: '99999999999999999999' is not an integer. Hint: expected from 0 to 9007199254740991",
        "momentum: '0x2' is not a number"})
    EXPECT_NE(all.find(expected), std::string::npos) << expected << "\n" << all;
  EXPECT_EQ(all.find("e+"), std::string::npos) << all;
}

TEST(JobSpec, AModelsOwnOptionsAreKeysForItAlone) {
  const Result<JobSpec> result =
      job("steps: 3\ndropout: 0.5\nwidth: 8\nmodel: mlp\n", {{"width", "9"}, {"args.dropout", "0.25"}});
  ASSERT_TRUE(result) << to_string(result.problems());
  EXPECT_EQ(*result->find("width"), "9");
  EXPECT_EQ(*result->find("dropout"), "0.25");
  const std::vector<std::string> argv = train_arguments(*result);
  EXPECT_EQ((std::vector<std::string>{argv.begin(), argv.begin() + 4}),
            (std::vector<std::string>{"train", "--model=mlp", "--width=9", "--dropout=0.25"}))
      << "behind the model, in its order";
  const Result<JobSpec> again = job(to_yaml(*result));
  ASSERT_TRUE(again) << to_string(again.problems());
  EXPECT_EQ(to_yaml(*again), to_yaml(*result));
  const std::string all =
      problems_of("model: vgg16\nimage_size: many\nwidth: 8\nheight: 2\n", {{"drop-out", "1"}});
  for (const char* part :
       {"job.yaml:2:13: 'many' is not an integer",
        "job.yaml:3:8: is not an option of vgg16. Hint: vgg16 takes --image-size, --dropout",
        "unknown key 'height'",
        "--set drop-out: unknown key 'drop-out'. Hint: did you mean "
        "'dropout'?"})
    EXPECT_NE(all.find(part), std::string::npos) << part << "\n" << all;
  EXPECT_NE(problems_of("model: vgg61\nwidth: 8\n").find("did you mean 'vgg16'"), std::string::npos);
  EXPECT_NE(problems_of("model: mlp\nwidth: 8\nwidth: 8\n").find("width"), std::string::npos);
}

TEST(JobSpec, TheWorkerIsAskedOnlyForKeysOfAModel) {
  const auto read = [](const std::string& yaml, const AskForModels& ask) {
    return job_from(*parse_yaml(yaml, "job.yaml"), "job.yaml", {}, ask);
  };
  int asked = 0;
  const auto ask = [&](const std::string&) {
    return ++asked, Result<Models>(Problem{"worker", "is lost", {}});
  };
  EXPECT_TRUE(read("model: mlp\nsteps: 3\n", ask));
  EXPECT_EQ(asked, 0);
  const Result<JobSpec> lost = read("model: mlp\nwidth: 3\n", ask);
  ASSERT_FALSE(lost);
  EXPECT_NE(to_string(lost.problems()).find("worker: is lost"), std::string::npos);
  EXPECT_EQ(asked, 1);
  const Result<JobSpec> without = read("model: mlp\nwidth: 3\n", {});
  ASSERT_TRUE(without) << "who has no worker cannot start the job, which is said later";
  EXPECT_EQ(*without->find("width"), "3");
}

TEST(ModelFlags, AreThoseOfAllModelsEachOnce) {
  GivenOptions given;
  const CommandSpec spec = with_model_options(train_spec(), some_models(), given);
  std::vector<std::string> names;
  for (const Flag& flag : spec.flags) {
    if (flag.group == "Model") names.push_back(flag.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"model", "width", "dropout", "image-size"}));
  const std::string help = *help_text(spec, kHelpAll);
  for (const char* part :
       {"mlp, vgg16. `millrace models` says more.", "--width N                   mlp: Width of",
        "--dropout P                 Probability. [default: -1]"})
    EXPECT_NE(help.find(part), std::string::npos) << part << "\n" << help;
  const auto parsed = parse_arguments(spec, {"--dropout=0.5", "--image-size", "3"});
  ASSERT_TRUE(parsed);
  ASSERT_EQ(given.size(), 2u);
  EXPECT_EQ(given[0].name + given[0].text + given[1].name + given[1].text, "dropout0.5image-size3");
}

TEST(ModelFlags, ForwardsAloneTakeNoOptionsOfGradients) {
  GivenOptions given;
  Models models = some_models();
  models.front().options.front().of_gradients = true;
  EvaluateFlags flags;
  const CommandSpec spec = with_model_options(evaluate_spec(flags), models, given);
  EXPECT_EQ(std::ranges::count(spec.flags, "width", &Flag::name), 0);
  EXPECT_EQ(std::ranges::count(spec.flags, "dropout", &Flag::name), 1);
}

TEST(Arguments, UnknownFlagsAreLeftWithTheirValue) {
  TrainFlags flags;
  const auto parsed =
      parse_arguments(train_spec(flags),
                      {"--width", "8", "--device", "cuda", "--new=3", "--switch", "--lr", "1", "--low", "-1"},
                      UnknownFlags::Leave);
  ASSERT_TRUE(parsed) << to_string(parsed.problems());
  EXPECT_EQ(parsed->left(), (std::vector<std::string>{"width", "new", "switch", "low"}));
  EXPECT_EQ(flags.device, ComputeDevice::Cuda);
  EXPECT_EQ(flags.options.learning_rate.base, 1);
  EXPECT_FALSE(parse_arguments(train_spec(), {"--width", "8"}));
}

TEST(JobSpec, AFlagSpeltTwoWaysIsGivenTwice) {
  EXPECT_NE(problems_of("model: mlp\nlr-policy: step\nlr_policy: step\n").find("is given twice"),
            std::string::npos);
  EXPECT_NE(problems_of("model: mlp\nsteps: 3\nargs: {steps: 4}\n").find("is given twice"),
            std::string::npos);
}

TEST(JobSpec, OverridesWinAndLaterOnesWinMore) {
  const Result<JobSpec> result = job("model: mlp\nsteps: 3\nenv: {A: 1}\n", {{"steps", "4"},
                                                                             {"env.A", "x"},
                                                                             {"env.B", "y"},
                                                                             {"args.seed", "9"},
                                                                             {"steps", "5"},
                                                                             {"output_dir", "/o"}});
  ASSERT_TRUE(result) << to_string(result.problems());
  EXPECT_EQ(*result->find("steps"), "5");
  EXPECT_EQ(*result->find("seed"), "9");
  EXPECT_EQ(result->output_dir, "/o");
  EXPECT_EQ(result->environment, (std::vector<std::pair<std::string, std::string>>{{"A", "x"}, {"B", "y"}}));
  EXPECT_NE(problems_of("model: mlp\n", {{"step", "4"}})
                .find("--set step: unknown key 'step'. Hint: did you mean 'steps'?"),
            std::string::npos);
  EXPECT_FALSE(parse_override("steps"));
  EXPECT_FALSE(parse_override("=4"));
  EXPECT_EQ(parse_override("a=b=c")->value, "b=c");
}

TEST(JobSpec, RanksComeFromThePlan) {
  const TemporaryFolder folder;
  ASSERT_TRUE(two_stages().save(folder.path("plan.json")));
  const std::string plan = "plan: " + folder.path("plan.json") + "\n";
  const Result<JobSpec> result = job(plan);
  ASSERT_TRUE(result) << to_string(result.problems());
  EXPECT_EQ(result->ranks, 2);
  EXPECT_EQ(result->stage_of_rank, (std::vector<int>{0, 1}));
  EXPECT_EQ(*result->find("model"), "mlp") << "the plan's";
  EXPECT_TRUE(job(plan + "ranks: 2\n"));
  EXPECT_NE(problems_of(plan + "ranks: 3\n").find("ranks is 3, but"), std::string::npos);
  EXPECT_NE(problems_of(plan + "model: vgg16\n").find("is a plan for mlp, the job trains vgg16"),
            std::string::npos);
  EXPECT_NE(problems_of("plan: /no/such/plan.json\n").find("/no/such/plan.json"), std::string::npos);
}

TEST(JobSpec, SmallerPlansAreFoundBesideThePlan) {
  const TemporaryFolder folder;
  const std::string path = folder.path("plan.json"), yaml = "plan: " + path + "\nsmaller_plans: auto\n";
  ASSERT_TRUE(two_stages().save(path));
  const std::string none = problems_of(yaml);
  EXPECT_NE(none.find("plan.minus1.json"), std::string::npos) << none;
  EXPECT_NE(none.find("Hint: smaller_plans: auto takes it; `millrace plan --smaller 2"), std::string::npos)
      << none;
  Plan one = uniform_plan("mlp", {"a", "b", "c"}, 1, 1, 4, ScheduleKind::OneFOneB);
  ASSERT_TRUE(one.save(smaller_plan_file(path, 1)));
  const Result<JobSpec> found = job(yaml);
  ASSERT_TRUE(found) << to_string(found.problems());
  EXPECT_EQ(found->restarts.smaller_plans, std::vector<std::string>{folder.path("plan.minus1.json")});
  EXPECT_NE(to_yaml(*found).find("plan.minus1.json"), std::string::npos) << "the resolved job names them";
  EXPECT_TRUE(job("plan: " + path + "\n")->restarts.smaller_plans.empty()) << "only a job that asks for them";
  one.microbatches = 8;
  ASSERT_TRUE(one.save(smaller_plan_file(path, 1)));
  EXPECT_NE(problems_of(yaml).find("plan.minus1.json: was not made with"), std::string::npos);
  one.microbatches = 4;
  one.graph_fingerprint = "of another profile";
  ASSERT_TRUE(one.save(smaller_plan_file(path, 1)));
  EXPECT_NE(problems_of(yaml).find("plan.minus1.json: was not made with"), std::string::npos);
  const std::string without = problems_of("model: mlp\nsmaller_plans: auto\n");
  EXPECT_NE(without.find("job.yaml:2:16: smaller_plans: auto needs a plan"), std::string::npos) << without;
}

TEST(JobSpec, WithoutAPlanRanksAreStagesTimesReplicas) {
  EXPECT_EQ(job("model: mlp\n")->ranks, 1);
  EXPECT_EQ(job("model: mlp\nstages: 3\nreplicas: 2\n")->ranks, 6);
  EXPECT_EQ(job("model: mlp\nstages: 3\nreplicas: 2\n")->stage_of_rank, (std::vector<int>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(*job("model: mlp\nranks: 4\n")->find("stages"), "4") << "a straight pipeline";
  EXPECT_NE(problems_of("model: mlp\nranks: 3\nstages: 2\n").find("ranks is 3, but stages x replicas is 2"),
            std::string::npos);
}

TEST(JobSpec, TheResolvedJobReadsBackAsItself) {
  const Result<JobSpec> first =
      job("name: n\nmodel: mlp\nstages: 2\nlr: 0.25\nsave-weights: 'a: b #c.safetensors'\ndeterministic: "
          "true\nenv: {K: 'x y', N: 3}\n");
  ASSERT_TRUE(first) << to_string(first.problems());
  const Result<JobSpec> second = job(to_yaml(*first));
  ASSERT_TRUE(second) << to_string(second.problems()) << to_yaml(*first);
  EXPECT_EQ(first->train, second->train);
  EXPECT_EQ(first->environment, second->environment);
  EXPECT_EQ(first->name, second->name);
  EXPECT_EQ(first->ranks, second->ranks);
}

// ---- PipeDream's driver YAML
// ----------------------------------------------------------------------------------

std::string pipedream_yaml(const std::string& config, const std::string& extra = "") {
  return "'log_directory': '/logs'\n'module': 'models.vgg16.gpus=4'\n'data_dir': '/data'\n'container': "
         "'image:1'\n'config_file': '" +
         config +
         "'\n'machines': ['localhost:0', 'localhost:1']\n'batch_size': 64\n'learning_rate': "
         "0.01\n'weight_decay': 0.0005\n'epochs': 60\n'print_frequency': 20\n"
         "'learning_rate_policy': 'polynomial'\n'model_type': 'image_classification'\n'distributed_backend': "
         "'gloo'\n" +
         extra;
}

/// A number of steps on the command line is not lost behind the epochs of the file.
TEST(PipeDreamJob, StepsThatAreSetTakeThePlaceOfEpochs) {
  const TemporaryFolder folder;
  const std::string conf = folder.write(
      "mp_conf.json", R"({"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0], "1": [1]}})");
  const Result<JobSpec> result = job(pipedream_yaml(conf), {{"steps", "7"}});
  ASSERT_TRUE(result) << to_string(result.problems());
  EXPECT_EQ(result->find("epochs"), nullptr);
  EXPECT_EQ(*result->find("steps"), "7");
  const Result<JobSpec> both = job(pipedream_yaml(conf), {{"steps", "7"}, {"epochs", "2"}});
  ASSERT_TRUE(both) << to_string(both.problems());
  EXPECT_EQ(*both->find("epochs"), "2");
}

TEST(JobSpec, WrongReplicasHaveTheirPlaceInTheFile) {
  for (const char* wrong : {"nan", "-1", "1e+20", "3,1,1"}) {
    const Result<JobSpec> found = job("model: mlp\nstages: 2\nreplicas: " + std::string(wrong) + "\n");
    ASSERT_FALSE(found) << wrong;
    EXPECT_NE(to_string(found.problems()).find(":3:11: replicas: '"), std::string::npos)
        << to_string(found.problems());
  }
}

TEST(JobSpec, SaysHowLongARankMayBeSilent) {
  const auto limit = [](const std::string& line) { return job("model: mlp\n" + line); };
  EXPECT_EQ(heartbeat_of(*limit("")), std::chrono::seconds(30));
  const Result<JobSpec> two = limit("heartbeat: 2.5\n");
  ASSERT_TRUE(two) << to_string(two.problems());
  EXPECT_EQ(heartbeat_of(*two), std::chrono::milliseconds(2500));
  EXPECT_NE(to_yaml(*two).find("heartbeat: 2.5\n"), std::string::npos) << to_yaml(*two);
  EXPECT_EQ(heartbeat_of(*limit("heartbeat: 0\n")).count(), 0);
  for (const char* wrong : {"heartbeat: soon\n", "heartbeat: -1\n", "heartbeat: 0.5\n", "heartbeat: [2]\n"})
    EXPECT_FALSE(limit(wrong)) << wrong;
}

TEST(PipeDreamJob, CarriesOver) {
  const TemporaryFolder folder;
  const std::string conf = folder.write(
      "mp_conf.json", R"({"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0], "1": [1]}})");
  const Result<JobSpec> result = job(pipedream_yaml(conf));
  ASSERT_TRUE(result) << to_string(result.problems());
  const std::pair<const char*, const char*> expected[] = {{"model", "vgg16"},
                                                          {"data", "/data"},
                                                          {"stages", "2"},
                                                          {"replicas", "1"},
                                                          {"schedule", "pipedream"},
                                                          {"microbatch", "64"},
                                                          {"lr", "0.01"},
                                                          {"weight-decay", "5e-04"},
                                                          {"epochs", "60"},
                                                          {"print-every", "20"},
                                                          {"lr-policy", "polynomial"},
                                                          {"backend", "auto"},
                                                          {"output-dir", "/logs/job"}};
  for (const auto& [flag, value] : expected) {
    ASSERT_NE(result->find(flag), nullptr) << flag;
    EXPECT_EQ(*result->find(flag), value) << flag;
  }
  EXPECT_EQ(result->ranks, 2);
  // Both cuts are named: the files of PipeDream's module hold its layers, ours are equal numbers of them.
  ASSERT_EQ(result->notes.size(), 2u);
  EXPECT_EQ(
      result->notes[0],
      "the cut is another than PipeDream's. There the files of models.vgg16.gpus=4 hold the layers of each "
      "module, and " +
          conf +
          " says stage 0: module 0; stage 1: modules 1, 2. Here each of the 2 stages has an equal number "
          "of vgg16's layers; the log of rank 0 names them. For a cut of your own: --set plan=FILE, which "
          "`millrace plan` writes");
  EXPECT_EQ(result->notes[1],
            "container has no effect: that image has PipeDream; --container names one that has millrace");
  Plan plan = uniform_plan("vgg16", {"a", "b"}, 2, 1, 2, ScheduleKind::PipeDream);
  const Result<JobSpec> planned =
      job(pipedream_yaml(conf), {{"plan", folder.write("p.json", plan.to_json())}});
  ASSERT_TRUE(planned) << to_string(planned.problems());
  EXPECT_EQ(planned->notes[0], "config_file " + conf + " has no effect: the plan says the stages");
  const std::string depths = folder.write(
      "depths.json", R"({"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0], "1": [1]},
                         "stage_to_depth_map": {"0": 3, "1": 0}})");
  const Result<JobSpec> deep = job(pipedream_yaml(depths));
  ASSERT_TRUE(deep) << to_string(deep.problems());
  EXPECT_NE(deep->notes[1].find("stage_to_depth_map of " + depths + " has no effect"), std::string::npos);
}

/// PipeDream's AlexNet files have synthetic data, YAML 1.1's spelling of true and false, and stages of 3 and
/// 1 ranks.
TEST(PipeDreamJob, SyntheticDataAsItsOwnFilesSayIt) {
  const TemporaryFolder folder;
  for (const int machines : {4, 16}) {
    std::string list, replicas, all;
    for (int r = 0; r < machines; ++r) {
      list += std::string(r == 0 ? "" : ", ") + "'v40" + std::to_string(1 + r / 4) + ":" + std::to_string(r) +
              "'";
      all += (r == 0 ? "" : ", ") + std::to_string(r);
      if (r + 1 < machines) replicas += (r == 0 ? "" : ", ") + std::to_string(r);
    }
    const std::string dp = folder.write(
        "dp.json", R"({"module_to_stage_map": [0, 0], "stage_to_rank_map": {"0": [)" + all + "]}}");
    const std::string hybrid =
        folder.write("hybrid.json", R"({"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [)" +
                                        replicas + R"(], "1": [)" + std::to_string(machines - 1) + "]}}");
    Plan plan = uniform_plan("alexnet", {"a", "b"}, 2, 1, machines, ScheduleKind::PipeDream);
    plan.stages[0].ranks.clear();
    for (int r = 0; r + 1 < machines; ++r) plan.stages[0].ranks.emplace_back(r);
    plan.stages[1].ranks = {RankId(machines - 1)};
    const std::string planned = folder.write("plan.json", plan.to_json());
    const auto yaml = [&](const std::string& conf, const char* backend) {
      return "'log_directory': '" + folder.path() +
             "'\n'module': 'models.alexnet.gpus=" + std::to_string(machines) +
             "'\n'data_dir': '/no/such/imagenet/'\n'config_file': '" + conf +
             "'\n'container': 'image:19.05-py3'\n'machines': [" + list +
             "]\n'batch_size': 256\n'learning_rate': 0.01\n'weight_decay': 0.0005\n'epochs': 60\n"
             "'print_frequency': 100\n'verbose_frequency': 100\n'compress_activations': False\n"
             "'compress_in_gpu': False\n'learning_rate_policy': 'polynomial'\n"
             "'model_type': 'image_classification'\n'synthetic_data': True\n'distributed_backend': '" +
             backend + "'\n";
    };
    const Result<JobSpec> parallel = job(yaml(dp, "nccl"));
    ASSERT_TRUE(parallel) << to_string(parallel.problems());
    EXPECT_EQ(*parallel->find("data"), "synthetic");
    EXPECT_EQ(*parallel->find("replicas"), std::to_string(machines));
    const Result<JobSpec> pipeline = job(yaml(hybrid, "gloo"), {{"plan", planned}});
    ASSERT_TRUE(pipeline) << to_string(pipeline.problems());
    EXPECT_EQ(*pipeline->find("data"), "synthetic");
    EXPECT_EQ(pipeline->ranks, machines);
    // Without a plan of the same cut: equal numbers of layers in stages with the conf's ranks.
    const Result<JobSpec> by_conf = job(yaml(hybrid, "gloo"));
    ASSERT_TRUE(by_conf) << to_string(by_conf.problems());
    EXPECT_EQ(by_conf->ranks, machines);
  }
}

TEST(PipeDreamJob, DataParallelAndFlushing) {
  const TemporaryFolder folder;
  const std::string dp =
      folder.write("dp_conf.json", R"({"module_to_stage_map": [0, 0], "stage_to_rank_map": {"0": [0, 1]}})");
  const Result<JobSpec> parallel = job(pipedream_yaml(dp));
  ASSERT_TRUE(parallel) << to_string(parallel.problems());
  EXPECT_EQ(parallel->notes,
            std::vector<std::string>{
                "container has no effect: that image has PipeDream; --container names one that has millrace"})
      << "one stage has no cut";
  EXPECT_EQ(*parallel->find("replicas"), "2");
  EXPECT_EQ(*parallel->find("schedule"), "1f1b");
  EXPECT_EQ(*parallel->find("microbatches"), "2");
  const std::string mp = folder.write(
      "mp_conf.json", R"({"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0], "1": [1]}})");
  EXPECT_EQ(*job(pipedream_yaml(mp, "'no_input_pipelining': true\n"))->find("schedule"), "1f1b");
  EXPECT_EQ(*job(pipedream_yaml(mp, "'lr_warmup': true\n"))->find("warmup-epochs"), "5");
}

/// PipeDream's main case: one stage on most ranks, its rate per stage, its policy, Python's spelling.
TEST(PipeDreamJob, UnequalReplicas) {
  const TemporaryFolder folder;
  for (const int wide : {3, 15}) {
    std::string first, machines;
    for (int r = 0; r <= wide; ++r) {
      machines += std::string(r ? ", " : "") + "'localhost:" + std::to_string(r) + "'";
      if (r < wide) first += (r ? ", " : "") + std::to_string(r);
    }
    const std::string conf = folder.write("hybrid_conf.json",
                                          "{\"module_to_stage_map\": [0, 1, 1], \"stage_to_rank_map\": "
                                          "{\"0\": [" +
                                              first + "], \"1\": [" + std::to_string(wide) + "]}}");
    const std::string yaml =
        "'log_directory': '/logs'\n'module': 'models.alexnet.gpus=4'\n'data_dir': "
        "'/data'\n'config_file': '" +
        conf + "'\n'container': 'image:1'\n'machines': [" + machines +
        "]\n'batch_size': 256\n'learning_rate': 0.01\n'epochs': 90\n"
        "'learning_rate_policy': 'step'\n'model_type': 'image_classification'\n"
        "'distributed_backend': 'gloo'\n'synthetic_data': True\n";
    const Result<JobSpec> result = job(yaml);
    ASSERT_TRUE(result) << to_string(result.problems());
    EXPECT_EQ(result->ranks, wide + 1);
    EXPECT_EQ(result->stage_of_rank.front(), 0);
    EXPECT_EQ(result->stage_of_rank[wide], 1);
    const std::pair<const char*, std::string> expected[] = {
        {"stages", "2"},           {"replicas", std::to_string(wide) + ",1"},
        {"schedule", "pipedream"}, {"lr-by-replicas", "true"},
        {"lr-policy", "step"},     {"lr-step-epochs", "30"},
        {"data", "synthetic"}};
    for (const auto& [flag, value] : expected) {
      ASSERT_NE(result->find(flag), nullptr) << flag;
      EXPECT_EQ(*result->find(flag), value) << flag;
    }
    const Result<JobSpec> again = job(to_yaml(*result));
    ASSERT_TRUE(again) << to_string(again.problems()) << to_yaml(*result);
    EXPECT_EQ(again->ranks, wide + 1);
    EXPECT_EQ(*job(yaml + "'no_input_pipelining': True\n")->find("microbatches"), std::to_string(wide));
  }
  EXPECT_NE(problems_of("model: mlp\nstages: 2\nreplicas: '3,1,1'\n").find("has 3 numbers for 2 stages"),
            std::string::npos);
}

/// The files of its translation, as they are written: gnmt_12 and gnmt_large_16 list more machines than
/// ranks.
TEST(PipeDreamJob, Translation) {
  const TemporaryFolder folder;
  const auto yaml = [&](const std::string& model, int machines, const std::string& conf,
                        const std::string& extra) {
    std::string list;
    for (int r = 0; r < machines; ++r)
      list += (r ? ", 'v40" : "'v40") + std::to_string(1 + r / 4) + ":" + std::to_string(r) + "'";
    return "'log_directory': '/logs'\n'module': 'models." + model + ".gpus=" + std::to_string(machines) +
           "'\n'data_dir': '/data/wmt_ende/'\n'config_file': '" + conf +
           "'\n'container': 'image:1905'\n'machines': [" + list +
           "]\n'batch_size': 64\n'learning_rate': 0.0003\n'weight_decay': 0.000\n'epochs': "
           "10\n'print_frequency': "
           "100\n'verbose_frequency': 100\n'compress_activations': False\n'compress_in_gpu': False\n"
           "'learning_rate_policy': 'polynomial'\n'model_type': 'translation'\n" +
           extra;
  };
  const auto conf = [&](int stages) {
    std::string modules, ranks;
    for (int s = 0; s < stages; ++s) {
      modules += std::to_string(s) + ", ";
      ranks += (s ? ", \"" : "\"") + std::to_string(s) + "\": [" + std::to_string(s) + "]";
    }
    return folder.write("mp" + std::to_string(stages) + ".json",
                        "{\"module_to_stage_map\": [" + modules + std::to_string(stages - 1) +
                            "], \"stage_to_rank_map\": {" + ranks + "}}");
  };
  const std::string gloo = "'distributed_backend': 'gloo'\n";
  for (const std::string model : {"gnmt", "gnmt_large"}) {
    const Result<JobSpec> four = job(yaml(model, 4, conf(4), gloo));
    ASSERT_TRUE(four) << to_string(four.problems());
    const std::pair<const char*, std::string> expected[] = {
        {"model", model}, {"data", "/data/wmt_ende:en-de"}, {"stages", "4"},
        {"rule", "adam"}, {"schedule", "pipedream"},        {"lr-policy", "polynomial"},
        {"epochs", "10"}, {"lr-per-epoch", "true"}};
    for (const auto& [flag, value] : expected) {
      ASSERT_NE(four->find(flag), nullptr) << flag;
      EXPECT_EQ(*four->find(flag), value) << flag;
    }
  }
  EXPECT_NE(problems_of(yaml("gnmt", 12, conf(10), gloo)).find("leave out the last 2"), std::string::npos);
  EXPECT_NE(problems_of(yaml("gnmt_large", 16, conf(14), gloo)).find("machines lists 16 machines"),
            std::string::npos);
  EXPECT_NE(problems_of(yaml("gnmt", 4, conf(4), gloo + "'lr_warmup': True\n")).find("lr_warmup is of image"),
            std::string::npos);
  EXPECT_NE(problems_of(yaml("vgg16", 4, conf(4), gloo)).find("'translation' is not that of vgg16"),
            std::string::npos);
  folder.write("train.tok.clean.bpe.32000.en", "a\n");
  std::string here = yaml("gnmt", 4, conf(4), gloo);
  here.replace(here.find("/data/wmt_ende/"), 15, folder.path());
  EXPECT_NE(problems_of(here).find("millrace data text encode"), std::string::npos);
}

/// Four of the configurations that PipeDream ships cannot be run as they are.
TEST(PipeDreamJob, ConfsThatPipeDreamShipsBrokenAreRefusedClearly) {
  const TemporaryFolder folder;
  const auto problems = [&](const std::string& conf, int machines) {
    std::string list;
    for (int m = 0; m < machines; ++m)
      list += (m ? ", 'localhost:" : "'localhost:") + std::to_string(m) + "'";
    return problems_of("'log_directory': '/logs'\n'module': 'models.vgg16.gpus=4'\n'config_file': '" +
                       folder.write("conf.json", conf) + "'\n'machines': [" + list + "]\n");
  };
  struct Broken {
    const char* conf;
    int machines;
    std::vector<std::string> says;
  };
  for (const Broken& broken : {
           Broken{R"({module_to_stage_map: [0, 1, 1], "stage_to_rank_map": {"0": [0], "1": [1]}})",
                  2,
                  {"conf.json:1:2", "every key in double quotes"}},
           Broken{R"({"module_to_stage_map": [0, 0], "stage_to_rank_map": {"0": [0, 1, 2, 3, 4, 5]}})",
                  4,
                  {"machines lists 4 machines", "has 6 ranks", "list one machine for each rank"}},
           Broken{R"({"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1], "1": [2]}})",
                  2,
                  {"machines lists 2 machines", "has 3 ranks"}},
           Broken{R"({"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1], "1": [1]}})",
                  3,
                  {"ranks must be 0..2", "each rank in one stage"}},
           Broken{R"({"module_to_stage_map": [0, 1, 0], "stage_to_rank_map": {"0": [0], "1": [1]}})",
                  2,
                  {"the criterion (last module) must be in the last stage"}},
           Broken{R"({"module_to_stage_map": [0, 2], "stage_to_rank_map": {"0": [0], "1": [1]}})",
                  2,
                  {"a module is in stage 2, which has no ranks"}},
       }) {
    const std::string found = problems(broken.conf, broken.machines);
    for (const std::string& part : broken.says) EXPECT_NE(found.find(part), std::string::npos) << found;
  }
}

/// ResNet-50's confs were written by hand: each machine has ranks of several stages.
TEST(PipeDreamJob, SaysThatStagesAreNotMixedOnTheMachines) {
  const TemporaryFolder folder;
  const auto notes = [&](const std::string& ranks) {
    const std::string conf = folder.write(
        "conf.json", "{\"module_to_stage_map\": [0, 1, 1], \"stage_to_rank_map\": " + ranks + "}");
    const Result<JobSpec> spec =
        job("'log_directory': '/logs'\n'module': 'models.vgg16.gpus=4'\n'config_file': '" + conf +
            "'\n'machines': ['a:0', 'a:1', 'b:0', 'b:1']\n");
    EXPECT_TRUE(spec);
    std::string all;
    if (spec)
      for (const std::string& note : spec->notes) all += note + "\n";
    EXPECT_NE(all.find("the cut is another than PipeDream's"), std::string::npos) << all;
    return all;
  };
  EXPECT_NE(notes(R"({"0": [0, 2], "1": [1, 3]})").find("mixes the stages"), std::string::npos);
  EXPECT_EQ(notes(R"({"0": [0, 1], "1": [2, 3]})").find("mixes the stages"), std::string::npos);
}

TEST(PipeDreamJob, SaysWhatItCannotDo) {
  const TemporaryFolder folder;
  const std::string hybrid = folder.write(
      "h.json", R"({"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0, 1], "1": [2]}})");
  const std::string three = "'log_directory': '/logs'\n'module': 'models.mlp.gpus=3'\n'config_file': '" +
                            hybrid + "'\n'machines': ['a:0', 'a:1', 'a:2']\n";
  EXPECT_EQ(problems_of(three), "");
  const std::string two = "'log_directory': '/logs'\n'module': 'models.mlp.gpus=3'\n'config_file': '" +
                          hybrid + "'\n'machines': ['a:0', 'a:1']\n";
  EXPECT_NE(problems_of(two).find("machines lists 2 machines"), std::string::npos) << problems_of(two);
  Plan plan = uniform_plan("mlp", {"a", "b"}, 1, 3, 3, ScheduleKind::OneFOneB);
  ASSERT_TRUE(plan.save(folder.path("plan.json")));
  EXPECT_EQ(problems_of(three, {{"plan", folder.path("plan.json")}}), "");
  const std::string all =
      problems_of(pipedream_yaml("/no/conf.json", "'macrobatch': true\n'batchsize': 3\n"));
  for (const char* expected : {"/no/conf.json", "macrobatch is not supported", "did you mean 'batch_size'"})
    EXPECT_NE(all.find(expected), std::string::npos) << expected << "\n" << all;
}

}  // namespace
}  // namespace millrace
