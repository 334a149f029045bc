// A fitted step time as a workload file, in the configuration format of DLIO with our families beside its
// own.
#pragma once

#include <string>

#include "experiments/io/instrument/distribution_fit.h"

namespace millrace {

/// {type: ...} as `train.computation_time` takes it: a number (constant), normal, gamma, exponential,
/// lognormal, mixture (of normals or log-normals) or empirical (values). Weibull has no name there: it
/// becomes 200 values at equal steps of its probability.
Json computation_time_json(const Distribution& distribution);

struct WorkloadFile {
  std::string name;
  int ranks = 1;
  int batch = 1;
  Distribution computation;
  std::string comment;  ///< where it comes from
};

/// YAML.
std::string workload_yaml(const WorkloadFile& file);

}  // namespace millrace
