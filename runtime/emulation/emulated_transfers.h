// Messages of emulated devices.
#pragma once

#include <memory>

#include "runtime/comm/channel.h"
#include "runtime/device/compute_device.h"
#include "runtime/emulation/emulated_device.h"

namespace millrace {

/// Whether ranks of one host read each other's messages where they are: ranks on CPUs do, over shared memory.
enum class SharedMemory { None, WithinHosts };

/// Makes messages wait for `device`: a send leaves when the device has done the work that was handed over
/// before. A message that is read in place takes no memory of the device. It goes outside of whatever else
/// takes time for messages. `device` must outlive it.
std::shared_ptr<Channel> make_device_ordered(std::shared_ptr<Channel> inner, EmulatedDevice& device,
                                             SharedMemory shared = SharedMemory::None);

/// Carries tensors without values (LibTorch's device "meta") as messages of the host. With EmulatedPayload::
/// None a message also carries its Transfer::moment, if it has one, to a receive that asks for it. It goes
/// next to the transport.
std::shared_ptr<Channel> make_valueless(std::shared_ptr<Channel> inner, EmulatedPayload payload);

}  // namespace millrace
