// DCGAN as a user trains it: a folder of images, processes, a profile and its plan, a run that goes on.
#include <gtest/gtest.h>

#include "runtime/base/json.h"
#include "runtime/plan/layer_graph.h"
#include "tests/data/jpeg_maker.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class DcganJobs : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    for (int i = 0; i < 24; ++i) {
      const std::string name = "images/" + std::to_string(i % 3) + "/" + std::to_string(i) + ".jpg";
      fs::create_directories((folder_ / name).parent_path());
      write(name, jpeg_of(40 + i, 30, TJPF_RGB, i));
    }
  }
  Json summary_of(const std::string& out) { return *parse_json(bytes(out + "/summary.json"), "summary"); }

  const std::string model_ =
      "model: dcgan\nimage-size: 16\nlatent: 8\ngenerator-features: 4\ndiscriminator-features: 4\n"
      "data: images\nmicrobatch: 3\nmicrobatches: 2\nrule: adam\nlr: 0.0002\nbeta1: 0.5\nno-evaluation: "
      "true\n"
      "deterministic: true\n";
};

TEST_F(DcganJobs, ProcessesGiveTheBytesOfOneProcess) {
  write("one.yaml", model_ + "stages: 1\nsteps: 4\nsave-weights: one.safetensors\noutput-dir: one\n");
  const Ran one = run("launch one.yaml");
  ASSERT_EQ(one.code, 0) << one.output;
  EXPECT_NE(one.output.find("errD.D_x"), std::string::npos) << one.output;
  for (const auto& [stages, schedule] : {std::pair{2, "1f1b"}, {3, "gpipe"}, {2, "zb-v"}}) {
    write("many.yaml", model_ + "steps: 4\nstages: " + std::to_string(stages) + "\nschedule: " + schedule +
                           "\nsave-weights: many.safetensors\noutput-dir: many\noverwrite: true\n");
    const Ran many = run("launch many.yaml");
    ASSERT_EQ(many.code, 0) << many.output;
    EXPECT_TRUE(bytes("one.safetensors") == bytes("many.safetensors")) << stages << " " << schedule;
    EXPECT_EQ(summary_of("one").find("losses")->dump(), summary_of("many").find("losses")->dump());
  }
  write("first.yaml", model_ + "stages: 2\nsteps: 2\noutput-dir: broken\ncheckpoint-at-end: true\n");
  write("rest.yaml",
        model_ + "stages: 3\nsteps: 4\nsave-weights: rest.safetensors\noutput-dir: rest\nresume: broken\n");
  for (const char* job : {"launch first.yaml", "launch rest.yaml"}) {
    const Ran ran = run(job);
    ASSERT_EQ(ran.code, 0) << ran.output;
  }
  EXPECT_TRUE(bytes("one.safetensors") == bytes("rest.safetensors"));
}

/// Times of both turns: each convolution of the discriminator runs three times, the generator's twice, and
/// only that of the generator's turn has a backward.
TEST_F(DcganJobs, AProfileCountsBothTurns) {
  const Ran profiled = run(
      "profile --model dcgan --image-size 16 --latent 8 --generator-features 4 --discriminator-features 4 "
      "--microbatch 2 --out profile.json --threads 1");
  ASSERT_EQ(profiled.code, 0) << profiled.output;
  const auto graph = LayerGraph::load((folder_ / "profile.json").string());
  ASSERT_TRUE(graph) << to_string(graph.problems());
  for (const LayerNode& node : graph->nodes) {
    if (node.name == "noise") continue;
    EXPECT_GT(node.forward_s, 0) << node.name;
    if (node.parameter_bytes > 0) {
      EXPECT_GT(node.backward_weight_s, 0) << node.name;
    }
  }
  std::map<std::string, Bytes> edges;
  for (const LayerEdge& edge : graph->edges) edges[edge.tensor] = edge.bytes;
  const Bytes image = 2 * 3 * 16 * 16 * 4;
  // The images: there in both turns, back in one. A score of real ones: there and back in one turn.
  EXPECT_EQ(edges.at("generator.main.7"), image * 3 / 2);
  EXPECT_EQ(edges.at("discriminator.main.1.real"), 2 * 4 * 8 * 8 * 4);
  EXPECT_EQ(edges.at("discriminator.main.1.fake"), 2 * 2 * 4 * 8 * 8 * 4);
  const Ran planned = run("plan --profile profile.json --ranks 2 --out plan.json");
  ASSERT_EQ(planned.code, 0) << planned.output;
  const Ran trained =
      run("train --model dcgan --image-size 16 --latent 8 --generator-features 4 --discriminator-features 4 "
          "--microbatch 2 --plan plan.json --steps 2 --data images --no-evaluation --threads 1");
  EXPECT_EQ(trained.code, 0) << trained.output;
}

TEST_F(DcganJobs, WhatItCannotDoIsRefused) {
  const std::string train = "train --model dcgan --steps 2 --data images --no-evaluation --image-size ";
  const std::pair<const char*, const char*> cases[] = {
      {"16 --stages 2 --schedule pipedream", "use a schedule that flushes"},
      {"16 --precision float16", "--precision bfloat16"},
      {"24", "give 16, 32, 64 or 128"}};
  for (const auto& [flags, says] : cases) {
    const Ran ran = run(train + flags);
    EXPECT_EQ(ran.code, 2) << flags << "\n" << ran.output;
    EXPECT_NE(ran.output.find(says), std::string::npos) << flags << "\n" << ran.output;
  }
}

}  // namespace
}  // namespace millrace
