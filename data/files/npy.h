// NumPy's NPY arrays (versions 1 to 3). Source: NEP 1 and the format's description in NumPy's manual.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

struct NpyHeader {
  std::string descr;  ///< "<f4", "|u1", ...: byte order, kind, bytes
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
  std::int64_t element_bytes = 0;
  std::size_t data_offset = 0;  ///< offset of the first element
  Bytes data_bytes = 0;         ///< bytes of all elements; the product was checked for overflow
};

/// Reads the header at the start of `bytes`, which may end after it. Problems: not an NPY file, an unknown
/// version, a type other than numbers of fixed size (objects, structures, strings), a size beyond 2^62 bytes.
Result<NpyHeader> parse_npy_header(std::string_view bytes, const std::string& name);

/// Parses the header as above. `bytes` must hold exactly the array: a Problem says how many bytes are
/// missing or too many.
Result<NpyHeader> parse_npy(std::string_view bytes, const std::string& name);

/// Returns a version 1 header as NumPy writes it: C order, padded with spaces so that the data start at a
/// multiple of 64.
std::string npy_header(std::string_view descr, const std::vector<std::int64_t>& shape);

}  // namespace millrace
