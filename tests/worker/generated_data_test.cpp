// Each set of `data generate` is trained on for a step, as it was written.
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

struct GeneratedData {
  const char *workload, *generate, *data, *train, *says;
};

class EveryGeneratedSet : public Jobs, public ::testing::WithParamInterface<GeneratedData> {};

TEST_P(EveryGeneratedSet, IsTrainedOn) {
  const GeneratedData& set = GetParam();
  const Ran made =
      run(std::string("data generate --out set --workload ") + set.workload + " " + set.generate);
  ASSERT_EQ(made.code, 0) << made.output;
  const Ran ran = run(std::string("train --steps 1 --threads 1 --microbatch 1 --microbatches 1 --data ") +
                      set.data + " " + set.train);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find(set.says), std::string::npos) << set.says << "\n" << ran.output;
}

INSTANTIATE_TEST_SUITE_P(
    Workloads, EveryGeneratedSet,
    ::testing::Values(
        GeneratedData{"imseg", "--size 1B --seed 534", "kits:set",
                      "--model unet3d --filters 2 --levels 2 --image-size 16 --no-evaluation",
                      "trains on the cases that it evaluates on"},
        GeneratedData{"kidneys", "--size 1B --image-side 32", "kits:set",
                      "--model unet3d --filters 2 --levels 2 --image-size 16",
                      "trains on the cases that it evaluates on"},
        GeneratedData{
            "bert", "--size 20kB --seed 1299", "set",
            "--model bert_base --layers 1 --hidden 16 --heads 2 --feed-forward 16 --length 512",
            "left out: 1 records whose input_mask is all zeros: set/part-00027-of-00500: record at"},
        GeneratedData{"dlrm", "--size 3200B", "criteo:set",
                      "--model dlrm --table-rows-cap 10 --bottom 8,4 --top 8,1", "auc"},
        GeneratedData{"clicks", "--size 3200B --table-rows-cap 10", "criteo:set",
                      "--model dlrm --table-rows-cap 10 --bottom 8,4 --top 8,1", "auc"},
        GeneratedData{"images", "--size 60kB --classes 2 --image-side 32", "set",
                      "--model resnet18 --classes 2 --image-size 32", "evaluation"},
        GeneratedData{"text", "--size 20kB", "set",
                      "--model transformer_lm --layers 1 --hidden 8 --heads 1 --feed-forward 8 --length 9 "
                      "--vocabulary 50",
                      "words are <unk>: they are not among the 50 tokens"}),
    [](const auto& info) { return std::string(info.param.workload); });

}  // namespace
}  // namespace millrace
