// A check of schedules for transports without tags.
#pragma once

#include "runtime/schedule/schedule.h"

namespace millrace {

/// Finds pairs of ranks whose lists have their messages, in one direction, in different orders. NCCL delivers
/// messages in the order of posting, so that such a rank would compute with another microbatch's tensor.
/// Pure.
Problems check_pair_order(const Schedule& schedule);

}  // namespace millrace
