#include "data/files/zip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "data/files/little_endian.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr std::uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::uint32_t kIn64 = 0xffffffff;  // "see the 64-bit field"
constexpr std::size_t kMostMembers = 1 << 16;

/// Returns the offset of the end record, which a comment may follow.
std::size_t find_end(std::string_view bytes) {
  if (bytes.size() < 22) return std::string_view::npos;
  const std::size_t last = bytes.size() - 22;
  for (std::size_t back = 0; back <= std::min<std::size_t>(last, 65535); ++back) {
    if (get_little<std::uint32_t>(bytes, last - back) == kEnd) return last - back;
  }
  return std::string_view::npos;
}

/// Takes the 64-bit numbers of a directory entry from its extra field, if the entry refers to that field.
bool read_extra(std::string_view extra, ZipMember& member, std::uint64_t& header_offset) {
  while (extra.size() >= 4) {
    const auto id = get_little<std::uint16_t>(extra);
    const std::size_t length = get_little<std::uint16_t>(extra, 2);
    if (extra.size() < 4 + length) return false;
    std::string_view field = extra.substr(4, length);
    extra.remove_prefix(4 + length);
    if (id != 1) continue;
    for (std::uint64_t* value : {&member.bytes, &member.packed_bytes, &header_offset}) {
      if (*value != kIn64) continue;
      if (field.size() < 8) return false;
      *value = get_little<std::uint64_t>(field);
      field.remove_prefix(8);
    }
  }
  return true;
}

struct Directory {
  std::uint64_t offset = 0, bytes = 0, count = 0;
};

bool find_directory(std::string_view bytes, Directory& directory) {
  const std::size_t end = find_end(bytes);
  if (end == std::string_view::npos) return false;
  directory = {get_little<std::uint32_t>(bytes, end + 16), get_little<std::uint32_t>(bytes, end + 12),
               get_little<std::uint16_t>(bytes, end + 10)};
  const bool needs64 = directory.offset == kIn64 || directory.bytes == kIn64 || directory.count == 0xffff;
  if (needs64 && end >= 20 && get_little<std::uint32_t>(bytes, end - 20) == kLocator64) {
    const auto at = get_little<std::uint64_t>(bytes, end - 12);
    if (bytes.size() < 56 || at > bytes.size() - 56 || get_little<std::uint32_t>(bytes, at) != kEnd64)
      return false;
    directory = {get_little<std::uint64_t>(bytes, at + 48), get_little<std::uint64_t>(bytes, at + 40),
                 get_little<std::uint64_t>(bytes, at + 32)};
  }
  return directory.offset <= bytes.size() && directory.bytes <= bytes.size() - directory.offset;
}

}  // namespace

std::uint32_t crc32_of(std::string_view bytes, std::uint32_t crc) {
  while (!bytes.empty()) {  // zlib takes at most 2^32 - 1 bytes at a time
    const std::size_t part = std::min<std::size_t>(bytes.size(), 1u << 30);
    crc = static_cast<std::uint32_t>(
        ::crc32(crc, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(part)));
    bytes.remove_prefix(part);
  }
  return crc;
}

