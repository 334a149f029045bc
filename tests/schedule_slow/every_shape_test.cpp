// The complete sweep of tests/schedule/properties_test.cpp.
#include "tests/schedule/every_shape.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(EveryShape, IsValidUnderBothTransports) {
  int defined = 0;
  for_every_shape(8, 16, 4, 4, [&](const ShapeCase& c) {
    defined += is_defined(c);
    expect_valid(c);
  });
  std::printf("%d schedules\n", 2 * defined);
  EXPECT_GT(defined, 4000);
}

}  // namespace
}  // namespace millrace
