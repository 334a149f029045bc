// The part of HDF5 that sample files need: data sets of numbers, written whole and read sample by sample.
// The library is loaded when the first such file is opened. It needs two dozen other libraries, which would
// slow down the start of every command. Thread-safe: a lock allows one call into the library at a time, as
// Debian's build needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/elements.h"

namespace millrace {

struct Hdf5DataSet {
  std::string name;
  Element element = Element::UInt8;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> chunk;  ///< shape of a chunk; empty: one piece, or, if packed, a sample
  int gzip_level = 0;               ///< 0: not packed
  std::string_view data;
};

/// Writes a file with these data sets. Throws DataError: the library is not installed, the disk is full, and
/// others.
void write_hdf5(const std::string& path, const std::vector<Hdf5DataSet>& sets);

/// An open file for reads. Throws DataError with the path.
class Hdf5File {
 public:
  explicit Hdf5File(const std::string& path);
  Hdf5File(const Hdf5File&) = delete;
  Hdf5File& operator=(const Hdf5File&) = delete;
  ~Hdf5File();
  bool has(const std::string& set) const;
  std::vector<std::int64_t> shape(const std::string& set) const;
  /// Appends the stored bytes of the numbers at `index` of the first dimension to `out`.
  void read(const std::string& set, std::int64_t index, std::string& out) const;

 private:
  std::string path_;
  std::int64_t file_ = -1;
};

}  // namespace millrace
