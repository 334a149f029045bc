// Data sets that are one long sequence of records, divided into files. Several threads make the records; one
// writes them in order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/units.h"

namespace millrace {

/// Some records, one behind the other.
struct RecordBlock {
  std::string bytes;
  std::vector<std::size_t> ends;  ///< the end of each record in `bytes`
  void end_record() { ends.push_back(bytes.size()); }
};

/// A stream of records. All functions are thread-safe and depend on nothing but their arguments.
class RecordStream {
 public:
  virtual ~RecordStream() = default;
  virtual std::int64_t block_records() const = 0;  ///< returns the number of records of a block
  /// Makes the records of a block: the first has the number block * block_records().
  virtual void make(std::int64_t block, RecordBlock& out) const = 0;
  /// Returns the file of `record`, relative to the data set. `before` is the number of bytes of the data set
  /// before the record. Records of one file are neighbours: a new name ends the file before.
  virtual std::string file_of(std::int64_t record, Bytes before) const = 0;
  enum class Place { Inner, Last };
  /// Returns the number of records in a finished file. The last file of a data set may end early.
  virtual std::int64_t records_in(const std::filesystem::path& file, Place place) const = 0;
  /// Returns the bytes of a record if all records have the same size, else 0. After an interruption, files of
  /// such records continue behind their whole blocks; others are made anew.
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

/// Writes the fewest first records that together have at least `size` bytes. Finished files are kept. With
/// Check it compares instead of writing, and a DataError names the first byte that differs.
StreamResult run_stream(const RecordStream& stream, const std::filesystem::path& folder, Bytes size,
                        int threads, StreamMode mode, const Progress& progress);

}  // namespace millrace
