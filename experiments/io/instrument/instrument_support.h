// Helpers of the commands of `millrace instrument`: the sources of step times.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "driver/cli/cli.h"
#include "experiments/io/instrument/step_data.h"
#include "runtime/base/choices.h"

namespace millrace {

enum class StepWorkload { Unet3d, Dlrm, Bert, DlioUnet3d, DlioBert, DlioDlrm, Own };
constexpr auto names_of(StepWorkload) {
  return std::to_array<std::string_view>(
      {"unet3d", "dlrm", "bert", "dlio-unet3d", "dlio-bert", "dlio-dlrm", "millrace"});
}

struct SourceFlags {
  StepWorkload workload = StepWorkload::Unet3d;
  StepDataOptions options;  ///< folders, source and by_sample are set by `complete`

  std::string label() const;                                    ///< "UNET3D", "DLIO_UNET3D", "MILLRACE"
  bool bert() const { return workload == StepWorkload::Bert; }  ///< the kit's processor has other tables
  bool log_batches() const { return workload == StepWorkload::Dlrm || workload == StepWorkload::DlioDlrm; }
};

/// DIR..., --workload, --ranks, --batch, --manifest, --keep-warm-up.
void add_source_flags(CommandSpec& spec, SourceFlags& flags);
/// Fills in what follows from the flags that were given.
Problems complete(SourceFlags& flags, const Arguments& given);

/// Notes and counts of what was left out, to stderr.
void print_left_out(const StepData& data);

}  // namespace millrace
