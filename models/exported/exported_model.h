// Programs of torch.export as models: any PyTorch model, exported once, without Python afterwards.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"

namespace millrace {

struct ExportedOptions {
  /// "auto": the first result that is one floating number is the loss; if there is none, scores [B, C] get
  /// cross-entropy. "loss", "cross-entropy" and "mean-squared-error" choose the head by name. Cross-entropy
  /// of a graph that ends in F.cross_entropy(scores, labels) takes these scores and labels.
  std::string head = "auto";
  /// How calls are grouped into layers: by a depth in the tree of modules (0: the whole model is one layer);
  /// "call": every call is a layer; "auto": the least depth that gives 16 layers with parameters.
  std::string granularity = "auto";
  /// Whether training draws random numbers; false: dropout is off.
  bool draws = true;
};

bool is_exported_model(const std::string& name);  ///< returns whether the name ends in .pt2

/// Makes the model in the archive at `path`, named after the file. The archive's weights are the initial
/// ones. Thread-safe. Problems: those of ExportedArchive, calls that are not ATen's, inputs without a common
/// batch dimension, no loss.
Result<LayeredModel> make_exported_model(const std::string& path, const ExportedOptions& options = {});

/// Writes a copy of `archive` to `path` with the weights of the file `weights` (safetensors with state_dict
/// names).
Status write_trained_archive(const std::string& archive, const std::string& weights, const std::string& path);

}  // namespace millrace
