// Fixed-width little-endian integers in byte strings, as zip, TFRecord, NPY and protobuf have them.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace millrace {

static_assert(std::endian::native == std::endian::little, "files are written as the memory has them");

/// Returns the integer at `offset`. The caller must check that it is inside `bytes`.
template <class Int>
Int get_little(std::string_view bytes, std::size_t offset = 0) {
  Int value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class Int>
void put_little(std::string& out, Int value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

}  // namespace millrace
