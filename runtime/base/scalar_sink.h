// Where the numbers of a run go while it trains, beside the step log.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

/// Numbers of one step with their names.
using Scalars = std::vector<std::pair<std::string, double>>;

/// Returns the numbers in a line of the step log. Booleans are 0 and 1.
Scalars scalars_of(const Json& line);

/// Takes the numbers of steps in order. Not thread-safe.
class ScalarSink {
 public:
  virtual ~ScalarSink() = default;
  /// Takes numbers of `step`, which counts from 0 over resumes. One step may come several times, with other
  /// names: an evaluation belongs to the step that it follows. `unix_s`: seconds since 1970 when the step
  /// ended. What was taken before is in the file, or will be within one step. A Problem: the disk fails.
  virtual Status write(std::int64_t step, double unix_s, const Scalars& values) = 0;
};

/// Opens a sink for a run that begins with the step `from`. A sink that holds that step or later ones of an
/// earlier attempt drops them. Throws ConfigError.
using OpenScalarSink = std::function<std::unique_ptr<ScalarSink>(std::int64_t from)>;

}  // namespace millrace
