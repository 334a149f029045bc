#include "data/files/gzip.h"

#include <zlib.h>

#include <memory>

#include "runtime/base/files.h"

namespace millrace {

Result<std::string> read_unpacked_file(const std::filesystem::path& path, Bytes limit) {
  Result<std::string> packed = read_regular_file(path, limit);
  if (!packed || !packed->starts_with("\x1f\x8b")) return packed;
  const auto wrong = [&](const std::string& what) {
    return Problem{path.string(), what, "copy or download it again"};
  };
  constexpr int kGzip = 16;  // zlib's flag for gzip's header and checksum
  z_stream stream{};
  if (::inflateInit2(&stream, MAX_WBITS + kGzip) != Z_OK) return wrong("cannot be unpacked: no memory");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, ::inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(packed->data());
  stream.avail_in = static_cast<uInt>(packed->size());
  std::string bytes;
  int state = Z_OK;
  while (state != Z_STREAM_END) {
    const std::size_t before = bytes.size();
    if (before >= static_cast<std::size_t>(limit))
      return wrong("unpacks to more than " + std::to_string(limit) + " bytes");
    constexpr std::size_t kStep = 1 << 20;
    bytes.resize(before + kStep);
    stream.next_out = reinterpret_cast<Bytef*>(bytes.data() + before);
    stream.avail_out = kStep;
    state = ::inflate(&stream, Z_NO_FLUSH);
    bytes.resize(before + kStep - stream.avail_out);
    if (state == Z_BUF_ERROR || (state == Z_OK && stream.avail_in == 0 && stream.avail_out > 0))
      return wrong("the gzip stream is cut off");
    if (state != Z_OK && state != Z_STREAM_END)
      return wrong(std::string("the gzip stream is damaged") +
                   (stream.msg ? std::string(": ") + stream.msg : ""));
  }
  return bytes;
}

}  // namespace millrace
