// The wire format of protocol buffers: enough to write and read the few messages that other tools expect.
// Source: protobuf.dev, "Encoding". Written by hand because LibTorch carries a protobuf of its own.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "data/files/little_endian.h"

namespace millrace {

/// Appends fields to a message. The bytes do not describe themselves: a reader must know fields and types.
class ProtoWriter {
 public:
  static void varint(std::string& out, std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
    out += static_cast<char>(value);
  }
  void integer(int field, std::uint64_t value) { key(field, 0), varint(out_, value); }
  void fixed64(int field, std::uint64_t value) { key(field, 1), put_little(out_, value); }
  void number(int field, double value) { fixed64(field, std::bit_cast<std::uint64_t>(value)); }
  void number32(int field, float value) { key(field, 5), put_little(out_, value); }
  void bytes(int field, std::string_view value) {
    key(field, 2), varint(out_, value.size());
    out_ += value;
  }
  void message(int field, const ProtoWriter& value) { bytes(field, value.out_); }
  const std::string& text() const { return out_; }
  std::string& text() { return out_; }

 private:
  void key(int field, int type) {
    varint(out_, static_cast<std::uint64_t>(field) << 3 | static_cast<unsigned>(type));
  }
  std::string out_;
};

/// Reads the fields of one message one after the other. After damaged bytes next() returns false and
/// `damaged()` true.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view text) : rest_(text) {}

  bool next() {
    std::uint64_t key = 0;
    if (rest_.empty() || damaged_) return false;
    if (!varint(key) || key >> 3 == 0 || key >> 3 > 536870911) return fail();
    field_ = static_cast<int>(key >> 3);
    type_ = static_cast<int>(key & 7);
    switch (type_) {
      case 0:
        return varint(integer_) || fail();
      case 1:
        return take(8) || fail();
      case 2: {
        std::uint64_t size = 0;
        return (varint(size) && size <= rest_.size() && take(size)) || fail();
      }
      case 5:
        return take(4) || fail();
      default:
        return fail();
    }
  }
  int field() const { return field_; }
  int type() const { return type_; }
  std::uint64_t integer() const { return integer_; }  ///< type 0
  std::string_view bytes() const { return bytes_; }   ///< types 1, 2 and 5
  bool damaged() const { return damaged_; }

  static bool varint(std::string_view& from, std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (from.empty()) return false;
      const auto byte = static_cast<unsigned char>(from.front());
      from.remove_prefix(1);
      if (shift == 63 && byte > 1) return false;
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

 private:
  bool varint(std::uint64_t& value) { return varint(rest_, value); }
  bool take(std::size_t size) {
    if (size > rest_.size()) return false;
    bytes_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }
  bool fail() {
    damaged_ = true;
    return false;
  }

  std::string_view rest_, bytes_;
  int field_ = 0, type_ = 0;
  std::uint64_t integer_ = 0;
  bool damaged_ = false;
};

}  // namespace millrace
