// Tensors of LibTorch in safetensors files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/result.h"
#include "runtime/saved/hash.h"
#include "runtime/saved/tensor_file.h"

namespace millrace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns the name of a type in the header, e.g. "F32"; nullptr if the type is not supported.
const char* safetensors_name(at::ScalarType type);

/// Writes `path.tmp.<pid>`, syncs it and renames it to `path`. Tensors are written in the given order, so the
/// bytes are deterministic. Types are float16 to float64, bfloat16, integers and bool (others:
/// CheckpointError). Throws CheckpointError as TensorFileWriter does.
FileDigest write_safetensors(const std::string& path, const NamedTensors& tensors);

/// A TensorFile that returns LibTorch tensors.
class SafetensorsFile : public TensorFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  explicit SafetensorsFile(TensorFile&& file) : TensorFile(std::move(file)) {}

  at::ScalarType type(const std::string& name) const;
  at::Tensor tensor(const std::string& name) const;  ///< a copy
};

}  // namespace millrace
