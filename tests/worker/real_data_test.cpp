// Whole commands on real data sets (MILLRACE_DATA).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "runtime/base/json.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

using RealData = Jobs;

/// 200 full-size photographs, one a class: decoded, cropped, through ResNet-50 at the paper's size on two
/// ranks.
TEST_F(RealData, ImageNetPhotographsTrainResNet50) {
  const char* data = std::getenv("MILLRACE_DATA");
  if (!data || !*data) GTEST_SKIP() << "MILLRACE_DATA is not set";
  const std::string archive = std::string(data) + "/imagenet-sample/imagenet-sample-200.tar.gz";
  ASSERT_EQ(std::system(("tar -xzf " + archive + " -C " + folder_.string()).c_str()), 0) << archive;
  write(
      "job.yaml",
      "model: resnet50\nstages: 2\nmicrobatch: 2\nmicrobatches: 2\nsteps: 3\nlr: 0.01\nno-evaluation: true\n"
      "data: imagenet-sample\noutput-dir: out\n");
  const Ran ran = run("launch job.yaml");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const auto summary = parse_json(bytes("out/summary.json"), "summary");
  ASSERT_EQ(summary->find("losses")->size(), 3u);
  for (const Json& loss : summary->find("losses")->items()) {
    // A thousand classes, no knowledge: about log(1000).
    EXPECT_NEAR(loss.as_double(), std::log(1000.0), 3.0);
  }
}

}  // namespace
}  // namespace millrace
