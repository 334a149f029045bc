// Messages between emulated devices.
#pragma once

#include <memory>

#include "runtime/comm/channel.h"
#include "runtime/device/compute_device.h"
#include "runtime/emulation/emulated_device.h"

namespace millrace {

/// Whether ranks of one host read each other's messages in place: ranks on CPUs do, through shared memory.
enum class SharedMemory { None, WithinHosts };

/// Makes messages wait for `device`: a send departs when the device has completed the work issued before it.
/// A message that is read in place takes no device memory. This channel must wrap all others that take time
/// for messages. `device` must outlive it.
std::shared_ptr<Channel> make_device_ordered(std::shared_ptr<Channel> inner, EmulatedDevice& device,
                                             SharedMemory shared = SharedMemory::None);

/// Carries tensors without values (LibTorch's device "meta") as messages of the host. With
/// EmulatedPayload::None a message also carries its Transfer::moment, if it has one, to a receive that
/// requests it. This channel must directly wrap the transport.
std::shared_ptr<Channel> make_valueless(std::shared_ptr<Channel> inner, EmulatedPayload payload);

}  // namespace millrace
