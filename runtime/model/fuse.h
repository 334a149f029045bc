// Makes job arrays: B models of one form become one model, whose layers run all B
// (runtime/layers/job_array.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/layers/job_array.h"
#include "runtime/model/layered_model.h"

namespace millrace {

/// The data that the jobs of an array read.
enum class JobData {
  Shared,  ///< all jobs read the same batches: a field is loaded once, and has no job dimension
  Own,     ///< each job reads its own: the fields of job 0 come first, then those of job 1, ...
};

struct FuseOptions {
  JobData data = JobData::Shared;
  /// patterns (*, ?) of the names of layers that never get a kernel over all jobs
  std::vector<std::string> unfused;
};

/// Adds to each model the layers that other models have and it leaves out, such as dropout of 0. One plan
/// then fits all models. An added layer passes on what it gets, so the job's results keep their bits. Nothing
/// else is changed: fuse() reports other differences.
void complete(std::vector<LayeredModel>& models);

/// Returns the models as one. Layers and heads keep their names, and so do plans. Tensors and parameters of
/// job b are called "NAME@b" and "job<b>/NAME". A tensor on which no job's parameters act (a flattened input)
/// stays one for all jobs. A single model is returned as it is.
/// Problems: the models differ in more than numbers (layers, shapes of parameters, fields, heads); a pattern
/// matches no layer; the jobs read their own data and the lengths of samples vary.
Result<LayeredModel> fuse(std::vector<LayeredModel> models, const std::shared_ptr<KernelChoices>& choices,
                          const FuseOptions& options = {});

}  // namespace millrace
