// Trains an archive to weights that Python can load: profile, plan, launch, the user's own tensors.
#include <ATen/ops/equal.h>

#include "runtime/base/json.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/exported/archives.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class ExportedJobs : public Jobs {
 protected:
  void take(const std::string& name) {
    fs::copy_file(folder_with(name) / (name + ".pt2"), folder_ / "m.pt2",
                  fs::copy_options::overwrite_existing);
  }
  /// Returns what a script with PyTorch prints about files that were written here.
  std::string python(const std::string& arguments) {
    const std::string log = (folder_ / "python.log").string();
    const int status = run_reference(arguments, log);
    const auto text = read_file(log);
    return (status == 0 ? "" : "failed: ") + (text ? *text : "");
  }
};

TEST_F(ExportedJobs, ProfilePlanLaunchAndBackToPython) {
  MILLRACE_NEEDS_REFERENCE();
  take("bert_dropout");
  const Ran profile =
      run("profile --model m.pt2 --microbatch 2 --repetitions 1 --blocks 1 --warmup 1 --out profile.json");
  ASSERT_EQ(profile.code, 0) << profile.output;
  EXPECT_NE(profile.output.find("bert.encoder.layer.1"), std::string::npos) << profile.output;
  const Ran plan = run(
      "plan --profile profile.json --stages 2 --straight --microbatches 4 --schedule 1f1b --out plan.json");
  ASSERT_EQ(plan.code, 0) << plan.output;
  write("job.yaml",
        "model: ./m.pt2\nplan: plan.json\nmicrobatch: 2\ndata: synthetic:64\nsteps: 4\nlr: "
        "0.05\nno-evaluation: true\n"
        "save-weights: out/trained.pt2\noutput-dir: run\n");
  const Ran launch = run("launch job.yaml");
  ASSERT_EQ(launch.code, 0) << launch.output;
  const Ran one =
      run("train --model m.pt2 --microbatch 2 --microbatches 4 --data synthetic:64 --steps 4 --lr 0.05 "
          "--no-evaluation --save-weights one.safetensors");
  ASSERT_EQ(one.code, 0) << one.output;
  const Ran packed =
      run("train --model m.pt2 --microbatch 2 --microbatches 4 --data synthetic:64 --steps 4 --lr 0.05 "
          "--no-evaluation --save-weights one.pt2");
  ASSERT_EQ(packed.code, 0) << packed.output;
  EXPECT_EQ(bytes("one.pt2"), bytes("out/trained.pt2"));
  EXPECT_FALSE(fs::exists(folder_ / "one.pt2.safetensors"));
  const std::string found = python("--check bert_dropout " + (folder_ / "one.safetensors").string() + " " +
                                   (folder_ / "one.pt2").string());
  EXPECT_NE(found.find("strict load: ok"), std::string::npos) << found;
  EXPECT_NE(found.find("archive: ok"), std::string::npos) << found;
  // A trained archive trains on.
  const Ran again = run("train --model one.pt2 --microbatch 2 --data synthetic:64 --steps 1 --no-evaluation");
  EXPECT_EQ(again.code, 0) << again.output;
}

