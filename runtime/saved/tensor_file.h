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

/// Returns whether a file that begins with `begin` (16 bytes or more) is one of torch.save: a zip archive,
/// or, of PyTorch before 1.6, pickles and raw tensors (kLegacyMagic).
bool is_torch_save(std::string_view begin);
/// The first pickle of a file of PyTorch before 1.6: a number of 80 bits.
inline constexpr std::string_view kLegacyMagic{"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
                                               15};

/// The types of elements, by the names that headers give them.
enum class ElementType { F32, I64, Bool, I32, I16, I8, U8, F64, F16, BF16, C64 };
constexpr auto names_of(ElementType) {
  return std::to_array<std::string_view>(
      {"F32", "I64", "BOOL", "I32", "I16", "I8", "U8", "F64", "F16", "BF16", "C64"});
}
std::size_t bytes_of(ElementType type);  ///< of one element

/// A tensor without its elements.
struct TensorShape {
  std::string name;
  ElementType type = ElementType::F32;
  std::vector<std::int64_t> shape;

  std::uint64_t bytes() const;
};

/// Writes one file. The order of tensors is the given one, which fixes the bytes. Everything goes to
/// `path.tmp.<pid>` until commit(). Throws CheckpointError with errno and, on a full disk, the bytes that are
/// needed and free; nothing stays of the file then.
class TensorFileWriter {
 public:
  TensorFileWriter(const std::string& path, const std::vector<TensorShape>& tensors);
  ~TensorFileWriter();
  TensorFileWriter(const TensorFileWriter&) = delete;
  TensorFileWriter& operator=(const TensorFileWriter&) = delete;
  /// Appends elements: those of the tensors in their order, in pieces of any size.
  void add(const void* data, std::size_t bytes);
  /// Syncs the file and renames it to `path`. All elements must have been added.
  FileDigest commit();

 private:
  class Output;
  std::string path_;
  std::uint64_t missing_ = 0;  ///< bytes of elements
  std::unique_ptr<Output> output_;
};

/// A read-only mapped file. Every length, offset and shape is checked before an element is read. Move-only.
class TensorFile {
 public:
  static Result<TensorFile> open(const std::string& path);

  const std::vector<std::string>& names() const { return names_; }  ///< in the header's order
  bool contains(const std::string& name) const { return entries_.contains(name); }
  std::vector<std::int64_t> shape(const std::string& name) const { return entries_.at(name).shape; }
  ElementType element_type(const std::string& name) const { return entries_.at(name).type; }
  /// The elements in the order of the last dimension first. They may lie at any address.
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
