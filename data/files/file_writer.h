// A writer of files that appear whole or not at all, and a reader that can bypass the page cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/unfinished_file.h"
#include "runtime/base/units.h"

namespace millrace {

enum class Durability { Cached, Synced };  ///< Synced: fsync before the file gets its name

/// Writes PATH.partial, which `commit` renames to PATH. Without `commit` the destructor, or a signal that
/// ends the process, removes the partial file. So an interrupted writer leaves nothing that looks finished.
/// Throws DataError when the disk fails.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path, std::size_t buffer_bytes = 1 << 20);
  /// Continues after the first `keep` bytes of a PATH.partial that an interrupted writer left. If this
  /// writer is interrupted too, the partial file stays.
  static FileWriter continued(std::filesystem::path path, std::int64_t keep);
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&&) = delete;
  ~FileWriter();
  void write(std::string_view bytes);
  /// Returns room for the next `bytes` bytes of the file, at most the buffer's size. The caller must fill it
  /// before the next call.
  char* reserve(std::size_t bytes);
  void patch(std::int64_t offset, std::string_view bytes);  ///< overwrites bytes that were written
  std::int64_t size() const { return written_ + static_cast<std::int64_t>(used_); }
  void commit(Durability durability = Durability::Cached);

 private:
  enum class Partial { Removed, Kept };
  FileWriter(std::filesystem::path path, std::size_t buffer_bytes, std::int64_t keep, Partial partial);
  void flush();
  std::filesystem::path path_;
  std::string partial_;
  Partial when_interrupted_ = Partial::Removed;
  UnfinishedFile unfinished_;
  int fd_ = -1;
  std::unique_ptr<char[]> buffer_;
  std::size_t capacity_;
  std::size_t used_ = 0;
  std::int64_t written_ = 0;
};

/// A buffer of bytes aligned for O_DIRECT. It grows and never shrinks.
class AlignedBuffer {
 public:
  void resize(std::size_t bytes);  ///< the content is lost if the buffer grows
  char* data() { return data_.get(); }
  std::string_view view() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(char* p) const { ::operator delete[](p, std::align_val_t{4096}); }
  };
  std::unique_ptr<char[], Free> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

struct ReadOptions {
  bool direct = false;      ///< O_DIRECT bypasses the page cache; DataError if the file system refuses it
  Bytes transfer_size = 0;  ///< bytes of one read call; 0: all in one call
};

/// An open file for reads at any offset. Throws DataError with the path.
class FileReader {
 public:
  FileReader(const std::filesystem::path& path, const ReadOptions& options);
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;
  ~FileReader();
  Bytes size() const { return size_; }
  const std::string& path() const { return path_; }
  /// Reads the bytes [offset, offset + bytes) into `buffer`. The view is valid until the buffer's next use.
  /// Throws DataError if the file ends earlier.
  std::string_view read(std::int64_t offset, std::int64_t bytes, AlignedBuffer& buffer) const;

 private:
  std::string path_;
  ReadOptions options_;
  int fd_ = -1;
  Bytes size_ = 0;
};

}  // namespace millrace