TEST_F(ExportedJobs, NormsOfTheWholeModelAndItsOwnWeightsToStartFrom) {
  MILLRACE_NEEDS_REFERENCE();
  take("bert_dropout");
  const std::string common =
      "train --model m.pt2 --microbatch 2 --microbatches 4 --data synthetic:64 --no-evaluation --lr 0.01 ";
  const Ran one = run(common + "--steps 2 --rule lamb --clip-norm 0.1 --save-weights one.safetensors");
  ASSERT_EQ(one.code, 0) << one.output;
  const Ran two = run(common +
                      "--steps 2 --rule lamb --clip-norm 0.1 --stages 2 --save-weights two.safetensors "
                      "--output-dir out --checkpoint-at-end");
  ASSERT_EQ(two.code, 0) << two.output;
  EXPECT_EQ(bytes("one.safetensors"), bytes("two.safetensors"));
  const Ran exported = run("checkpoint export out exported.safetensors");
  ASSERT_EQ(exported.code, 0) << exported.output;
  EXPECT_EQ(bytes("exported.safetensors"), bytes("one.safetensors"));
  // Tied tensors are in the file under each of their names, and buffers of any type.
  const Ran on = run(common + "--steps 1 --init-from one.safetensors --save-weights on.safetensors");
  ASSERT_EQ(on.code, 0) << on.output;
  // safetensors' save_model writes a tensor of several names under one of them, whichever that is.
  const auto file = SafetensorsFile::open((folder_ / "one.safetensors").string());
  ASSERT_TRUE(file);
  NamedTensors once;
  for (const std::string& name : file->names()) {
    const at::Tensor tensor = file->tensor(name);
    const auto same = [&](const auto& other) {
      return tensor.numel() > 64 && at::equal(other.second, tensor);
    };
    std::erase_if(once, same);
    once.emplace_back(name, tensor);
  }
  EXPECT_LT(once.size(), file->names().size());
  write_safetensors((folder_ / "once.safetensors").string(), once);
  const Ran by_one = run(common + "--steps 1 --init-from once.safetensors --save-weights by_one.safetensors");
  ASSERT_EQ(by_one.code, 0) << by_one.output;
  EXPECT_EQ(bytes("on.safetensors"), bytes("by_one.safetensors"));
  const Ran afresh = run(common + "--steps 1 --save-weights afresh.safetensors");
  ASSERT_EQ(afresh.code, 0) << afresh.output;
  EXPECT_NE(bytes("on.safetensors"), bytes("afresh.safetensors"));
}

TEST_F(ExportedJobs, ParametersThatDoNotTrainAreNamedOnce) {
  MILLRACE_NEEDS_REFERENCE();
  take("written");
  const auto times = [](const std::string& text, const std::string& part) {
    int count = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
  };
  const std::string zero = "zero in all elements of silent.weight, silent.bias:",
                    idle = "no path leads to the loss from idle.weight, idle.bias: they keep their values",
                    common =
                        "train --model m.pt2 --microbatch 2 --microbatches 4 --data synthetic:64 --steps 3 "
                        "--no-evaluation ";
  const std::string jobs = "--fused --kernels loop --lr 0.1 0.2 --arrays ";
  for (const std::string& how : {std::string(), std::string("--stages 2 --granularity 64"), jobs + "1"}) {
    const Ran ran = run(common + how);
    ASSERT_EQ(ran.code, 0) << ran.output;
    EXPECT_EQ(times(ran.output, zero), 1) << how << ran.output;
    EXPECT_EQ(times(ran.output, idle), 1) << how << ran.output;
  }
  // Each array speaks of its own jobs.
  const Ran arrays = run(common + jobs + "2");
  ASSERT_EQ(arrays.code, 0) << arrays.output;
  for (const std::string job : {"0", "1"}) {
    const std::string of_job = " (job " + job + ")";
    EXPECT_EQ(times(arrays.output, "of silent.weight" + of_job + ", silent.bias" + of_job + ":"), 1)
        << arrays.output;
  }
  EXPECT_EQ(times(arrays.output, idle), 1) << arrays.output;
  take("mlp");
  const Ran whole = run(common);
  ASSERT_EQ(whole.code, 0) << whole.output;
  EXPECT_EQ(times(whole.output, "WARN"), 0) << whole.output;
}

TEST_F(ExportedJobs, AnArrayOfThemTrainsAsEachByItself) {
  MILLRACE_NEEDS_REFERENCE();
  take("bert_dropout");
  const std::string common =
      "train --model m.pt2 --microbatch 2 --microbatches 2 --data synthetic:64 --steps 2 --no-evaluation "
      "--data-seed 5 ";
  const Ran array = run(
      common + "--fused --kernels loop --lr 0.01 0.02 --seed 1 2 --stages 2 --save-weights a.safetensors");
  ASSERT_EQ(array.code, 0) << array.output;
  for (const std::string job : {"0", "1"}) {
    const Ran own = run(common + (job == "0" ? "--lr 0.01 --seed 1" : "--lr 0.02 --seed 2") +
                        " --save-weights own" + job + ".safetensors");
    ASSERT_EQ(own.code, 0) << own.output;
    EXPECT_TRUE(bytes("own" + job + ".safetensors") == bytes("a.job" + job + ".safetensors")) << job;
  }
}

