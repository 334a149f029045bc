// Destinations for a run's metrics during training, in addition to the step log.
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

/// Named numbers of one step.
using Scalars = std::vector<std::pair<std::string, double>>;

/// Returns the numbers in a line of the step log. Booleans are 0 and 1.
Scalars scalars_of(const Json& line);

/// Receives the numbers of steps in order. Not thread-safe.
class ScalarSink {
 public:
  virtual ~ScalarSink() = default;
  /// Writes numbers of `step`, which keeps counting across resumes. A step may be written several times, with
  /// other names: an evaluation belongs to the step that it follows. `unix_s`: seconds since 1970 at the end
  /// of the step. Earlier numbers are in the file, or will be within one step. Returns an error if the disk
  /// fails.
  virtual Status write(std::int64_t step, double unix_s, const Scalars& values) = 0;
};

/// Opens a sink for a run that starts at step `from`. A sink that holds that step or later ones of an earlier
/// attempt drops them. Throws ConfigError on failure.
using OpenScalarSink = std::function<std::unique_ptr<ScalarSink>(std::int64_t from)>;

}  // namespace millrace
