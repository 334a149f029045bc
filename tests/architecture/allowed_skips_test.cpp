#include "tests/harness/allowed_skips.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using Names = std::vector<std::string>;
constexpr char kList[] = "# test   variable\n\nA.Reads DATA\nA.Runs  GPU\n";

bool nothing_is_set(const std::string&) {
  return false;
}
bool data_is_set(const std::string& name) {
  return name == "DATA";
}

TEST(AllowedSkips, ASkipIsExcusedWhileItsVariableIsAbsent) {
  EXPECT_EQ(unexpected_skips(kList, {"A.Reads", "A.Runs"}, nothing_is_set), Names{});
}

TEST(AllowedSkips, ASkipIsAFailureWhenItsVariableIsThere) {
  EXPECT_EQ(unexpected_skips(kList, {"A.Reads", "A.Runs"}, data_is_set), Names{"A.Reads"});
}

TEST(AllowedSkips, OtherTestsAreNotExcused) {
  EXPECT_EQ(unexpected_skips(kList, {"A.Read", "B.Reads", "#"}, nothing_is_set),
            (Names{"A.Read", "B.Reads", "#"}));
}

TEST(AllowedSkips, AnEmptyListExcusesNothing) {
  EXPECT_EQ(unexpected_skips("", {"A.Reads"}, nothing_is_set), Names{"A.Reads"});
}

}  // namespace
}  // namespace millrace
