// Reads and writes safetensors files without LibTorch: 8-byte little-endian header length, JSON header, raw
// tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/choices.h"
#include "runtime/base/mapped_file.h"
#include "runtime/base/result.h"
#include "runtime/saved/hash.h"

namespace millrace {

/// Returns whether a file that starts with `begin` (16 bytes or more) was written by torch.save. That is a
/// zip archive or, before PyTorch 1.6, pickles and raw tensors (kLegacyMagic).
bool is_torch_save(std::string_view begin);
/// The first pickle of a file written before PyTorch 1.6: an 80-bit number.
inline constexpr std::string_view kLegacyMagic{"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
                                               15};

/// Element types, by their names in headers.
enum class ElementType { F32, I64, Bool, I32, I16, I8, U8, F64, F16, BF16, C64 };
constexpr auto names_of(ElementType) {
  return std::to_array<std::string_view>(
      {"F32", "I64", "BOOL", "I32", "I16", "I8", "U8", "F64", "F16", "BF16", "C64"});
}
std::size_t bytes_of(ElementType type);  ///< bytes per element

/// A tensor without its elements.
struct TensorShape {
  std::string name;
  ElementType type = ElementType::F32;
  std::vector<std::int64_t> shape;

  std::uint64_t bytes() const;
};

/// Writes one file. Tensors are written in the given order, so the bytes are deterministic. Data goes to
/// `path.tmp.<pid>` until commit(). Throws CheckpointError with errno and, on a full disk, the required and
/// the free bytes; no part of the file remains then.
class TensorFileWriter {
 public:
  TensorFileWriter(const std::string& path, const std::vector<TensorShape>& tensors);
  ~TensorFileWriter();
  TensorFileWriter(const TensorFileWriter&) = delete;
  TensorFileWriter& operator=(const TensorFileWriter&) = delete;
  /// Appends elements of the tensors, in order, in pieces of any size.
  void add(const void* data, std::size_t bytes);
  /// Syncs the file and renames it to `path`. All elements must have been added.
  FileDigest commit();

 private:
  class Output;
  std::string path_;
  std::uint64_t missing_ = 0;  ///< bytes of elements not yet added
  std::unique_ptr<Output> output_;
};

/// A read-only mapped file. Every length, offset and shape is checked before any element is read. Move-only.
class TensorFile {
 public:
  static Result<TensorFile> open(const std::string& path);

  const std::vector<std::string>& names() const { return names_; }  ///< in header order
  bool contains(const std::string& name) const { return entries_.contains(name); }
  std::vector<std::int64_t> shape(const std::string& name) const { return entries_.at(name).shape; }
  ElementType element_type(const std::string& name) const { return entries_.at(name).type; }
  /// Returns the elements in row-major order. They may have any alignment.
  std::string_view elements(const std::string& name) const;
  FileDigest digest() const;  ///< reads the whole file
  std::int64_t bytes() const { return static_cast<std::int64_t>(file_.bytes().size()); }
  const std::string& path() const { return path_; }

 private:
  struct Entry {
    ElementType type = ElementType::F32;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;
  };
  TensorFile() = default;
  Status read_header();
  Status check_places() const;
  std::string path_;
  MappedFile file_;
  std::uint64_t payload_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, Entry> entries_;
};

}  // namespace millrace
