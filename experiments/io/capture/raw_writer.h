// Writes traced calls in the I/O kit's raw layouts: trace_read.out, trace_openat.out and the others.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "experiments/io/capture/file_event.h"
#include "experiments/io/capture/file_table.h"

namespace millrace {

/// One file of rows. A row is in the file whole or not at all, also when the disk is full.
class RowFile {
 public:
  /// Makes the file with its header. Throws DataError if it cannot.
  RowFile(const std::filesystem::path& path, std::string_view header);
  ~RowFile();
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;
  /// Appends a row (with its end of line). It reaches the file at the next flush.
  void add(std::string_view row);
  void flush();
  std::int64_t rows() const { return rows_; }  ///< written or waiting
  std::int64_t lost() const { return lost_; }  ///< the disk did not take them

 private:
  int fd_ = -1;
  std::string waiting_;
  std::int64_t waiting_rows_ = 0, rows_ = 0, lost_ = 0;
};

/// Thread-safe: the source of events adds, a sampler flushes.
class RawWriter {
 public:
  /// Makes trace_{bio,openat,read,write,close,create_del,mmap}.out in `folder`. Throws DataError.
  explicit RawWriter(const std::filesystem::path& folder);
  void add(const FileEvent& event);
  /// A row of the block layer, as it is written.
  void add_bio(std::string_view row);
  /// The process runs another program, or ended: its descriptors mean nothing any more.
  void forget(std::uint32_t process);
  void fork(std::uint32_t parent, std::uint32_t child);
  void flush();

  /// Rows by file name.
  std::map<std::string, std::int64_t> rows() const;
  /// Counts of what is not in the files, by the reason.
  std::map<std::string, std::int64_t> left_out() const;
  std::int64_t lost() const;
  /// Bytes that reads and writes of regular files moved.
  std::int64_t bytes_read() const { return bytes_read_; }
  std::int64_t bytes_written() const { return bytes_written_; }

 private:
  enum Kind { kBio, kOpenat, kRead, kWrite, kClose, kCreateDelete, kMmap, kKinds };
  const FileTable::File* opened(const FileEvent& event);
  void transfer(const FileEvent& event, Kind kind);
  /// Adds the row of one side of a transfer. Returns whether that side is a regular file.
  bool add_side(const FileEvent& event, Kind kind, std::int64_t descriptor, std::int64_t offset);
  void count(const char* what) { ++left_out_[what]; }

  mutable std::mutex mutex_;  // guards what follows
  std::array<std::unique_ptr<RowFile>, kKinds> files_;
  FileTable table_;
  std::map<std::string, std::int64_t> left_out_;
  std::int64_t bytes_read_ = 0, bytes_written_ = 0;
};

}  // namespace millrace
