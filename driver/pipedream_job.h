// PipeDream's driver YAML as one of our jobs: what carries over, what is refused, what is ignored (docs/formats.md).
#pragma once

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

/// A mapping with the keys `module` and `machines`.
bool is_pipedream_job(const Json& json);

/// The same job with our keys; values keep their places in the file. Reads `config_file` for the stages.
/// A stage of several ranks beside stages of other sizes needs a plan: the result then has no `plan` key, and
/// `ranks` of the whole job; give `--set plan=FILE`.
Result<Json> convert_pipedream_job(const Json& json, const std::string& source);

/// What the conversion leaves out, for people: one sentence each.
std::vector<std::string> notes_on_pipedream_job(const Json& json);

}  // namespace millrace
