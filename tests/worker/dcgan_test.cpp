// DCGAN as a user trains it: a folder of images, processes, a profile and its plan, a run that goes on.
#include <gtest/gtest.h>

#include "runtime/base/json.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"
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

/// Each convolution of the discriminator runs twice in its own turn and once in the generator's, where it
/// gets no gradient of its weights; the generator's has a backward in its own turn alone.
TEST_F(DcganJobs, AProfileHasEachTurnAndAPlanRunsThem) {
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
  ASSERT_EQ(graph->turns.size(), 2u);
  EXPECT_EQ(graph->turns[0].turn, "discriminator");
  EXPECT_EQ(graph->turns[1].turn, "generator");
  for (std::size_t n = 0; n < graph->nodes.size(); ++n) {
    const LayerNode& whole = graph->nodes[n];
    for (std::size_t t = 0; t < 2; ++t) {
      const LayerNode& node = graph->turns[t].nodes[n];
      const bool trained = node.name.starts_with(graph->turns[t].turn);
      EXPECT_EQ(node.parameter_bytes, trained ? whole.parameter_bytes : 0) << node.name;
      if (whole.parameter_bytes > 0) {
        EXPECT_EQ(node.backward_weight_s > 0, trained) << node.name;
      }
      if (t == 0 && node.name.starts_with("generator.")) {
        EXPECT_EQ(node.backward_input_s, 0) << node.name;
      }
    }
    EXPECT_NEAR(whole.forward_s, graph->turns[0].nodes[n].forward_s + graph->turns[1].nodes[n].forward_s,
                1e-9 + 1e-6 * whole.forward_s);
  }
  // What each layer of the discriminator keeps of both calls: convolutions their inputs, the norm its input
  // and a mean and a deviation for each channel, LeakyReLU its output. A storage counts at the first that
  // keeps it.
  const std::pair<const char*, Bytes> kept[] = {{"0", 2 * 2 * 3 * 16 * 16 * 4},
                                                {"1", 2 * 2 * 4 * 8 * 8 * 4},
                                                {"2", 0},
                                                {"3", 2 * (2 * 8 * 4 * 4 + 2 * 8) * 4},
                                                {"4", 2 * 2 * 8 * 4 * 4 * 4},
                                                {"5", 2 * 2 * 4}};  // the head keeps the scores
  for (const auto& [layer, bytes] : kept) {
    const auto node = std::ranges::find(graph->turns[0].nodes, "discriminator.main." + std::string(layer),
                                        &LayerNode::name);
    ASSERT_NE(node, graph->turns[0].nodes.end()) << layer;
    EXPECT_EQ(node->saved_bytes, bytes) << layer;
  }
  // The images go there in both turns and back in the generator's; the scores of real ones only in the other.
  const auto ways = [&](std::size_t turn, const std::string& tensor) {
    for (const LayerEdge& edge : graph->turns[turn].edges)
      if (edge.tensor == tensor) return std::pair(edge.bytes, edge.gradient_bytes.value());
    return std::pair(Bytes{-1}, Bytes{-1});
  };
  const Bytes image = 2 * 3 * 16 * 16 * 4, scores = 2 * 4 * 8 * 8 * 4;
  EXPECT_EQ(ways(0, "generator.main.7"), std::pair(image, Bytes{0}));
  EXPECT_EQ(ways(1, "generator.main.7"), std::pair(image, image));
  EXPECT_EQ(ways(0, "discriminator.main.1.real"), std::pair(scores, scores));
  EXPECT_EQ(ways(1, "discriminator.main.1.real"), std::pair(Bytes{0}, Bytes{0}));
  EXPECT_EQ(ways(1, "discriminator.main.1.fake"), std::pair(scores, scores));
  EXPECT_EQ(graph->nodes.front().field_bytes, image) << "the noise follows the images' number";
  const Ran planned = run("plan --profile profile.json --ranks 2 --out plan.json");
  ASSERT_EQ(planned.code, 0) << planned.output;
  const Ran trained =
      run("train --model dcgan --image-size 16 --latent 8 --generator-features 4 --discriminator-features 4 "
          "--microbatch 2 --plan plan.json --steps 2 --data images --no-evaluation --threads 1");
  EXPECT_EQ(trained.code, 0) << trained.output;
  // The simulator runs the same turns.
  const Ran simulated = run("simulate --plan plan.json --profile profile.json --format json");
  ASSERT_EQ(simulated.code, 0) << simulated.output;
  EXPECT_NE(simulated.output.find("the microbatches pass 2 times"), std::string::npos) << simulated.output;
  const std::string json = simulated.output.substr(simulated.output.find('{'));
  EXPECT_NEAR(parse_json(json, "simulated")->find("makespan_s")->as_double(),
              Plan::load((folder_ / "plan.json").string())->predicted_step_s, 1e-9);
  const Ran asynchronous = run("plan --profile profile.json --ranks 2 --schedule pipedream");
  EXPECT_EQ(asynchronous.code, 2) << asynchronous.output;
  EXPECT_NE(asynchronous.output.find("trained in turns"), std::string::npos) << asynchronous.output;
}

TEST_F(DcganJobs, WhatItCannotDoIsRefused) {
  const std::string train = "train --model dcgan --steps 2 --data images --no-evaluation --image-size ";
  const std::pair<const char*, const char*> cases[] = {
      {"16 --stages 2 --schedule pipedream", "use a schedule that flushes"},
      {"16 --precision float16", "precision bfloat16"},
      {"24", "give 16, 32, 64 or 128"}};
  for (const auto& [flags, says] : cases) {
    const Ran ran = run(train + flags);
    EXPECT_EQ(ran.code, 2) << flags << "\n" << ran.output;
    EXPECT_NE(ran.output.find(says), std::string::npos) << flags << "\n" << ran.output;
  }
}

}  // namespace
}  // namespace millrace
