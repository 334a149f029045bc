// main() of every test program. A skipped test is not a passed test: skips that tests/allowed_skips.txt does
// not name are failures, and a program with allowed ones ends with kAllowedSkips, which ctest shows as
// "Skipped". (ctest's own SKIP_REGULAR_EXPRESSION would do that too, but it turns a failure beside a skip
// into "Skipped".) Failures are said once more at the end, where scripts/test finds them.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/option_names.h"
#include "tests/harness/allowed_skips.h"

namespace millrace {
namespace {

constexpr int kAllowedSkips = 77;  // SKIP_RETURN_CODE in cmake/millrace_targets.cmake

std::string name_of(const testing::TestInfo& test) {
  return std::string(test.test_suite_name()) + "." + test.name();
}

std::vector<const testing::TestInfo*> all_tests() {
  std::vector<const testing::TestInfo*> tests;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) tests.push_back(suite.GetTestInfo(t));
  }
  return tests;
}

std::vector<std::string> skipped_tests() {
  std::vector<std::string> names;
  for (const testing::TestInfo* test : all_tests())
    if (test->result()->Skipped()) names.push_back(name_of(*test));
  return names;
}

void repeat_failures() {
  for (const testing::TestInfo* test : all_tests()) {
    for (int p = 0; p < test->result()->total_part_count(); ++p) {
      const testing::TestPartResult& part = test->result()->GetTestPartResult(p);
      if (!part.failed()) continue;
      std::printf("FAILED: %s, %s:%d\n%.2000s\n", name_of(*test).c_str(),
                  part.file_name() == nullptr ? "?" : part.file_name(), part.line_number(), part.message());
    }
  }
}

/// Appends a line to $MILLRACE_TEST_TIMES for each test: its name, elapsed seconds, and processor seconds of
/// it and of the processes that it started.
class Times final : public testing::EmptyTestEventListener {
 public:
  explicit Times(const char* path) : file_(path, std::ios::app) {}

 private:
  static double processor_seconds() {
    double seconds = 0;
    for (const int whose : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
      rusage used{};
      ::getrusage(whose, &used);
      for (const timeval& part : {used.ru_utime, used.ru_stime})
        seconds += static_cast<double>(part.tv_sec) + 1e-6 * static_cast<double>(part.tv_usec);
    }
    return seconds;
  }
  void OnTestStart(const testing::TestInfo&) override { began_ = processor_seconds(); }
  void OnTestEnd(const testing::TestInfo& test) override {
    file_ << name_of(test) << ' ' << 1e-3 * static_cast<double>(test.result()->elapsed_time()) << ' '
          << processor_seconds() - began_ << std::endl;
  }

  std::ofstream file_;
  double began_ = 0;
};

int run(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const char* path = std::getenv("MILLRACE_TEST_TIMES"))
    testing::UnitTest::GetInstance()->listeners().Append(new Times(path));
  if (const int failed = RUN_ALL_TESTS(); failed != 0) {
    repeat_failures();
    return failed;
  }
  const std::vector<std::string> skipped = skipped_tests();
  if (skipped.empty()) return 0;
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/allowed_skips.txt");
  std::ostringstream text;
  text << file.rdbuf();
  const std::vector<std::string> unexpected =
      unexpected_skips(text.str(), skipped, [](const std::string& name) {
        const char* value = std::getenv(name.c_str());
        return value != nullptr && *value != '\0';
      });
  for (const std::string& name : unexpected) {
    std::printf("FAILED: %s was skipped, and tests/allowed_skips.txt does not allow that here\n",
                name.c_str());
  }
  return unexpected.empty() ? kAllowedSkips : 1;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  millrace::set_option_names(millrace::OptionNames::Flags);
  return millrace::run(argc, argv);
}
