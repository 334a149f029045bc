// safetensors files: 8-byte little-endian header length, JSON header, raw tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/result.h"

namespace millrace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes `path.tmp.<pid>`, fsyncs and renames. Tensors are float32 or int64 (others: CheckpointError), in
/// the order given, which fixes the bytes. Returns the checksum of the file. Throws CheckpointError with
/// errno.
std::uint64_t write_safetensors(const std::string& path, const NamedTensors& tensors);

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
  at::Tensor tensor(const std::string& name) const;  ///< a copy
  std::uint64_t checksum() const;                    ///< of the whole file

 private:
  struct Entry {
    bool is_float = true;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;
  };
  SafetensorsFile() = default;
  const char* data_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t payload_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, Entry> entries_;
};

}  // namespace millrace
