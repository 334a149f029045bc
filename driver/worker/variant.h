// `--variant` of `train`.
#pragma once

#include "driver/worker/train_spec.h"

namespace millrace {

class Json;
struct RunReport;

/// Applies --counters, and the variant that the flags of `spec` name, if any. Call it last: it needs the
/// plan, the models and all other flags. Problems: a contradictory combination, a run whose times do not fit,
/// unreadable data.
Status apply_variant(TrainSpec& spec);

/// Returns the variant for summary.json: its name, its source, and the planned and real waits of a sleeping
/// run's rank. Null without a variant.
Json variant_as_json(const TrainSpec& spec, const RunReport& report);

}  // namespace millrace
