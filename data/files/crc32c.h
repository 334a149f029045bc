// CRC-32C (Castagnoli), as TFRecord and TensorBoard frame their records with it.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

/// Returns the checksum of `bytes`. If `crc` is the checksum of an earlier part, returns that of both parts
/// together. Uses SSE 4.2 if the processor has it. Thread-safe.
std::uint32_t crc32c(std::string_view bytes, std::uint32_t crc = 0);

/// Returns the number that TFRecord stores instead of the checksum itself. A checksum of checksums then
/// stays a good one.
constexpr std::uint32_t masked_crc(std::uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace millrace
