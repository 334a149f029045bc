// `millrace checkpoint` on the folders of real runs.
#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/base/run_folder.h"
#include "runtime/saved/checkpoint_folder.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

constexpr const char* kTrainSmall =
    "train --model mlp --width 16 --threads 1 --deterministic --no-evaluation --momentum 0.9 ";

class CheckpointCommand : public Jobs {
 protected:
  void train(const std::string& arguments) {
    const Ran ran = run(kTrainSmall + arguments);
    ASSERT_EQ(ran.code, 0) << ran.output;
  }
  void expect(const std::string& arguments, int code, const std::vector<std::string>& parts) {
    const Ran ran = run("checkpoint " + arguments);
    EXPECT_EQ(ran.code, code) << arguments << "\n" << ran.output;
    for (const std::string& part : parts)
      EXPECT_NE(ran.output.find(part), std::string::npos) << part << "\n" << ran.output;
  }
  Json json(const std::string& arguments) {
    Result<Json> answer = parse_json(run("checkpoint " + arguments + " --format json").output, arguments);
    EXPECT_TRUE(answer) << arguments;
    return answer ? *answer : Json();
  }
  /// Steps of the run's own branch, as names.
  std::vector<std::string> steps(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / folder)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-")) names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }
};

TEST_F(CheckpointCommand, ListsVerifiesAndPrunes) {
  train("--stages 2 --steps 12 --checkpoint-every 2 --keep-checkpoints 0 --output-dir out");
  expect("verify out", 0, {"out/checkpoints/step-00000012: valid"});
  // A branch that is left, a damaged byte, a shard that is gone, a save that did not end.
  train(
      "--stages 2 --steps 11 --checkpoint-every 1 --keep-checkpoints 0 --output-dir out "
      "--resume out/checkpoints/step-00000008");
  std::string shard = bytes("out/checkpoints/step-00000011/stage0.safetensors");
  shard.back() ^= 1;
  write("out/checkpoints/step-00000011/stage0.safetensors", shard);
  fs::remove(folder_ / "out/checkpoints/step-00000006/stage1.safetensors");
  fs::create_directories(folder_ / "out/checkpoints/step-00000013.tmp.feed");
  const Json list = json("ls out");
  ASSERT_EQ(list.size(), 10u);  // 2, 4, 6, 8, 9, 10, 11, one unfinished; 10 and 12 of the other branch
  int damaged = 0;
  for (const Json& one : list.items()) {
    const std::string folder = one.find("folder")->as_string(), state = one.find("state")->as_string();
    const std::string branch = one.find("branch")->as_string();
    EXPECT_EQ(branch, folder.find("abandoned-1") == std::string::npos ? "" : "abandoned-1");
    EXPECT_EQ(state == "unfinished", one.find("step")->as_int() == 13) << folder;
    if (state == "damaged") ++damaged;
    EXPECT_EQ(one.find("latest")->as_bool(),
              folder.ends_with(branch.empty() ? "step-00000011" : "step-00000012"))
        << folder;
  }
  EXPECT_EQ(damaged, 1) << "the flipped bit does not show in the sizes";
  expect("ls out", 0, {"step-00000006", "is missing", "unfinished", "latest"});
  expect("verify out", 4,
         {"step-00000011: damaged", "XXH3-128", "step-00000006: damaged", "step-00000010: valid",
          "abandoned-1/step-00000012: valid"});
  expect("verify out/checkpoints/step-00000010", 0, {"valid"});
  expect("verify out/checkpoints/step-00000011", 4, {"damaged"});
  // What is deleted is what the dry run says; the newest valid one is step 10.
  expect("prune out --keep-last 1 --keep-every 4 --dry-run", 0,
         {"would delete out/checkpoints/step-00000009", "would delete out/checkpoints/step-00000002",
          "2 of 10 checkpoints"});
  EXPECT_EQ(steps("out/checkpoints").size(), 8u);
  expect("prune out --keep-last 1 --keep-every 4", 0, {"deleted out/checkpoints/step-00000009"});
  EXPECT_EQ(steps("out/checkpoints"),
            (std::vector<std::string>{"step-00000004", "step-00000006", "step-00000008", "step-00000010",
                                      "step-00000011", "step-00000013.tmp.feed"}));
  expect("prune out --keep-last 1 --damaged --abandoned", 0, {"abandoned-1/step-00000012"});
  EXPECT_EQ(steps("out/checkpoints"), std::vector<std::string>{"step-00000010"});
  EXPECT_FALSE(fs::exists(folder_ / "out/checkpoints/abandoned-1"));
  const Result<Latest> latest = read_latest(folder_ / "out/checkpoints");
  ASSERT_TRUE(latest) << to_string(latest.problems());
  EXPECT_EQ(latest->step, "step-00000010");
  train("--stages 2 --steps 12 --output-dir out --resume out");
}

