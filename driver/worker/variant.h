// `--variant` of `train`.
#pragma once

#include "driver/worker/train_spec.h"

namespace millrace {

class Json;
struct RunReport;

/// Decides what --counters do, and makes `spec` the variant that its flags name; without one it stays as it
/// is. Comes last: the plan, the models and all other flags are known. Problems: a combination that makes no
/// sense, a run to take times from that does not fit, data that cannot be read.
Status apply_variant(TrainSpec& spec);

/// Returns what summary.json says of the variant: its name, where it comes from, and what a rank of a
/// sleeping run was to wait and did. Null without one.
Json variant_as_json(const TrainSpec& spec, const RunReport& report);

}  // namespace millrace
