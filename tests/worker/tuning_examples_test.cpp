// The searches of docs/examples/tuning as they stand there, and small ones of the same form to their end.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "tests/data/shape_net_folder.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class TuningExamples : public Jobs {
 protected:
  static std::string file(const std::string& name) {
    return std::string(MILLRACE_SOURCE_DIR) + "/docs/examples/tuning/" + name;
  }
  /// The file with other values of some keys, wherever they stand; a key in it that is not there is a
  /// failure. `of_job`: lines for the job.
  std::string shrunk(const std::string& name, std::map<std::string, std::string> values,
                     const std::string& of_job) {
    values.merge(std::map<std::string, std::string>{{"most", "3"}, {"iteration", "1"}, {"skip_last", "0"}});
    const auto text = read_file(file(name));
    EXPECT_TRUE(text) << name;
    std::istringstream lines(*text);
    std::string made;
    for (std::string line; std::getline(lines, line);) {
      const std::size_t begin = line.find_first_not_of(' '), colon = line.find(':');
      const auto value = begin == std::string::npos || colon == std::string::npos
                             ? values.end()
                             : values.find(line.substr(begin, colon - begin));
      made += value == values.end() ? line : line.substr(0, colon) + ": " + value->second;
      made += "\n";
      if (line == "job:") made += of_job;
    }
    return made;
  }
  /// The dry run of the file as it stands, and the small one to its end.
  void expect_runs(const std::string& name, const std::map<std::string, std::string>& values,
                   const std::string& of_job = "") {
    const Ran dry = run("tune " + file(name) + " --dry-run");
    EXPECT_EQ(dry.code, 0) << dry.output;
    EXPECT_NE(dry.output.find("each tried:"), std::string::npos) << dry.output;
    write("small.yaml", shrunk(name, values, of_job));
    const Ran ran = run("tune small.yaml -o out");
    EXPECT_EQ(ran.code, 0) << bytes("small.yaml") << ran.output;
    EXPECT_NE(ran.output.find("best trial "), std::string::npos) << ran.output;
    EXPECT_EQ(ran.output.find("FAILED"), std::string::npos) << ran.output;
  }
};

TEST_F(TuningExamples, EachHasItsTest) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(file(""))) names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"mlp.yaml", "mobilenet.yaml", "pointnet.yaml"}));
}

TEST_F(TuningExamples, Mlp) {
  expect_runs("mlp.yaml", {});
}

TEST_F(TuningExamples, PointNet) {
  write_shape_net(folder_ / "shapenetcore_partanno_segmentation_benchmark_v0");
  expect_runs("pointnet.yaml", {{"microbatch", "{choice: [2, 3]}"}}, "  points: 24\n  microbatches: 1\n");
}

TEST_F(TuningExamples, MobileNetOnCifar10) {
  const char* data = std::getenv("MILLRACE_DATA");
  if (!data || !*data) GTEST_SKIP() << "MILLRACE_DATA is not set";
  fs::create_directories(folder_ / "cifar10");
  const std::string unpack = "tar -xzf " + std::string(data) + "/cifar10/cifar10-subset.tar.gz -C " +
                             (folder_ / "cifar10").string() + " --wildcards '*/000[0-3].jpg'";
  ASSERT_EQ(std::system(unpack.c_str()), 0) << unpack;
  expect_runs("mobilenet.yaml", {{"microbatch", "{choice: [2, 4]}"}});
}

}  // namespace
}  // namespace millrace
