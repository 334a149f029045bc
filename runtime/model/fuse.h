// Makes job arrays: B models with the same structure become one model, whose layers run all B
// (runtime/layers/job_array.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/layers/job_array.h"
#include "runtime/model/layered_model.h"

namespace millrace {

/// The data that the jobs of an array use.
enum class JobData {
  Shared,  ///< all jobs read the same batches: a field is loaded once, and has no job dimension
  Own,     ///< each job has its own batches: the fields of job 0 precede those of job 1, ...
};

struct FuseOptions {
  JobData data = JobData::Shared;
  /// patterns (*, ?) for names of layers that never get a kernel over all jobs
  std::vector<std::string> unfused;
};

/// Adds to each model the layers that only other models have, such as dropout of 0. One plan then fits all
/// models. An added layer passes its input through, so the job's results keep their bits. Nothing else is
/// changed: fuse() reports other differences.
void complete(std::vector<LayeredModel>& models);

/// Returns the models as one. Layers and heads keep their names, so plans stay valid. Tensors and parameters
/// of job b are called "NAME@b" and "job<b>/NAME". A tensor that depends on no job's parameters (a flattened
/// input) is shared by all jobs. A single model is returned unchanged.
/// Returns an error if the models differ in more than numbers (layers, shapes of parameters, fields, heads),
/// if a pattern matches no layer, or if the jobs read their own data and the lengths of samples vary.
Result<LayeredModel> fuse(std::vector<LayeredModel> models, const std::shared_ptr<KernelChoices>& choices,
                          const FuseOptions& options = {});

}  // namespace millrace
