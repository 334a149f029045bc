// Writes the sample files of DLIO in all its formats, each from (seed, split, file) alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/files/sample_file.h"
#include "data/made_up/payload.h"

namespace millrace {

enum class SampleCompression { None, Gzip, Zip };

/// One file to make. `dims` are those of one sample.
struct SampleFileSpec {
  SampleFormat format = SampleFormat::Npz;
  std::filesystem::path path;
  std::filesystem::path index;  ///< tfrecord: path of the index file
  std::uint64_t seed = 0;       ///< seed of the data set
  std::string split;            ///< "train" or "valid"
  std::int64_t file = 0;        ///< number in its split
  Element element = Element::UInt8;
  std::vector<std::int64_t> dims;
  std::int64_t num_samples = 1;
  Randomness randomness;
  SampleCompression compression = SampleCompression::None;
  int compression_level = 4;
  int sets_per_record = 1;               ///< hdf5 only
  std::vector<std::int64_t> chunk_dims;  ///< hdf5 only
};

/// Returns the content of sample `sample` of the file. Thread-safe.
Payload payload_of(const SampleFileSpec& spec, std::int64_t sample);
Bytes sample_bytes(const SampleFileSpec& spec);

/// Writes the file and its index file. Each appears whole or not at all, the index first. Throws DataError
/// when the disk fails.
void write_sample_file(const SampleFileSpec& spec);

/// Returns how `read` differs from the content of sample `sample` that write_sample_file wrote: in its
/// length, or in its first byte that differs, counted from the sample's start. Returns nothing if they agree.
/// For JPEG, which loses bits, only the size is compared; then `exact_content` returns false.
std::optional<std::string> wrong_content(const SampleFileSpec& spec, std::int64_t sample,
                                         std::string_view read);
bool exact_content(SampleFormat format);

}  // namespace millrace