Result<std::vector<ZipMember>> parse_zip(std::string_view bytes, const std::string& name) {
  const auto wrong = [&](std::string what) {
    return Problem{name, "is no readable zip archive: " + what, "the file may be cut off: generate it again"};
  };
  Directory directory;
  if (!find_directory(bytes, directory)) return wrong("its directory is missing");
  if (directory.count > kMostMembers) return wrong("it claims more than 65,536 members");
  std::string_view rest = bytes.substr(directory.offset, directory.bytes);
  std::vector<ZipMember> members;
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    if (rest.size() < 46 || get_little<std::uint32_t>(rest) != kCentral)
      return wrong("its directory is damaged");
    const auto flags = get_little<std::uint16_t>(rest, 8), method = get_little<std::uint16_t>(rest, 10);
    const std::size_t name_bytes = get_little<std::uint16_t>(rest, 28);
    const std::size_t extra_bytes = get_little<std::uint16_t>(rest, 30);
    const std::size_t comment_bytes = get_little<std::uint16_t>(rest, 32);
    if (rest.size() < 46 + name_bytes + extra_bytes + comment_bytes) return wrong("its directory is damaged");
    ZipMember member{.name = std::string(rest.substr(46, name_bytes)),
                     .deflated = method == 8,
                     .crc = get_little<std::uint32_t>(rest, 16),
                     .packed_bytes = get_little<std::uint32_t>(rest, 20),
                     .bytes = get_little<std::uint32_t>(rest, 24)};
    std::uint64_t header = get_little<std::uint32_t>(rest, 42);
    if (flags & 1) return wrong("'" + member.name + "' is encrypted");
    if (method != 0 && method != 8)
      return wrong("'" + member.name + "' is packed by method " + std::to_string(method));
    if (!read_extra(rest.substr(46 + name_bytes, extra_bytes), member, header))
      return wrong("its directory is damaged");
    rest.remove_prefix(46 + name_bytes + extra_bytes + comment_bytes);
    if (directory.offset < 30 || header > directory.offset - 30 ||
        get_little<std::uint32_t>(bytes, header) != kLocal)
      return wrong("'" + member.name + "' is not where its directory says");
    member.data_offset = header + 30 + get_little<std::uint16_t>(bytes, header + 26) +
                         get_little<std::uint16_t>(bytes, header + 28);
    if (member.data_offset > directory.offset || member.packed_bytes > directory.offset - member.data_offset)
      return wrong("'" + member.name + "' runs into the directory");
    if (!member.deflated && member.packed_bytes != member.bytes)
      return wrong("'" + member.name + "' has two sizes");
    members.push_back(std::move(member));
  }
  return members;
}

Result<std::string_view> zip_member(std::string_view bytes, const ZipMember& member, std::string& unpacked,
                                    const std::string& name, Bytes limit) {
  const auto wrong = [&](std::string what) {
    return Problem{name + ":" + member.name, std::move(what), "the file is damaged: generate it again"};
  };
  std::string_view content = bytes.substr(member.data_offset, member.packed_bytes);
  if (member.deflated) {
    // Deflate packs at most 1032 bytes or so into one.
    if (member.bytes > static_cast<std::uint64_t>(limit) || member.bytes / 1100 > member.packed_bytes + 1)
      return wrong("claims to unpack to " + std::to_string(member.bytes) + " bytes");
    unpacked.resize(member.bytes);
    z_stream stream{};
    if (::inflateInit2(&stream, -MAX_WBITS) != Z_OK) return wrong("cannot be unpacked");
    std::size_t in = 0, out = 0;
    int state = Z_OK;
    constexpr std::size_t kPart = std::size_t{1} << 30;
    while (state == Z_OK) {
      const std::size_t in_part = std::min(content.size() - in, kPart),
                        out_part = std::min(unpacked.size() - out, kPart);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data() + in));
      stream.avail_in = static_cast<uInt>(in_part);
      stream.next_out = reinterpret_cast<Bytef*>(unpacked.data() + out);
      stream.avail_out = static_cast<uInt>(out_part);
      state = ::inflate(&stream, Z_NO_FLUSH);
      in += in_part - stream.avail_in;
      out += out_part - stream.avail_out;
      if (in_part == stream.avail_in && out_part == stream.avail_out) break;  // no progress
    }
    ::inflateEnd(&stream);
    if (state != Z_STREAM_END || out != unpacked.size())
      return wrong("is damaged: it does not unpack to its size");
    content = unpacked;
  }
  if (crc32_of(content) != member.crc) return wrong("is damaged: its checksum differs");
  return content;
}

void ZipWriter::begin(const std::string& name, Packing packing) {
  Written written{.member = {.name = name, .deflated = packing == Packing::Deflated},
                  .header_offset = static_cast<std::uint64_t>(out_.size())};
  std::string header;
  put_little(header, kLocal);
  put_little<std::uint16_t>(header, 45);  // version that knows 64-bit sizes
  put_little<std::uint16_t>(header, 0);
  put_little<std::uint16_t>(header, packing == Packing::Deflated ? 8 : 0);
  put_little<std::uint32_t>(header, 0x00210000);  // 1980-01-01, so that the bytes do not depend on the time
  put_little<std::uint32_t>(header, 0);           // CRC, patched at the end
  put_little(header, kIn64);
  put_little(header, kIn64);
  put_little(header, static_cast<std::uint16_t>(name.size()));
  put_little<std::uint16_t>(header, 20);
  header += name;
  put_little<std::uint16_t>(header, 1);
  put_little<std::uint16_t>(header, 16);
  header.append(16, '\0');  // sizes, patched at the end
  out_.write(header);
  written.member.data_offset = static_cast<std::uint64_t>(out_.size());
  members_.push_back(std::move(written));
}

