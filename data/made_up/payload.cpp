#include "data/made_up/payload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "runtime/base/check.h"

namespace millrace {
namespace {

/// Returns `fraction_bits` random bits with entropy/8 of them kept at the top; the rest are zero.
std::uint64_t leveled(std::uint64_t value, int fraction_bits, double entropy) {
  const int kept = std::clamp(static_cast<int>(std::lround(fraction_bits * entropy / 8)), 1, fraction_bits);
  return (value >> (64 - kept)) << (fraction_bits - kept);
}

template <class Number>
void put(char* out, Number value) {
  std::memcpy(out, &value, sizeof value);
}

/// Returns k / 2^11 as a half float, for 0 <= k < 2^11.
std::uint16_t half_of(unsigned k) {
  if (k == 0) return 0;
  const int high = 31 - __builtin_clz(k);
  return static_cast<std::uint16_t>(((high - 11 + 15) << 10) | ((k << (10 - high)) & 0x3ff));
}

}  // namespace

Payload::Payload(std::uint64_t key, Element element, const Randomness& randomness)
    : key_(key),
      element_(element),
      randomness_(randomness),
      symbols_(static_cast<unsigned>(std::clamp(std::lround(std::exp2(randomness.entropy)), 2l, 256l))) {
  MILLRACE_CHECK(randomness.entropy > 0 && randomness.entropy <= 8);
  MILLRACE_CHECK(randomness.correlation >= 0 && randomness.correlation < 1);
}

void Payload::fill(std::int64_t offset, char* out, std::int64_t bytes) const {
  const bool integers = element_ < Element::Float16;
  if (integers && randomness_.correlation == 0) return fill_bytes(offset, out, bytes);
  const std::int64_t width = info_of(element_).bytes;
  // Numbers are made in whole blocks. Blocks that lie only partly in the range go through a buffer.
  const std::int64_t first = offset / width / kCorrelated * kCorrelated;
  std::string block(static_cast<std::size_t>(kCorrelated * width), '\0');
  for (std::int64_t number = first; number * width < offset + bytes; number += kCorrelated) {
    const std::int64_t start = number * width, end = start + kCorrelated * width;
    if (start >= offset && end <= offset + bytes) {
      fill_numbers(number, out + (start - offset), kCorrelated);
      continue;
    }
    fill_numbers(number, block.data(), kCorrelated);
    const std::int64_t from = std::max(start, offset), to = std::min(end, offset + bytes);
    if (from < to)
      std::memcpy(out + (from - offset), block.data() + (from - start), static_cast<std::size_t>(to - from));
  }
}

void Payload::fill_bytes(std::int64_t offset, char* out, std::int64_t bytes) const {
  const auto word_at = [&](std::int64_t index) {
    std::uint64_t word = hashed(key_, static_cast<std::uint64_t>(index));
    if (symbols_ == 256) return word;
    const unsigned step = 256 / symbols_;
    std::uint64_t result = 0;
    for (int i = 0; i < 64; i += 8) result |= std::uint64_t{((word >> i & 0xff) * symbols_ >> 8) * step} << i;
    return result;
  };
  std::int64_t at = 0;
  while (at < bytes && (offset + at) % 8 != 0) {
    out[at] = static_cast<char>(word_at((offset + at) / 8) >> ((offset + at) % 8 * 8));
    ++at;
  }
  for (; at + 8 <= bytes; at += 8) put(out + at, word_at((offset + at) / 8));
  if (at < bytes) {
    const std::uint64_t word = word_at((offset + at) / 8);
    std::memcpy(out + at, &word, static_cast<std::size_t>(bytes - at));
  }
}

void Payload::fill_numbers(std::int64_t first, char* out, std::int64_t count) const {
  const std::int64_t width = info_of(element_).bytes;
  const std::uint64_t coins = key_ ^ 0x5851f42d4c957f2dull;
  for (std::int64_t i = 0; i < count; ++i, out += width) {
    const auto index = static_cast<std::uint64_t>(first + i);
    if (i > 0 && randomness_.correlation > 0 && unit(hashed(coins, index)) < randomness_.correlation) {
      std::memcpy(out, out - width, static_cast<std::size_t>(width));
      continue;
    }
    const std::uint64_t value = hashed(key_, index);
    switch (element_) {
      case Element::Float16:
        put(out, half_of(static_cast<unsigned>(leveled(value, 11, randomness_.entropy))));
        break;
      case Element::Float32:
        put(out, static_cast<float>(leveled(value, 24, randomness_.entropy)) * 0x1.0p-24f);
        break;
      case Element::Float64:
        put(out, static_cast<double>(leveled(value, 53, randomness_.entropy)) * 0x1.0p-53);
        break;
      default:
        for (std::int64_t byte = 0; byte < width; ++byte)
          out[byte] = static_cast<char>((value >> (8 * byte) & 0xff) * symbols_ / 256 * (256 / symbols_));
    }
  }
}

}  // namespace millrace
