// A slow network on one host: the step is the one that the simulator predicts, the weights are the same.
#include "runtime/base/json.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

TEST_F(Jobs, AnEmulatedLinkTakesTheSimulatorsTimeAndLeavesTheWeights) {
  write("slow.yaml",
        "hosts: [{name: a, devices: 1}, {name: b, devices: 1}]\n"
        "network: {bandwidth: 1e6, latency: 2e-2}\n");
  write("job.yaml",
        "model: mlp\nwidth: 256\ndepth: 4\nstages: 2\nmicrobatch: 32\nmicrobatches: 4\nsteps: 6\n"
        "data: synthetic:256\nno-evaluation: true\nseed: 3\ndeterministic: true\noverwrite: true\n");
  const Ran plain = run("launch job.yaml --set save-weights=plain.safetensors --set output-dir=plain");
  ASSERT_EQ(plain.code, 0) << plain.output;
  for (const std::string backend : {"shm", "tcp"}) {
    const Ran slow =
        run("launch job.yaml --set emulate-links=slow.yaml --set save-weights=slow.safetensors "
            "--set output-dir=slow --set backend=" +
            backend);
    ASSERT_EQ(slow.code, 0) << slow.output;
    EXPECT_TRUE(bytes("plain.safetensors") == bytes("slow.safetensors"));
    // 32 x 256 floats on a wire of 1 MB/s, 20 ms away: computing is nothing beside it.
    const Ran simulated =
        run("simulate --stages 2 --microbatches 4 --schedule 1f1b --forward 0.001 --backward "
            "0.002 --activation-bytes 32768 --bandwidth 1e6 --latency 0.02 --format json");
    ASSERT_EQ(simulated.code, 0) << simulated.output;
    const double predicted = parse_json(simulated.output, "simulation")->find("makespan_s")->as_double();
    const double measured =
        parse_json(bytes("slow/summary.json"), "slow")->find("median_step_s")->as_double();
    EXPECT_NEAR(measured / predicted, 1, 0.25)
        << backend << ": " << measured << " s, predicted " << predicted;
    EXPECT_LT(parse_json(bytes("plain/summary.json"), "plain")->find("median_step_s")->as_double(),
              predicted / 2);
  }
}

TEST_F(Jobs, EmulatedLinksAndSynchronisedStatisticsThatCannotBeAreRefused) {
  write("one.yaml", "hosts: [{name: a, devices: 1}]\nnetwork: {bandwidth: 1e6}\n");
  for (const auto& [flags, parts] :
       {std::pair<std::string, std::vector<std::string>>{"--stages 2 --emulate-links one.yaml",
                                                         {"--emulate-links", "1 ranks, the plan has 2"}},
        {"--stages 2 --emulate-links absent.yaml", {"absent.yaml"}},
        {"--sync-batch-norm --autograd", {"--sync-batch-norm", "--autograd"}},
        {"--sync-batch-norm --schedule pipedream --replicas 2", {"sync_batch_norm", "take turns"}}}) {
    const Ran ran =
        run("train --model resnet18 --image-size 32 --classes 4 --data synthetic:32 --steps 1 "
            "--no-evaluation " +
            flags);
    EXPECT_EQ(ran.code, 2) << ran.output;
    for (const std::string& part : parts) EXPECT_NE(ran.output.find(part), std::string::npos) << ran.output;
  }
  const Ran ran =
      run("train --model resnet18 --image-size 32 --classes 4 --data synthetic:32 --steps 2 "
          "--microbatch 2 --microbatches 4 --replicas 2 --no-evaluation --sync-batch-norm");
  EXPECT_EQ(ran.code, 0) << ran.output;
}

}  // namespace
}  // namespace millrace
