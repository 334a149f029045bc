// Zip archives with the features of NumPy's NPZ files: stored or deflated members, 64-bit sizes. Source:
// PKWARE's APPNOTE 6.3.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/file_writer.h"
#include "runtime/base/result.h"

namespace millrace {

struct ZipMember {
  std::string name;
  bool deflated = false;
  std::uint32_t crc = 0;  ///< CRC-32 (not C) of the unpacked bytes
  std::uint64_t packed_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t data_offset = 0;  ///< offset of the packed bytes
};

/// Returns the members of the archive in `bytes`; all lie inside it. Problems: not an archive, an encrypted
/// or split one, methods other than stored and deflated, members that overlap the directory.
Result<std::vector<ZipMember>> parse_zip(std::string_view bytes, const std::string& name);

/// Returns the unpacked member: a view into `bytes` if it is stored, else into `unpacked`. Checks size and
/// CRC. Refuses to unpack more than `limit` bytes: a damaged file may claim any size.
Result<std::string_view> zip_member(std::string_view bytes, const ZipMember& member, std::string& unpacked,
                                    const std::string& name, Bytes limit = 16 * kGiB);

/// Writes an archive member by member: `begin`, then `write` in parts, then `end`. `finish` ends the archive.
/// Members may have any size.
class ZipWriter {
 public:
  enum class Packing { Stored, Deflated };
  explicit ZipWriter(FileWriter& out) : out_(out) {}
  void begin(const std::string& name, Packing packing);
  void write(std::string_view bytes);
  void end();
  void finish();

 private:
  FileWriter& out_;
  struct Written {
    ZipMember member;
    std::uint64_t header_offset = 0;
  };
  std::vector<Written> members_;
  std::string pending_;  // the bytes of a deflated member, which end() packs in one go
};

/// Returns the CRC-32 that zip, gzip and PNG use. `crc` is that of the bytes before, as in crc32c().
std::uint32_t crc32_of(std::string_view bytes, std::uint32_t crc = 0);

}  // namespace millrace
