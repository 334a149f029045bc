// scripts/quickstart from its profile to its report: a newcomer sees a model learn.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "runtime/base/json.h"
#include "runtime/base/median.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

using Quickstart = Jobs;

TEST_F(Quickstart, TheLossFallsAndTheReportIsWritten) {
  const std::string out = (folder_ / "out").string();
  const std::string command = "timeout 900 " MILLRACE_SOURCE_DIR "/scripts/quickstart --bin " MILLRACE_BIN_DIR
                              " --out " +
                              out + " > " + (folder_ / "log").string() + " 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << bytes("log");
  const auto summary = parse_json(bytes("out/summary.json"), "summary");
  ASSERT_TRUE(summary) << bytes("log");
  const auto& losses = summary->find("losses")->items();
  ASSERT_GE(losses.size(), 20u);
  const auto typical = [&](std::size_t from) {
    std::vector<double> values;
    for (std::size_t i = from; i < from + 9; ++i) values.push_back(losses[i].as_double());
    return median(values);
  };
  EXPECT_LT(typical(losses.size() - 9), 0.75 * typical(0)) << bytes("log");
  EXPECT_GT(summary->find("evaluations")->items().back().find("top1")->as_double(), 0.2) << "by chance 0.1";
  EXPECT_NE(bytes("out/report.html").find(">Predicted and measured</h2>"), std::string::npos);
}

}  // namespace
}  // namespace millrace
