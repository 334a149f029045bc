// --init-from and the models' own options, as users type them.
#include <cstdlib>

#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class InitialWeights : public Jobs {
 protected:
  static constexpr const char* kModel = "train --model mobilenet_v3_small --image-size 32 --no-evaluation ";
  /// One step of two stages, its weights in w.safetensors and its checkpoint in out/.
  void make_weights() {
    const Ran ran =
        run(std::string(kModel) +
            "--classes 10 --stages 2 --steps 1 --microbatch 2 --output-dir out --checkpoint-at-end "
            "--save-weights w.safetensors");
    ASSERT_EQ(ran.code, 0) << ran.output;
  }
  /// Other stages, another seed, nothing trained.
  Ran start_from(const std::string& arguments) {
    return run(std::string(kModel) + "--stages 3 --schedule gpipe --seed 9 --steps 0 --save-weights again " +
               arguments);
  }
  void expect_the_same(const std::string& arguments) {
    const Ran ran = start_from(arguments);
    EXPECT_EQ(ran.code, 0) << ran.output;
    EXPECT_TRUE(bytes("again") == bytes("w.safetensors")) << arguments << "\n" << ran.output;
    fs::remove(folder_ / "again");
  }
  void expect_refused(const std::string& arguments, int code, const std::vector<std::string>& parts) {
    const Ran ran = start_from(arguments);
    EXPECT_EQ(ran.code, code) << arguments << "\n" << ran.output;
    for (const std::string& part : parts)
      EXPECT_NE(ran.output.find(part), std::string::npos) << part << "\n" << ran.output;
    EXPECT_FALSE(fs::exists(folder_ / "again")) << arguments;
  }
};

TEST_F(InitialWeights, AreThoseOfTheFileOrCheckpointUnderAnyPlan) {
  make_weights();
  const Ran other = start_from("--classes 10");
  ASSERT_EQ(other.code, 0) << other.output;
  EXPECT_FALSE(bytes("again") == bytes("w.safetensors")) << "the seed is another one";
  expect_the_same("--classes 10 --init-from w.safetensors");
  expect_the_same("--classes 10 --init-from out");
  expect_the_same("--classes 10 --init-from out/checkpoints/step-00000001");
  write("job.yaml",
        "model: mobilenet_v3_small\nimage-size: 32\nclasses: 10\nstages: 2\nsteps: 0\nno-evaluation: true\n"
        "init_from: w.safetensors\nsave-weights: again\noutput-dir: job\n");
  const Ran job = run("launch job.yaml");
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_TRUE(bytes("again") == bytes("w.safetensors")) << job.output;
}

/// torchvision's weights have the 7x7 stem at any size of images.
TEST_F(InitialWeights, AStemThatDoesNotFitIsNamed) {
  const std::string model = "train --model resnet18 --classes 4 --no-evaluation --steps 0 --image-size ";
  const Ran large = run(model + "128 --save-weights w.safetensors");
  ASSERT_EQ(large.code, 0) << large.output;
  EXPECT_NE(large.output.find("resnet18: stem imagenet"), std::string::npos) << large.output;
  const Ran refused = run(model + "64 --init-from w.safetensors --save-weights again");
  EXPECT_EQ(refused.code, 4) << refused.output;
  for (const char* part : {"resnet18: stem cifar", "conv1.weight has shape [64, 3, 7, 7]", "--stem imagenet"})
    EXPECT_NE(refused.output.find(part), std::string::npos) << part << "\n" << refused.output;
  write("job.yaml",
        "model: resnet18\nimage-size: 64\nclasses: 4\nstem: imagenet\nstages: 2\nsteps: 0\nno-evaluation: "
        "true\n"
        "init_from: w.safetensors\nsave-weights: again\noutput-dir: job\n");
  const Ran job = run("launch job.yaml");
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_TRUE(bytes("again") == bytes("w.safetensors")) << job.output;
}

