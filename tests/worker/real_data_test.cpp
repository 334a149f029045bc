// Whole commands on real data sets (MILLRACE_DATA).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

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

/// docs/translation.md's table of the first steps, by the script that made the whole page. Warm-up ends at
/// step 200 and the rate falls after epoch 8: what changes a loss of the page without changing these is a
/// change of the schedule.
TEST_F(RealData, Multi30kBeginsAsItsPageSays) {
  const char* data = std::getenv("MILLRACE_DATA");
  if (!data || !*data) GTEST_SKIP() << "MILLRACE_DATA is not set";
  const std::string source = MILLRACE_SOURCE_DIR;
  std::vector<std::pair<std::size_t, double>> expected;
  const auto page = read_file(source + "/docs/translation.md");
  ASSERT_TRUE(page);
  std::istringstream lines(page->substr(page->find("| step | training loss |")));
  for (std::string line; std::getline(lines, line) && line.starts_with('|');) {
    std::size_t step = 0;
    double loss = 0;
    if (std::sscanf(line.c_str(), "| %zu | %lf |", &step, &loss) == 2) expected.emplace_back(step, loss);
  }
  ASSERT_EQ(expected.size(), 4u);
  const std::string log = (folder_ / "log").string();
  const int status =
      std::system(("MILLRACE=" MILLRACE_BIN_DIR "/millrace timeout 500 " + source +
                   "/scripts/examples/multi30k " + data + "/multi30k " + (folder_ / "out").string() + " 12 " +
                   std::to_string(expected.back().first) + " >" + log + " 2>&1")
                      .c_str());
  ASSERT_EQ(status, 0) << bytes("log");
  const auto summary = parse_json(bytes("out/run/summary.json"), "summary");
  const Json& losses = *summary->find("losses");
  ASSERT_EQ(losses.size(), expected.back().first);
  // The page has four decimals. Processors with other vectors sum in other orders: without any
  // (ATEN_CPU_CAPABILITY=default) the losses of these steps differ by at most 6e-8.
  for (const auto& [step, loss] : expected)
    EXPECT_NEAR(losses.items()[step - 1].as_double(), loss, 1e-4) << "step " << step;
}

}  // namespace
}  // namespace millrace
