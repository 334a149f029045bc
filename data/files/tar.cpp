#include "data/files/tar.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/base/lfs_pointer.h"
#include "runtime/base/numbers.h"
#include "runtime/base/read_time.h"

namespace millrace {
namespace {

constexpr std::int64_t kBlock = 512, kMostHeaderText = 1 << 20;

struct File {
  int fd = -1;
  std::int64_t size = 0;
  explicit File(const std::filesystem::path& path)
      : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat status {};
    if (fd >= 0 && ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) size = status.st_size;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  bool read(std::int64_t offset, char* to, std::int64_t bytes) const {
    const CountedRead counted;
    while (bytes > 0) {
      const ssize_t got = ::pread(fd, to, static_cast<std::size_t>(bytes), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      to += got, offset += got, bytes -= got;
    }
    return true;
  }
};

/// Returns a number of a header: octal digits, or the big-endian bytes of GNU where the first bit is set.
std::optional<std::int64_t> number_in(std::string_view field) {
  if (static_cast<unsigned char>(field[0]) & 0x80) {
    std::int64_t value = static_cast<unsigned char>(field[0]) & 0x7f;
    for (const char c : field.substr(1)) {
      if (value > (std::int64_t{1} << 54)) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value, 8);
  const bool ends = stop == field.data() + field.size() || *stop == '\0' || *stop == ' ';
  if (error != std::errc{} || !ends || value < 0) return std::nullopt;
  return value;
}

std::string text_in(std::string_view field) {
  return std::string(field.substr(0, field.find('\0')));
}

bool has_right_sum(std::string_view header) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < header.size(); ++i)
    sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(header[i]);
  return number_in(header.substr(148, 8)) == sum;
}

/// Reads records "LENGTH KEY=VALUE\n" of pax.
void read_pax(std::string_view text, std::string& path, std::int64_t& size) {
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const auto length = number_of<std::size_t>(text.substr(0, space));
    if (space == std::string_view::npos || !length || *length <= space + 1 || *length > text.size()) return;
    const std::string_view record = text.substr(space + 1, *length - space - 2);
    if (record.starts_with("path=")) path = record.substr(5);
    if (record.starts_with("size=")) size = number_of<std::int64_t>(record.substr(5)).value_or(-1);
    text.remove_prefix(*length);
  }
}

}  // namespace

Result<std::vector<TarMember>> list_tar(const std::filesystem::path& path) {
  const File file(path);
  const auto wrong = [&](std::int64_t at, const std::string& what) {
    return Problem{path.string(), what + " at byte " + std::to_string(at), "copy or make the archive again"};
  };
  if (file.fd < 0)
    return Problem{path.string(), std::string("cannot be opened: ") + std::strerror(errno), {}};
  std::vector<TarMember> members;
  std::string long_name;
  std::int64_t long_size = -1;  // of the member that follows, where its size stands in a header of its own
  std::array<char, kLfsBegin.size()> magic{};
  if (file.read(0, magic.data(), std::min<std::int64_t>(file.size, magic.size()))) {
    const std::string_view begin(magic.data(), magic.size());
    if (begin.starts_with("\x1f\x8b") || begin.starts_with("BZh") || begin.starts_with("\x28\xb5\x2f\xfd"))
      return Problem{path.string(), "is packed", "unpack it (gunzip): images are read from its middle"};
    if (std::optional<Problem> pointer = lfs_pointer(path, begin)) return *std::move(pointer);
  }
  std::int64_t at = 0;
  bool ended = false;  // by an empty block
  int part = 0;
  while (true) {
    if (ended && at >= file.size) return members;
    std::array<char, kBlock> block{};
    const std::int64_t bytes = std::min(kBlock, file.size - at);
    if ((bytes < kBlock && !ended) || !file.read(at, block.data(), bytes)) {
      if (at == 0) return Problem{path.string(), "is no tar archive: it has no whole header", {}};
      return wrong(at, "is cut off: the two empty blocks of an archive's end are missing");
    }
    const std::string_view header(block.data(), block.size());
    if (header.find_first_not_of('\0') == std::string_view::npos) {
      ended = true;
      at += kBlock;
      continue;
    }
    if (!has_right_sum(header))
      return wrong(at, ended ? "has bytes behind its end that are no other archive"
                             : "is damaged, or no tar archive: wrong checksum of a header");
    if (std::exchange(ended, false)) ++part;
    const std::int64_t size = long_size >= 0 ? long_size : number_in(header.substr(124, 12)).value_or(-1);
    if (size < 0) return wrong(at, "is damaged: a size is no number");
    const std::int64_t content = at + kBlock, padded = (size + kBlock - 1) / kBlock * kBlock;
    if (size > file.size - content)
      return wrong(at, "is cut off: the file " + text_in(header.substr(0, 100)) + " is not whole");
    const char type = header[156];
    if (type == 'L' || type == 'x') {
      if (size > kMostHeaderText) return wrong(at, "is damaged: a name of more than a megabyte");
      std::string text(static_cast<std::size_t>(size), '\0');
      if (!file.read(content, text.data(), size)) return wrong(at, "cannot be read");
      if (type == 'L')
        long_name = text_in(text);
      else
        read_pax(text, long_name, long_size);
    } else {
      const bool is_file = type == '0' || type == '\0' || type == '7';
      if (is_file || (type >= '1' && type <= '6' && type != '5') || type == 'S') {
        std::string name = text_in(header.substr(0, 100));
        if (const std::string prefix = text_in(header.substr(345, 155));
            header.substr(257, 6) == std::string_view("ustar\0", 6) && !prefix.empty())
          name = prefix + "/" + name;
        members.push_back({long_name.empty() ? name : long_name, content, size, is_file, part});
      }
      if (type != 'g' && type != 'K') long_name.clear(), long_size = -1;
    }
    at = content + padded;
  }
}

Result<std::string> read_tar_member(const std::filesystem::path& path, const TarMember& member) {
  const File file(path);
  const auto where = [&] { return path.string() + ":" + member.name; };
  std::string bytes(static_cast<std::size_t>(member.size), '\0');
  if (file.fd < 0 || !file.read(member.offset, bytes.data(), member.size))
    return Problem{where(), "cannot be read: the archive has changed or is gone", {}};
  if (!bytes.starts_with(kLfsBegin)) return bytes;
  Problem pointer = *lfs_pointer(where(), bytes);
  pointer.hint += "; then make the archive again";
  return pointer;
}

}  // namespace millrace
