// PipeDream's driver YAML as one of our jobs: what carries over, what is refused, what is ignored
// (docs/commands/launch.md).
#pragma once

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

/// A mapping with the keys `module` and `machines`.
bool is_pipedream_job(const Json& json);

/// Says what cuts the model: PipeDream's config_file, or a plan of ours that the caller gives.
enum class StagesFrom { ConfigFile, Plan };

/// Returns the same job with our keys. Values keep their places in the file. Problems: keys of neither
/// program, another model type, other numbers of machines and ranks.
Result<Json> convert_pipedream_job(const Json& json, const std::string& source, StagesFrom stages);

/// Returns notes for people on what the conversion leaves out or does otherwise than PipeDream. Reads
/// config_file.
std::vector<std::string> notes_on_pipedream_job(const Json& json, StagesFrom stages);

}  // namespace millrace