TEST_F(CheckpointCommand, PruneLeavesTheBestAndRunsThatGoOn) {
  const Ran ran =
      run("train --model mlp --width 16 --threads 1 --lr 0.5 --evaluate-every 2 --keep-best loss --steps 16 "
          "--checkpoint-every 2 --keep-checkpoints 0 --output-dir out");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const Result<Json> summary = read_json((folder_ / "out/summary.json").string());
  ASSERT_TRUE(summary);
  const std::int64_t best = summary->find("best")->find("loss")->find("step")->as_int();
  ASSERT_LT(best, 16) << "the best is not the last";
  expect("ls out", 0, {"best loss", "out/best/" + step_name(best)});
  {
    const auto other = RunLock::acquire(folder_ / "out", "feed");
    ASSERT_TRUE(other);
    expect("prune out --keep-last 1", 2, {"in use by run feed"});
    EXPECT_EQ(steps("out/checkpoints").size(), 8u);
  }
  expect("prune out --keep-last 1", 0, {"deleted"});
  EXPECT_EQ(steps("out/checkpoints"), (std::vector<std::string>{step_name(best), step_name(16)}));
  EXPECT_EQ(steps("out/best"), std::vector<std::string>{step_name(best)});
  write("out/checkpoints/" + step_name(best) + "/manifest.json", "{}");
  write("out/checkpoints/" + step_name(16) + "/manifest.json", "{}");
  expect("prune out --keep-last 1 --damaged", 4, {"no valid checkpoint", "nothing is deleted"});
  EXPECT_EQ(steps("out/checkpoints").size(), 2u);
}

TEST_F(CheckpointCommand, ExportsWhatSaveWeightsWrites) {
  train("--stages 2 --steps 4 --checkpoint-at-end --output-dir out --save-weights w.safetensors");
  expect("export out x.safetensors", 0, {"x.safetensors: ", "step-00000004"});
  EXPECT_TRUE(bytes("x.safetensors") == bytes("w.safetensors"));
  expect("export out x.safetensors", 2, {"is there already", "--overwrite"});
  expect("export out x.safetensors --ema --overwrite", 4, {"no averages"});
  EXPECT_TRUE(bytes("x.safetensors") == bytes("w.safetensors"));
  expect("export out all.safetensors --all", 0, {"all.safetensors"});
  expect("diff all.safetensors out", 0, {" 0 differ"});
  expect("diff w.safetensors out", 0, {"rule/", "only in B"});
  expect("diff w.safetensors out --weights", 0, {" 0 differ"});
  // Averages are what was evaluated, and what --save-weights writes.
  train("--stages 2 --steps 4 --ema 0.9 --checkpoint-at-end --output-dir ema --save-weights e.safetensors");
  expect("export ema averages.safetensors --ema", 0, {});
  EXPECT_TRUE(bytes("averages.safetensors") == bytes("e.safetensors"));
  expect("diff averages.safetensors ema --weights", 0, {"of 16", "|a-b| / |a|"});
  expect("export missing x", 2, {"missing", "is not a checkpoint folder"});
}

