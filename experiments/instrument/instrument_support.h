// What the commands of `millrace instrument` share: where step times come from.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"
#include "experiments/instrument/step_data.h"

namespace millrace {

/// DIR..., --workload, --ranks, --batch, --manifest, --keep-warm-up.
void add_source_flags(CommandSpec& spec);

struct SourceArguments {
  StepDataOptions options;
  std::string label;  ///< "UNET3D", "DLIO_UNET3D", "MILLRACE"
  bool bert = false;  ///< the kit's BERT processor has other tables
  bool log_batches = false;
};
SourceArguments source_arguments(Arguments& arguments, Problems& problems);

/// Notes and counts of what was left out, to stderr.
void print_left_out(const StepData& data);

}  // namespace millrace
