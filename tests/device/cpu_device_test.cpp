// The CPU as a device: every op is done when it returns, and marks tell the time of its clock.
#include <gtest/gtest.h>

#include <ATen/ops/ones.h>

#include "runtime/device/device.h"

namespace millrace {
namespace {

TEST(CpuDevice, MarksTellTheTimeOfItsClock) {
  VirtualClock clock;
  const auto device = make_cpu_device(clock);
  const auto first = device->mark();
  clock.advance(std::chrono::milliseconds(250));
  const auto second = device->mark();
  EXPECT_TRUE(first->is_reached());
  second->wait();
  EXPECT_EQ(second->seconds_since(*first), 0.25);
  EXPECT_EQ(first->seconds_since(*second), -0.25);
}

TEST(CpuDevice, TensorsStayWhereTheyAre) {
  const auto device = make_cpu_device();
  const at::Tensor host = at::ones({5});
  EXPECT_TRUE(device->upload(host).is_same(host));
  EXPECT_TRUE(device->where().is_cpu());
  EXPECT_EQ(device->name(), "cpu");
  EXPECT_EQ(device->identity(), "") << "ranks of one host would take it for a GPU that they share";
  EXPECT_GT(device->memory().total, 0);
}

}  // namespace
}  // namespace millrace