TEST_F(CheckpointCommand, ImportsWhatARunGoesOnFrom) {
  train("--stages 2 --steps 4 --checkpoint-at-end --output-dir out");
  train("--stages 2 --steps 8 --output-dir whole --save-weights whole.safetensors --resume out");
  expect("export out w.safetensors", 0, {});
  fs::create_directories(folder_ /
                         "next/checkpoints/step-00000004.tmp.feed");  // of an import that was killed
  expect("import w.safetensors next --like out", 0, {"next/checkpoints/step-00000004", "step 4"});
  EXPECT_EQ(steps("next/checkpoints"), std::vector<std::string>{step_name(4)});
  expect("verify next", 0, {"valid"});
  expect("diff next out", 0, {" 0 differ"});
  // Another plan goes on from it, as from the checkpoint that it is like.
  train("--stages 2 --steps 8 --output-dir rest --save-weights rest.safetensors --resume next");
  EXPECT_TRUE(bytes("rest.safetensors") == bytes("whole.safetensors"));
  train("--stages 3 --steps 0 --seed 9 --save-weights from.safetensors --init-from next");
  EXPECT_TRUE(bytes("from.safetensors") == bytes("w.safetensors"));
  expect("import w.safetensors start --model mlp", 0, {"step 0"});
  train("--stages 1 --steps 0 --seed 9 --save-weights from.safetensors --init-from start");
  EXPECT_TRUE(bytes("from.safetensors") == bytes("w.safetensors"));
  expect("import out started --model mlp", 0, {"step 0"});  // the state of the rule is left out
  expect("diff started w.safetensors", 0, {" 0 differ"});
  // What does not fit.
  expect("import w.safetensors next --like out", 2, {"next", "an earlier run"});
  expect("import w.safetensors out --like out --overwrite", 2, {"would delete", "--like"});
  expect("import out/checkpoints/step-00000004/stage0.safetensors out --model mlp --overwrite", 2,
         {"would delete", "which is imported"});
  expect("import w.safetensors other", 2, {"--like", "--model"});
  {
    const auto other = RunLock::acquire(folder_ / "next", "feed");
    ASSERT_TRUE(other);
    expect("import w.safetensors next --like out --overwrite", 2, {"next", "in use by run feed"});
  }
  expect("verify next", 0, {"valid"});
  const std::string pytorch = MILLRACE_SOURCE_DIR "/tests/driver/state_dicts/";
  expect("import " + pytorch + "ordered.pt other --like out", 3,
         {"has no tensor", " more. Hint: the weights of ", " more are no tensors of "});
  expect("import " + pytorch + "module.pt other --model mlp", 3, {"Sequential", "refused"});
  EXPECT_FALSE(fs::exists(folder_ / "other"));
  expect("import " + pytorch + "ordered.pt pt --model linear", 0, {"9 tensors"});
  expect("diff pt " + pytorch + "ordered.pt", 0, {"9 tensors are equal, 0 differ"});
  // Dicts in a dict, and folders of torch.distributed.checkpoint.
  expect("import " + pytorch + "dcp-nested other --model linear", 3, {"model (9)", "--key model"});
  expect("import " + pytorch + "dcp-nested dcp --model linear --key model", 0, {"9 tensors"});
  expect("import " + pytorch + "training.pt nested --model linear --key model", 0, {"9 tensors"});
  expect("diff dcp nested", 0, {"9 tensors are equal, 0 differ"});
}