TEST_F(ExportedJobs, TheUsersTensorsAreRead) {
  MILLRACE_NEEDS_REFERENCE();
  take("lstm");
  ASSERT_EQ(python("--arrays lstm " + (folder_ / "d.npz").string()), "");
  const std::string common =
      "train --model m.pt2 --microbatch 4 --microbatches 2 --steps 3 --no-evaluation --data arrays:";
  const Ran ran = run(common + "d.npz");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const Ran tested =
      run("train --model m.pt2 --microbatch 4 --microbatches 2 --steps 3 --data arrays:d.npz,d.npz");
  ASSERT_EQ(tested.code, 0) << tested.output;
  EXPECT_NE(tested.output.find("evaluation: loss"), std::string::npos) << tested.output;
  const Ran absent = run(common + "nowhere.npz");
  EXPECT_EQ(absent.code, 3) << absent.output;
  ASSERT_EQ(python("--arrays mlp " + (folder_ / "other.npz").string()), "");
  const Ran other = run(common + "other.npz");
  EXPECT_EQ(other.code, 3) << other.output;
  EXPECT_NE(other.output.find("has no array tokens; it has x.npy"), std::string::npos) << other.output;
}

/// Each sample has another number of labels that are not ignored, and the last one has none. With 8 x 1 the
/// loss is PyTorch's, as the model computes it.
class IgnoredLabels : public ExportedJobs {
 protected:
  /// Writes d.npz for the model `kind`, and m.pt2 unless it is one of the archives. Several kinds, "a,b", get
  /// files of their names.
  void make(const std::string& kind, const std::string& names) {
    if (kind == "lstm" || kind == "llama") take(kind);
    write("make.py", R"(
import numpy, sys, torch

class Model(torch.nn.Module):
    def __init__(self, kind, of_classes):
        super().__init__()
        self.kind, self.of_classes = kind, of_classes
        self.a = torch.nn.Linear(12, 16) if of_classes else torch.nn.Embedding(50, 16)
        self.b = torch.nn.Linear(16, 4 if of_classes else 50)
    def forward(self, x, labels):
        kind, cross_entropy = self.kind, torch.nn.functional.cross_entropy
        scores = self.b(self.a(x).relu())
        if self.of_classes: return cross_entropy(scores, labels, ignore_index=-1 if kind == "classes" else 0)
        if kind == "rolled": labels = labels.roll(-1, 1)
        if kind == "moved": labels = torch.cat([labels[:, 1:], x[:, :1]], 1)
        if kind == "masked": labels = x.masked_fill(labels < 0, -100)
        if kind == "constant": labels = torch.where(labels < 0, torch.tensor(-100), x)
        ignored = 0 if kind == "padded" else -100
        return cross_entropy(scores.flatten(0, 1)[:-1], labels.flatten()[1:], ignore_index=ignored)

kinds, names = sys.argv[1].split(","), sys.argv[2:]
for kind in kinds:
    of_classes = kind in ("classes", "class 0")
    r = numpy.random.default_rng(1)
    x, y = r.integers(0, 50, (8, 9)), r.integers(0, 50, (8, 9))
    for i in range(8): y[i, 9 - i:] = -100
    y[7] = -100
    if kind == "padded": y[y < 0] = 0
    if of_classes:
        x, y = r.normal(size=(8, 12)).astype("f4"), numpy.array([0, 3, -1, 1, -1, -1, 2, 3])
    one = len(kinds) == 1
    if kind not in ("lstm", "llama"):
        rows = {0: torch.export.Dim.DYNAMIC}
        model = torch.export.export(Model(kind, of_classes), (torch.tensor(x), torch.tensor(y)), dynamic_shapes=(rows, rows))
        torch.export.save(model, "m.pt2" if one else kind + ".pt2")
    numpy.savez("d.npz" if one else kind + ".npz", **dict(zip(names, (x, y))))
)");
    const std::string line = "cd " + folder_.string() + " && OMP_NUM_THREADS=1 " + reference_python() +
                             " make.py '" + kind + "' " + names + " >log 2>&1";
    ASSERT_EQ(std::system(line.c_str()), 0) << bytes("log");
  }
};

