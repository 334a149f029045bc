// Fixed-width little-endian integers in byte strings: what zip, TFRecord, NPY and protobuf are made of.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace millrace {

static_assert(std::endian::native == std::endian::little, "files are written as the memory has them");

/// The integer at `offset`; the caller has checked that it is inside.
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
