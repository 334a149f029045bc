// The CPU device's memory is that of tensors, counted by the allocator that the workers install.
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
    EXPECT_EQ(during.current, before.current + bytes);
    EXPECT_EQ(during.peak, during.current);
    EXPECT_LT(peak_resident_bytes(), during.total);
  }
  const DeviceMemory after = device->memory();
  EXPECT_EQ(after.current, before.current);
  EXPECT_GE(after.peak, before.current + bytes);
}

/// Memory that is allocated while an UncountedTensors lives is not counted, whenever it is freed.
TEST(HostMemory, DataSetsAreLeftOut) {
  install_host_allocator();
  const auto device = make_cpu_device();
  const DeviceMemory before = device->memory();
  const Bytes bytes = before.peak + 64 * kMiB;
  at::Tensor set;
  {
    const UncountedTensors of_the_set;
    const UncountedTensors again;
    set = at::empty({bytes}, at::kByte);
  }
  EXPECT_EQ(device->memory().current, before.current);
  EXPECT_EQ(device->memory().peak, before.peak);
  const at::Tensor counted = at::empty({kMiB}, at::kByte);
  EXPECT_EQ(device->memory().current, before.current + kMiB);
  set.reset();
  EXPECT_EQ(device->memory().current, before.current + kMiB);
}

/// A microbatch that is a little shorter than the one before takes its blocks.
TEST(HostMemory, ABlockServesSmallerTensorsToo) {
  install_host_allocator();
  const auto device = make_cpu_device();
  const Bytes bytes = 16 * kMiB;
  const void* first = nullptr;
  {
    const at::Tensor longer = at::empty({bytes}, at::kByte);
    first = longer.const_data_ptr();
  }
  const DeviceMemory before = device->memory();
  {
    const at::Tensor shorter = at::empty({bytes * 3 / 4}, at::kByte);
    EXPECT_EQ(shorter.const_data_ptr(), first);
    // The requested bytes count, not those of the block.
    EXPECT_EQ(device->memory().current, before.current + bytes * 3 / 4);
    const at::Tensor small = at::empty({bytes / 4}, at::kByte);
    EXPECT_NE(small.const_data_ptr(), first);
  }
  EXPECT_EQ(device->memory().current, before.current);
  const at::Tensor quarter = at::empty({bytes / 4}, at::kByte);  // does not take a block four times its size
  EXPECT_NE(quarter.const_data_ptr(), first);
}

}  // namespace
}  // namespace millrace
