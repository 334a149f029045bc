// The examples of the commands in groups parse.
#include <gtest/gtest.h>

#include <sstream>

#include "experiments/io/instrument/fit_command.h"
#include "experiments/io/instrument/instrument_command.h"
#include "experiments/io/instrument/process_command.h"
#include "experiments/io/trace/generate_run_command.h"
#include "experiments/io/trace/plot_command.h"
#include "experiments/io/trace/preprocess_command.h"
#include "experiments/io/trace/similarity_command.h"
#include "experiments/io/trace/trace_command.h"
#include "tests/experiments/trace_run.h"

namespace millrace {
namespace {

std::vector<CommandSpec> specs() {
  return {generate_run_spec(),       preprocess_spec(),      trace_plot_spec(),    similarity_spec(),
          instrument_process_spec(), instrument_plot_spec(), instrument_fit_spec()};
}

TEST(GroupedCommandDocs, EveryExampleParses) {
  for (const CommandSpec& spec : specs()) {
    ASSERT_FALSE(spec.examples.empty()) << spec.command;
    for (const std::string& example : spec.examples) {
      std::istringstream words(example);
      std::vector<std::string> args;
      for (std::string word; words >> word;) args.push_back(word);
      ASSERT_EQ(args[0] + " " + args[1] + " " + args[2], "millrace " + spec.command);
      const Result<Arguments> parsed = parse_arguments(spec, {args.begin() + 3, args.end()});
      EXPECT_TRUE(parsed) << example << "\n" << to_string(parsed.problems());
    }
  }
}

/// The whole way as a user types it, with the exit codes of wrong input.
TEST(TraceCommands, FromARawRunToPicturesAndScores) {
  const TemporaryFolder folder;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto trace = [](std::vector<std::string> args) { return trace_command(args); };
  EXPECT_EQ(trace({"generate", folder.path("raw"), "--rows", "3000"}), 0);
  EXPECT_EQ(trace({"generate", folder.path("raw")}), 2) << "there is a run already";
  EXPECT_EQ(
      trace({"preprocess", folder.path("raw"), "-w", "unet3d", "-o", folder.path("out"), "--format", "json"}),
      0);
  EXPECT_EQ(trace({"plot", folder.path("out/raw"), "--formats", "svg,html", "--all-zooms"}), 0);
  EXPECT_TRUE(std::filesystem::exists(folder.path("out/raw/plots/all_combined/timeline_first-eval.svg")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("out/raw/plots/all_combined/timeline.html")));
  EXPECT_EQ(trace({"plot", folder.path("out/raw"), "--paper", "--narrow"}), 0);
  EXPECT_EQ(trace({"similarity", folder.path("out/raw"), folder.path("out/raw"), "--format", "json"}), 0);
  EXPECT_EQ(trace({"preprocess", folder.path("raw"), "-w", "unet"}), 2);
  EXPECT_EQ(trace({"preprocess", folder.path("raw"), "-w", "dlrm"}), 3) << "no log of that workload";
  EXPECT_EQ(trace({"preprocess", folder.path("absent"), "-w", "unet3d"}), 3);
  EXPECT_EQ(trace({"plot", folder.path("raw")}), 3) << "not preprocessed";
  EXPECT_EQ(trace({"plot", folder.path("out/raw"), "--zoom", "5..4"}), 3);
  EXPECT_EQ(trace({"plot", folder.path("out/raw"), "--layout", "each"}), 3);
  EXPECT_EQ(trace({"plot", folder.path("out/raw"), "--formats", "gif"}), 2);
  EXPECT_EQ(trace({"similarity", folder.path("out/raw"), folder.path("raw")}), 3);
  EXPECT_EQ(trace({}), 2);
  EXPECT_EQ(trace({"plott"}), 2);
  EXPECT_EQ(instrument_command({"process", folder.path("raw"), "-w", "unet3d", "-o", folder.path("t")}), 3);
  EXPECT_EQ(instrument_command({"fit", folder.path("raw"), "-w", "unet3d"}), 3);
  const std::string said = testing::internal::GetCapturedStderr();
  testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("did you mean `millrace trace plot`?"), std::string::npos);
}

}  // namespace
}  // namespace millrace
