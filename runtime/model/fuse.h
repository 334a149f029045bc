// Job arrays: B models of one form become one, whose layers run all B (runtime/layers/job_array.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/layers/job_array.h"
#include "runtime/model/layered_model.h"

namespace millrace {

/// What the jobs of an array read.
enum class JobData {
  Shared,  ///< the same batches: a field is loaded once, and has no job dimension
  Own,     ///< each its own: fields are those of job 0, then those of job 1, ...
};

struct FuseOptions {
  JobData data = JobData::Shared;
  std::vector<std::string> unfused;  ///< patterns (*, ?) of the names of layers that never get a kernel
};

/// The models of jobs get the layers that others of them have and they leave out, dropout of 0: one plan then
/// fits them all. Such a layer passes on what it gets, so a job keeps its bits. Nothing else is changed; what
/// else differs is fuse()'s to say.
void complete(std::vector<LayeredModel>& models);

/// The models as one: layers, heads and plans keep their names; tensors and parameters of job b are called
/// "NAME@b" and "job<b>/NAME". What no job's parameters act on (a flattened input) stays one for all. One
/// model comes back as it is.
/// Problems: the models differ in more than numbers (layers, shapes of parameters, fields, heads), a pattern
/// matches no layer, own data of samples whose lengths vary.
Result<LayeredModel> fuse(std::vector<LayeredModel> models, const std::shared_ptr<KernelChoices>& choices,
                          const FuseOptions& options = {});

}  // namespace millrace