TEST_F(InitialWeights, OfAnotherModelAreToldByFileAndName) {
  make_weights();
  expect_refused(
      "--classes 7 --init-from w.safetensors", 4,
      {"cannot start from w.safetensors", "classifier.3.weight has shape [10, 1024], the model has [7, 1024]",
       "classifier.3.bias has shape [10], the model has [7]", "--init-from-ignore 'classifier.3.*'"});
  expect_refused("--classes 7 --init-from w.safetensors --dry-run", 4, {"classifier.3.bias has shape"});
  expect_refused("--classes 10 --init-from out --init-from-ignore 'fc.*'", 4,
                 {"'fc.*' matches no tensor of the model"});
  expect_refused("--classes 10 --init-from-ignore 'fc.*'", 2, {"--init-from-ignore: says nothing"});
  expect_refused("--classes 10 --init-from absent.safetensors", 4, {"absent.safetensors"});
  write("damaged", "not a safetensors file");
  expect_refused("--classes 10 --init-from damaged", 4, {"damaged", "does not fit the file"});
  const Ran missing =
      run("train --model mobilenet_v3_large --image-size 32 --classes 10 --no-evaluation --steps 1 "
          "--init-from out");
  EXPECT_EQ(missing.code, 4);
  for (const char* part :
       {"has no tensor features.", "tensors are missing in all", "tensors are of another form"})
    EXPECT_NE(missing.output.find(part), std::string::npos) << missing.output;
  // A classifier of other classes starts at random, all else does not.
  const Ran fine = start_from("--classes 7 --init-from w.safetensors --init-from-ignore classifier.3.*");
  EXPECT_EQ(fine.code, 0) << fine.output;
  EXPECT_TRUE(fs::exists(folder_ / "again"));
  write("job.yaml", "model: mobilenet_v3_small\ninit-from: absent\n");
  const Ran job = run("launch job.yaml");
  EXPECT_EQ(job.code, 2);
  EXPECT_NE(job.output.find("absent: is not there"), std::string::npos) << job.output;
}

TEST_F(InitialWeights, AreNotReadAgainByARunThatResumes) {
  make_weights();
  const std::string train =
      std::string(kModel) + "--classes 10 --microbatch 2 --init-from w.safetensors --output-dir more ";
  ASSERT_EQ(run(train + "--steps 1 --checkpoint-at-end").code, 0);
  fs::remove(folder_ / "w.safetensors");
  const Ran resumed = run(train + "--steps 2 --resume more");
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(run(train + "--steps 2 --overwrite").code, 4);
}

TEST_F(InitialWeights, ComeFromAFileThatPythonWrote) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python || !*python) GTEST_SKIP() << "MILLRACE_REFERENCE_PYTHON is not set";
  make_weights();
  // Writes three files: with another order of tensors, without counters, and with a bias of integers.
  write("again.py",
        "from safetensors.numpy import load_file, save_file\n"
        "tensors = load_file('w.safetensors')\n"
        "save_file(dict(reversed(tensors.items())), 'python.safetensors', metadata={'format': 'pt'})\n"
        "rest = {n: t for n, t in tensors.items() if 'num_batches' not in n}\n"
        "save_file(rest, 'no_counters.safetensors')\n"
        "rest['classifier.3.bias'] = rest['classifier.3.bias'].astype('int32')\n"
        "save_file(rest, 'whole.safetensors')\n");
  ASSERT_EQ(std::system(("cd " + folder_.string() + " && " + python + " again.py").c_str()), 0);
  expect_the_same("--classes 10 --init-from python.safetensors");
  const Ran without = start_from("--classes 10 --init-from no_counters.safetensors");
  EXPECT_EQ(without.code, 0) << without.output;
  fs::remove(folder_ / "again");
  expect_refused("--classes 10 --init-from whole.safetensors", 4,
                 {"whole.safetensors", "classifier.3.bias is of I32, the model's is of F32"});
}

TEST_F(Jobs, AModelsOptionsAreItsOwn) {
  struct Case {
    const char* arguments;
    int code;
    const char* message;
  };
  const Case cases[] = {
      {"models", 0, "mobilenet_v3_small  MobileNetV3 small"},
      {"models --model inception_v3", 0, "--aux-weight F"},
      {"models --model inception", 2, "did you mean 'inception_v3'"},
      {"train --model vgg16 --width 8", 2, "--width: is not an option of vgg16. Hint: vgg16 takes --classes"},
      {"train --model inception_v3 --aux-wieght 1", 2, "did you mean --aux-weight?"},
      {"train --model inception_v3 --image-size 75 --dry-run", 2, "--aux-weight 0 leaves it out"},
      {"train --model inception_v3 --image-size 75 --aux-weight 0 --dry-run", 0, "parameters"},
      {"profile --model mlp --image-size 3", 2, "--image-size: is not an option of mlp"},
      {"profile --model mlp --ranks 2 --image-size 3", 2, "--image-size: is not an option of mlp"},
      {"profile --network --ranks 2 --width 3", 2, "--width"},
      {"train --help all", 0, "--aux-weight F"},
      {"profile --help all", 0, "--aux-weight F"},
  };
  for (const Case& c : cases) {
    const Ran ran = run(c.arguments);
    EXPECT_EQ(ran.code, c.code) << c.arguments << "\n" << ran.output;
    EXPECT_NE(ran.output.find(c.message), std::string::npos) << c.arguments << "\n" << ran.output;
  }
}

}  // namespace
}  // namespace millrace
