// Data sets that are one long sequence of records cut into files: made by several threads, written in order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/units.h"

namespace millrace {

/// Records one behind the other.
struct RecordBlock {
  std::string bytes;
  std::vector<std::size_t> ends;  ///< of each record in `bytes`
  void end_record() { ends.push_back(bytes.size()); }
};

/// A stream of records. All functions are thread-safe and depend on nothing but their arguments.
class RecordStream {
 public:
  virtual ~RecordStream() = default;
  virtual std::int64_t block_records() const = 0;  ///< made at once
  /// Records block * block_records() and the ones after it.
  virtual void make(std::int64_t block, RecordBlock& out) const = 0;
  /// The file, relative to the data set, that `record` goes to, with `before` bytes of the data set before
  /// it. Equal for neighbours; a new name ends the file before.
  virtual std::string file_of(std::int64_t record, Bytes before) const = 0;
  /// Records in a finished file; the data set's last one may end early.
  enum class Place { Inner, Last };
  virtual std::int64_t records_in(const std::filesystem::path& file, Place place) const = 0;
  /// Bytes of each record if all have as many, else 0. Such a file goes on inside after an interruption.
  virtual Bytes record_bytes() const { return 0; }
};

struct StreamResult {
  std::int64_t records = 0;
  std::int64_t files = 0;
  Bytes bytes = 0;
  Bytes kept = 0;  ///< bytes that were there already
};

enum class StreamMode { Write, Check };
using Progress = std::function<void(Bytes done)>;

/// Writes the first records that together have at least `size` bytes, so at most one record more. Finished
/// files are kept. With Check compares instead of writing; DataError names the first byte that differs.
StreamResult run_stream(const RecordStream& stream, const std::filesystem::path& folder, Bytes size,
                        int threads, StreamMode mode, const Progress& progress);

}  // namespace millrace
