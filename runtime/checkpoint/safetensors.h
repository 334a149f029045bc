// Reads and writes safetensors files: 8-byte little-endian header length, JSON header, raw tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/result.h"
#include "runtime/saved/hash.h"

namespace millrace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns the name of a type in the header, e.g. "F32"; nullptr for a type that is not supported.
const char* safetensors_name(at::ScalarType type);

/// Writes `path.tmp.<pid>`, fsyncs it and renames it to `path`. The order of tensors is the given one, which
/// fixes the bytes. Types are float16 to float64, bfloat16, integers and bool (others: CheckpointError).
/// Throws CheckpointError with errno and, on a full disk, the bytes that are needed and free.
FileDigest write_safetensors(const std::string& path, const NamedTensors& tensors);

/// A read-only mapped file. Every length, offset and shape is checked before a tensor is made.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return entries_.contains(name); }
  std::vector<std::int64_t> shape(const std::string& name) const { return entries_.at(name).shape; }
  at::ScalarType type(const std::string& name) const { return entries_.at(name).type; }
  at::Tensor tensor(const std::string& name) const;  ///< a copy
  FileDigest digest() const;                         ///< reads the whole file
  std::int64_t bytes() const { return static_cast<std::int64_t>(size_); }
  const std::string& path() const { return path_; }

 private:
  struct Entry {
    at::ScalarType type = at::kFloat;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;
  };
  SafetensorsFile() = default;
  std::string path_;
  const char* data_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t payload_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, Entry> entries_;
};

}  // namespace millrace