TEST_F(IgnoredLabels, DoNotTieTheLossToTheMicrobatches) {
  MILLRACE_NEEDS_REFERENCE();
  struct Case {
    const char *name, *names, *head, *cut, *data = "arrays:d.npz,d.npz";
  };
  for (const Case& one :
       {Case{"lstm", "tokens labels", "auto", "--microbatch 2 --microbatches 4 --replicas 2"},
        {"llama", "input_ids labels", "auto", "--microbatch 1 --microbatches 8 --stages 2 --schedule zb-h1"},
        {"classes", "x labels", "auto", "--microbatch 4 --microbatches 2"},
        {"classes", "x labels", "cross-entropy", "--microbatch 1 --microbatches 8 --stages 2"},
        {"class 0", "x labels", "cross-entropy", "--microbatch 2 --microbatches 4", "synthetic:32"}}) {
    make(one.name, one.names);
    const auto losses = [&](const std::string& more) {
      const Ran ran =
          run("train --model m.pt2 --steps 3 --lr 0.05 --evaluate-every 3 --output-dir run --data " +
              std::string(one.data) + " --head " + one.head + " " + more);
      EXPECT_EQ(ran.code, 0) << one.name << " " << more << "\n" << ran.output;
      const auto summary = parse_json(bytes("run/summary.json"), "summary.json");
      std::vector<double> all;
      for (const Json& loss : summary->find("losses")->items()) all.push_back(loss.as_double());
      all.push_back(summary->find("evaluations")->items()[0].find("loss")->as_double());
      fs::remove_all(folder_ / "run");
      return all;
    };
    const std::vector<double> joint = losses("--microbatch 8 --microbatches 1");
    const std::vector<double> cut = losses(one.cut);
    for (std::size_t i = 0; i < joint.size(); ++i)
      EXPECT_NEAR(cut[i], joint[i], 2e-5 * joint[i]) << one.name << " " << one.head << " " << i;
  }
  const Ran mixed =
      run("train --model m.pt2 --head cross-entropy --data arrays:d.npz --steps 1 --augment mixup");
  EXPECT_EQ(mixed.code, 2) << mixed.output;
  EXPECT_NE(mixed.output.find("the loss of m.pt2 ignores class 0"), std::string::npos) << mixed.output;
}

/// Jobs of an array that read samples in orders of their own: each has microbatches of other weights.
TEST_F(IgnoredLabels, AreCountedByEachJobOfAnArray) {
  MILLRACE_NEEDS_REFERENCE();
  make("classes", "x labels");
  const std::string common =
      "train --model m.pt2 --microbatch 2 --microbatches 2 --data arrays:d.npz --steps 4 "
      "--no-evaluation --head cross-entropy ";
  for (const std::string kernels : {"loop", "fused"}) {
    const Ran array =
        run(common + "--fused --lr 0.1 0.2 --seed 1 2 --save-weights a.safetensors --kernels " + kernels);
    ASSERT_EQ(array.code, 0) << array.output;
    for (const std::string job : {"0", "1"}) {
      const Ran own = run(common + (job == "0" ? "--lr 0.1 --seed 1" : "--lr 0.2 --seed 2") +
                          " --save-weights own.safetensors");
      ASSERT_EQ(own.code, 0) << own.output;
      EXPECT_TRUE(bytes("own.safetensors") == bytes("a.job" + job + ".safetensors")) << kernels << " " << job;
    }
  }
}