void ZipWriter::write(std::string_view bytes) {
  ZipMember& member = members_.back().member;
  member.crc = crc32_of(bytes, member.crc);
  member.bytes += bytes.size();
  if (member.deflated) {
    pending_ += bytes;
  } else {
    out_.write(bytes);
  }
}

void ZipWriter::end() {
  ZipMember& member = members_.back().member;
  if (member.deflated) {
    z_stream stream{};
    MILLRACE_CHECK(::deflateInit2(&stream, 1, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    std::string packed(1 << 20, '\0');
    std::size_t in = 0;
    int state = Z_OK;
    while (state != Z_STREAM_END) {
      const std::size_t part = std::min<std::size_t>(pending_.size() - in, 1u << 30);
      stream.next_in = reinterpret_cast<Bytef*>(pending_.data() + in);
      stream.avail_in = static_cast<uInt>(part);
      stream.next_out = reinterpret_cast<Bytef*>(packed.data());
      stream.avail_out = static_cast<uInt>(packed.size());
      state = ::deflate(&stream, in + part == pending_.size() ? Z_FINISH : Z_NO_FLUSH);
      in += part - stream.avail_in;
      out_.write(std::string_view(packed).substr(0, packed.size() - stream.avail_out));
    }
    ::deflateEnd(&stream);
    pending_.clear();
  }
  member.packed_bytes = static_cast<std::uint64_t>(out_.size()) - member.data_offset;
  std::string crc, sizes;
  put_little(crc, member.crc);
  put_little(sizes, member.bytes);
  put_little(sizes, member.packed_bytes);
  const auto header = static_cast<std::int64_t>(members_.back().header_offset);
  out_.patch(header + 14, crc);
  out_.patch(header + 30 + static_cast<std::int64_t>(member.name.size()) + 4, sizes);
}

void ZipWriter::finish() {
  const auto start = static_cast<std::uint64_t>(out_.size());
  std::string directory;
  for (const auto& [member, header_offset] : members_) {
    const bool wide = member.bytes >= kIn64 || member.packed_bytes >= kIn64 || header_offset >= kIn64;
    const auto narrow = [&](std::uint64_t value) { return wide ? kIn64 : static_cast<std::uint32_t>(value); };
    put_little(directory, kCentral);
    put_little<std::uint32_t>(directory, 45 | 45 << 16);
    put_little<std::uint16_t>(directory, 0);
    put_little<std::uint16_t>(directory, member.deflated ? 8 : 0);
    put_little<std::uint32_t>(directory, 0x00210000);
    put_little(directory, member.crc);
    put_little(directory, narrow(member.packed_bytes));
    put_little(directory, narrow(member.bytes));
    put_little(directory, static_cast<std::uint16_t>(member.name.size()));
    put_little<std::uint16_t>(directory, wide ? 28 : 0);
    directory.append(10, '\0');  // comment, disk, attributes
    put_little(directory, narrow(header_offset));
    directory += member.name;
    if (!wide) continue;
    put_little<std::uint32_t>(directory, 1 | 24 << 16);
    for (const std::uint64_t value : {member.bytes, member.packed_bytes, header_offset})
      put_little(directory, value);
  }
  const std::uint64_t bytes = directory.size();
  const bool wide = start >= kIn64;
  if (wide) {
    put_little(directory, kEnd64);
    put_little<std::uint64_t>(directory, 44);
    put_little<std::uint32_t>(directory, 45 | 45 << 16);
    put_little<std::uint64_t>(directory, 0);
    for (const std::uint64_t value :
         {std::uint64_t{members_.size()}, std::uint64_t{members_.size()}, bytes, start})
      put_little(directory, value);
    put_little(directory, kLocator64);
    put_little<std::uint32_t>(directory, 0);
    put_little(directory, start + bytes);
    put_little<std::uint32_t>(directory, 1);
  }
  put_little(directory, kEnd);
  put_little<std::uint32_t>(directory, 0);
  put_little(directory, static_cast<std::uint16_t>(members_.size()));
  put_little(directory, static_cast<std::uint16_t>(members_.size()));
  put_little(directory, static_cast<std::uint32_t>(bytes));
  put_little(directory, wide ? kIn64 : static_cast<std::uint32_t>(start));
  put_little<std::uint16_t>(directory, 0);
  out_.write(directory);
}

}  // namespace millrace
