// Writes the sample files of DLIO in all its formats, each from (seed, split, file) alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/files/sample_file.h"
#include "data/generate/payload.h"

namespace millrace {

enum class SampleCompression { None, Gzip, Zip };

/// One file to make. `dims` are those of one sample.
struct SampleFileSpec {
  SampleFormat format = SampleFormat::Npz;
  std::filesystem::path path;
  std::filesystem::path index;  ///< of tfrecord
  std::uint64_t seed = 0;       ///< of the data set
  std::string split;            ///< "train" or "valid"
  std::int64_t file = 0;        ///< number in its split
  Element element = Element::UInt8;
  std::vector<std::int64_t> dims;
  std::int64_t num_samples = 1;
  Randomness randomness;
  SampleCompression compression = SampleCompression::None;
  int compression_level = 4;
  int sets_per_record = 1;               ///< hdf5
  std::vector<std::int64_t> chunk_dims;  ///< hdf5
};

/// Returns the content of sample `sample` of the file. Thread-safe.
Payload payload_of(const SampleFileSpec& spec, std::int64_t sample);
Bytes sample_bytes(const SampleFileSpec& spec);

/// Throws DataError when the disk fails. Files appear whole or not at all, index files first.
void write_sample_file(const SampleFileSpec& spec);

/// How `read` differs from what write_sample_file put there as sample `sample`: its length, or its first byte
/// that differs, counted in the sample. JPEG loses bits: only its size is compared (`exact_content` says so).
std::optional<std::string> wrong_content(const SampleFileSpec& spec, std::int64_t sample,
                                         std::string_view read);
bool exact_content(SampleFormat format);

}  // namespace millrace
