// The tensors of a checkpoint, or of a file of weights, as bytes by name. LibTorch-free.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/saved/checkpoint_folder.h"
#include "runtime/saved/tensor_file.h"

namespace millrace {

/// A tensor in a file that is open.
struct SavedTensor {
  TensorShape shape;
  std::string_view elements;  ///< the last dimension first, at any address
};

/// All tensors of one place. They are valid as long as the object lives. Move-only.
struct SavedTensors {
  std::string path;                      ///< of the checkpoint's step folder, or of the file
  std::optional<ManifestHead> manifest;  /// of a checkpoint; nothing: it is a file
  std::map<std::string, SavedTensor> tensors;
  std::vector<TensorFile> files;                    ///< `tensors` points into these
  std::vector<std::shared_ptr<const void>> owners;  ///< likewise
};

/// Opens a file of tensors (safetensors, or PyTorch's .pt), a folder of torch.distributed.checkpoint, a step
/// folder, or the newest valid checkpoint of a folder that holds several. All bytes of a checkpoint are read
/// and hashed. Skipped checkpoints are logged. `key` names a nested dict of PyTorch's file.
/// Problem: nothing there can be read.
Result<SavedTensors> open_saved_tensors(const std::string& path, const std::string& key = "");

/// Whether a name is that of a weight or a buffer. Names of a rule's state and the like have a '/'.
inline bool is_weight(std::string_view name) {
  return name.find('/') == std::string_view::npos;
}

inline bool is_floating(ElementType type) {
  using enum ElementType;
  return type == F32 || type == F64 || type == F16 || type == BF16;
}
/// Returns the number at `at`, of any address. A complex number's real part.
double number_at(ElementType type, const char* at);

/// "[64, 3, 7, 7] F32"
std::string shape_text(const TensorShape& shape);

/// How far two tensors of one type and shape are apart.
struct TensorDifference {
  std::int64_t elements = 0;   ///< of the tensor
  std::int64_t different = 0;  ///< elements with other bits
  double largest = 0;          ///< largest |a - b|; NaN where one of them is NaN
  double relative = 0;         ///< |a - b| / |a| in the 2-norm; infinite where |a| is 0
};
TensorDifference difference_of(const SavedTensor& a, const SavedTensor& b);

}  // namespace millrace