/// Kinds of files, types and wrappers: what an import takes, every command takes, and the numbers are the
/// same.
TEST_F(CheckpointCommand, ImportsEveryKindTypeAndWrapperThatPyTorchWrites) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python || !*python) GTEST_SKIP() << "MILLRACE_REFERENCE_PYTHON is not set";
  train("--stages 1 --steps 2 --save-weights trained.safetensors");
  // Weights that every type holds exactly, so that all predictions are the same bits.
  write(
      "variants.py",
      "import numpy, safetensors.torch, torch\n"
      "plain = {n: torch.round(t * 64) / 64 for n, t in "
      "safetensors.torch.load_file('trained.safetensors').items()}\n"
      "safetensors.torch.save_file(plain, 'plain.safetensors')\n"
      "numpy.save('x.npy', numpy.linspace(-1, 1, 32, dtype=numpy.float32).reshape(2, 16))\n"
      "for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):\n"
      "    for prefix in ('', 'module.', 'model.', '_orig_mod.', 'module._orig_mod.', '_orig_mod.model.'):\n"
      "        made = {prefix + n: t.to(dtype).contiguous() for n, t in plain.items()}\n"
      "        name = str(dtype)[6:] + '-' + prefix + '-'\n"
      "        safetensors.torch.save_file(made, name + 'kind.safetensors')\n"
      "        torch.save(made, name + 'kind.pt')\n"
      "        torch.save(made, name + 'kind.pth', _use_new_zipfile_serialization=False)\n"
      "wide = {n: t.double() for n, t in plain.items()}\n"
      "first = sorted(wide)[0]\n"
      "wide[first] = wide[first] * (1 + 1e-12)\n"
      "safetensors.torch.save_file(wide, 'wide.safetensors')\n"
      "wide[first][0] = 1e300\n"
      "safetensors.torch.save_file(wide, 'huge.safetensors')\n"
      "torch.save({n: (t * 64).to(torch.int8) for n, t in plain.items()}, 'quantised.pt')\n");
  ASSERT_EQ(std::system(("cd " + folder_.string() + " && " + python + " variants.py").c_str()), 0);
  const auto predicted = [&](const std::string& weights) {
    fs::remove(folder_ / "y.npy");
    const Ran ran = run("predict --model mlp --width 16 --weights " + weights + " --outputs y.npy x.npy");
    EXPECT_EQ(ran.code, 0) << weights << "\n" << ran.output;
    return bytes("y.npy");
  };
  const std::string wanted = predicted("plain.safetensors");
  int variant = 0;
  for (const std::string type : {"float32", "bfloat16", "float16", "float64"}) {
    for (const std::string prefix :
         {"", "module.", "model.", "_orig_mod.", "module._orig_mod.", "_orig_mod.model."}) {
      for (const std::string kind : {"kind.safetensors", "kind.pt", "kind.pth"}) {
        const std::string file = type + "-" + prefix + "-" + kind;
        std::vector<std::string> said{"step 0"};
        if (!prefix.empty()) said.emplace_back("names without ");
        if (type == "bfloat16" || type == "float16") said.emplace_back("exactly");
        if (type == "float64") said.emplace_back("rounded");
        expect("import " + file + " start --model mlp --overwrite", 0, said);
        expect("diff start plain.safetensors", 0, {" 0 differ"});
        if (variant++ % 17 != 0) continue;  // a prediction takes seconds: one of each type, of all kinds
        EXPECT_EQ(predicted("start"), wanted) << file;
        if (kind == "kind.safetensors") {
          EXPECT_EQ(predicted(file), wanted) << file;
        }
      }
    }
  }
  // As --like, into the names and types of a run of its own.
  train("--stages 2 --steps 4 --checkpoint-at-end --output-dir out");
  expect("import bfloat16-module._orig_mod.-kind.pt next --like out", 0, {"step 4"});
  expect("diff next plain.safetensors --weights", 0, {" 0 differ"});
  train("--stages 2 --steps 6 --output-dir rest --resume next");
  for (const char* command : {"train --steps 1 --init-from ", "evaluate --weights "}) {
    const Ran ran =
        run(std::string(command) + "float64-model.-kind.safetensors --model mlp --width 16 --threads 1");
    EXPECT_EQ(ran.code, 0) << ran.output;
    EXPECT_NE(ran.output.find("are float64 and were rounded to float32"), std::string::npos) << ran.output;
  }
  // What no command would take is refused at the import.
  EXPECT_EQ(predicted("wide.safetensors"), wanted) << "the difference is less than a bit";
  expect("import huge.safetensors bad --model mlp", 3, {"1e+300", "too large for F32"});
  expect("import quantised.pt bad --model mlp", 3, {"is of I8", "quantised"});
  EXPECT_EQ(run("predict --model mlp --width 16 --weights huge.safetensors x.npy").code, 4);
}

TEST_F(CheckpointCommand, SaysHowFarTwoCheckpointsAreApart) {
  train("--stages 2 --steps 4 --checkpoint-every 2 --keep-checkpoints 0 --output-dir out");
  const Json diff = json("diff out/checkpoints/step-00000002 out");
  EXPECT_EQ(diff.find("equal")->as_int(), 0);
  ASSERT_GT(diff.find("differences")->size(), 0u);
  for (const Json& one : diff.find("differences")->items()) {
    EXPECT_GT(one.find("different")->as_int(), 0);
    EXPECT_GT(one.find("largest")->as_double(), 0);
  }
  expect("diff out missing", 2, {"missing", "is not there"});
}

}  // namespace
}  // namespace millrace
