// Checks the order of messages for transports without tags.
#pragma once

#include "runtime/schedule/schedule.h"

namespace millrace {

/// Empty if, for every pair of ranks and each direction, the sender's list has the messages in the same order
/// as the receiver's. NCCL delivers them in the order of posting: where the lists differ, a rank would
/// compute with another microbatch's tensor. Pure.
Problems check_pair_order(const Schedule& schedule);

}  // namespace millrace
