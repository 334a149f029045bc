// The flags of `train` that ask for values. Emulated devices compute none. LibTorch-free.
#pragma once

#include <span>

#include "driver/flags/compute_specs.h"

namespace millrace {

struct ValueFlag {
  const char* name;  ///< without dashes
  bool (*given)(const TrainFlags& flags);
  /// The job means something without it: `emulate` leaves it out. Else a job with it is refused.
  bool can_be_left_out = true;
};

/// The one list of them: `emulate` leaves them out of a job, `train --device emulated` refuses them.
std::span<const ValueFlag> value_flags();

}  // namespace millrace
