// Samples in the file formats of DLIO, read one by one. A sample is the bytes that were written: decoded,
// unpacked, and checked as far as the format allows (checksums of npz and tfrecord, sizes of all).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/files/file_writer.h"

namespace millrace {

enum class SampleFormat {
  Npz,
  Npy,
  TfRecord,
  Csv,
  Jpeg,
  Png,
  Hdf5,
  IndexedBinary,
  MmapIndexedBinary,
  Synthetic
};

/// Returns DLIO's name, which is the files' extension too: "npz", ..., "mmap_indexed_binary", "synthetic".
const char* to_string(SampleFormat format);
std::optional<SampleFormat> sample_format_named(std::string_view name);

/// One open file. Not thread-safe: each thread that reads opens its own.
class SampleFile {
 public:
  virtual ~SampleFile() = default;
  virtual std::int64_t num_samples() const = 0;
  /// Returns the bytes of sample `index`, valid until the next call. Throws DataError for damage and a wrong
  /// index.
  virtual std::string_view sample(std::int64_t index) = 0;
  /// Returns the bytes read from storage so far.
  virtual Bytes bytes_read() const = 0;
};

/// Opens a sample file. `index` names the file with the offsets of the records, which only tfrecord has; it
/// may be absent. Throws DataError with the path. O_DIRECT works for npz, npy, tfrecord and the binaries.
std::unique_ptr<SampleFile> open_sample_file(SampleFormat format, const std::string& path,
                                             const std::string& index, const ReadOptions& options);

/// Returns whether `options.direct` has an effect for the format.
bool reads_directly(SampleFormat format);

}  // namespace millrace
