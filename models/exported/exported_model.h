// Programs of torch.export as models: any PyTorch model, exported once, without Python afterwards.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"

namespace millrace {

struct ExportedOptions {
  /// auto: the first result that is one floating number is the loss, else scores [B, C] end in cross-entropy;
  /// loss, cross-entropy, mean-squared-error: just that.
  std::string head = "auto";
  /// How finely calls are grouped into layers: a depth in the tree of modules (0: the whole model), "call":
  /// every call is one, "auto": the least depth that gives 16 layers with parameters.
  std::string granularity = "auto";
};

bool is_exported_model(const std::string& name);  ///< NAME.pt2

/// The model in the archive at `path`, named after the file, with the archive's weights as initial ones.
/// Thread-safe. Problems: see ExportedArchive; calls that are not ATen's; inputs without a common batch
/// dimension; no loss.
Result<LayeredModel> make_exported_model(const std::string& path, const ExportedOptions& options = {});

/// Writes `archive` again to `path` with the weights in `weights` (safetensors, by state_dict name).
Status write_trained_archive(const std::string& archive, const std::string& weights, const std::string& path);

}  // namespace millrace
