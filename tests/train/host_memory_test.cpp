// What the CPU device says of memory: tensors, counted by the allocator that the workers install.
#include "runtime/device/host_memory.h"

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>

#include "runtime/base/units.h"
#include "runtime/device/device.h"

namespace millrace {
namespace {

TEST(HostMemory, TheCpuDeviceCountsTensorsAndRemembersTheMost) {
  install_host_allocator();
  const auto device = make_cpu_device();
  const DeviceMemory before = device->memory();
  const Bytes bytes = before.peak + 64 * kMiB;  // surely a new peak
  {
    const at::Tensor large = at::empty({bytes}, at::kByte);
    const DeviceMemory during = device->memory();
    EXPECT_GE(during.current, before.current + bytes);
    EXPECT_LE(during.current, before.current + bytes + bytes / 8 + kMiB);  // blocks of a few sizes
    EXPECT_EQ(during.peak, during.current);
    EXPECT_LT(peak_resident_bytes(), during.total);
  }
  const DeviceMemory after = device->memory();
  EXPECT_EQ(after.current, before.current);
  EXPECT_GE(after.peak, before.current + bytes);
}

}  // namespace
}  // namespace millrace