/// The shift crosses samples, so that how many labels of a sample count depends on its neighbours.
TEST_F(IgnoredLabels, ThatCannotBeCountedAreWarnedOf) {
  MILLRACE_NEEDS_REFERENCE();
  const std::string said = ", and its graph does not say how many count";
  make("shifted,padded,rolled,moved,masked,constant", "x labels");
  for (const auto& [kind, which] : {std::pair<std::string, std::string>{"shifted", "-100 in labels"},
                                    {"padded", "0 in labels"},
                                    {"rolled", "-100 in labels"},
                                    {"moved", "-100 in labels"},
                                    {"masked", "-100 that its graph makes"},
                                    {"constant", "-100 that its graph makes"}}) {
    const Ran ran = run("train --model " + kind + ".pt2 --data arrays:" + kind +
                        ".npz --microbatch 2 --microbatches 4 --steps 1 --no-evaluation --dry-run");
    EXPECT_EQ(ran.code, 0) << ran.output;
    EXPECT_NE(ran.output.find("the labels of " + which + said), std::string::npos) << kind << "\n"
                                                                                   << ran.output;
    EXPECT_EQ(ran.output.find(said), ran.output.rfind(said)) << ran.output;
  }
}

/// Inputs that are called as those of our models over text are tensors nevertheless.
TEST_F(ExportedJobs, NamesOfInputsDoNotDecideTheirData) {
  MILLRACE_NEEDS_REFERENCE();
  const std::string common = "train --model m.pt2 --microbatch 2 --microbatches 2 --steps 2 ";
  for (const char* name : {"lstm", "translator"}) {
    take(name);
    const Ran ran = run(common + "--data synthetic:64");
    EXPECT_EQ(ran.code, 0) << name << "\n" << ran.output;
    EXPECT_NE(ran.output.find("evaluation: loss"), std::string::npos) << ran.output;
    const Ran folder = run(common + "--data elsewhere:de-en");
    EXPECT_EQ(folder.code, 3) << folder.output;
    EXPECT_NE(folder.output.find("--data arrays:FILE.npz with these arrays, or synthetic"), std::string::npos)
        << folder.output;
  }
}

// scripts/benchmark gpt2-curve does 300 steps on WikiText-2; here the text is one that is at hand.
TEST_F(ExportedJobs, Gpt2LearnsAlongPythonsCurve) {
  MILLRACE_NEEDS_REFERENCE();
  const std::string log = (folder_ / "curve.log").string(), words = (folder_ / "words.txt").string(),
                    source = MILLRACE_SOURCE_DIR;
  const int status =
      std::system(("cat " + source + "/docs/*.md >" + words + " && OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 " +
                   reference_python() + " " + source +
                   "/tests/reference/gpt2_wikitext.py --millrace " MILLRACE_BIN_DIR "/millrace --text " +
                   words + " --steps 12 >" + log + " 2>&1")
                      .c_str());
  const auto text = read_file(log);
  ASSERT_TRUE(text);
  EXPECT_EQ(status, 0) << *text;
  EXPECT_NE(text->find("apart over 12 steps"), std::string::npos) << *text;
}

TEST_F(ExportedJobs, WrongUseIsRefusedWithExitCodeTwo) {
  MILLRACE_NEEDS_REFERENCE();
  take("frozen_batch");
  const Ran other = run("train --model m.pt2 --microbatch 8 --steps 1 --data synthetic:64");
  EXPECT_EQ(other.code, 2) << other.output;
  EXPECT_NE(other.output.find("torch.export.Dim.DYNAMIC"), std::string::npos) << other.output;
  const Ran same = run("train --model m.pt2 --microbatch 6 --steps 1 --data synthetic:64 --no-evaluation");
  EXPECT_EQ(same.code, 0) << same.output;
  const Ran absent = run("profile --model nowhere.pt2");
  EXPECT_EQ(absent.code, 2) << absent.output;
  EXPECT_EQ(run("train --model m.pt2 --width 3 --steps 1").code, 2);
  const Ran built_in = run("train --model mlp --steps 1 --save-weights w.pt2");
  EXPECT_EQ(built_in.code, 2) << built_in.output;
}

}  // namespace
}  // namespace millrace
