#include "data/text/line_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/byte_order_mark.h"
#include "runtime/base/error.h"
#include "runtime/base/lfs_pointer.h"

namespace millrace {
namespace {

constexpr std::size_t kChunk = 256 << 10;

}  // namespace

struct LineReader::Stream {
  gzFile file = nullptr;
  ~Stream() {
    if (file) ::gzclose_r(file);
  }
};

LineReader::LineReader(const std::filesystem::path& path)
    : path_(path.string()), stream_(std::make_unique<Stream>()) {
  // Without O_NONBLOCK the opening of a FIFO would wait for a writer.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) throw DataError(path_ + ": cannot be opened: " + std::strerror(errno), "check the path");
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw DataError(path_ + ": is no regular file", "text is read from files: write the pipe into one");
  }
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  stream_->file = ::gzdopen(fd, "rb");
  if (!stream_->file) {
    ::close(fd);
    throw OutOfMemory(path_ + ": no memory to read it");
  }
  ::gzbuffer(stream_->file, kChunk);
  buffer_.resize(kChunk);
  while (end_ < kLfsBegin.size() && fill()) continue;
  if (const auto pointer = lfs_pointer(path_, {buffer_.data(), end_}))
    throw DataError(pointer->where + ": " + pointer->what, pointer->hint);
  begin_ = end_ - without_mark({buffer_.data(), end_}).size();
}

LineReader::LineReader(LineReader&&) noexcept = default;
LineReader::~LineReader() = default;

/// Reads more bytes behind those in the buffer. Returns false at the end of the file.
bool LineReader::fill() {
  if (ended_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() - end_ < kChunk / 2) buffer_.resize(buffer_.size() * 2);
  const auto room = static_cast<unsigned>(std::min<std::size_t>(buffer_.size() - end_, 1u << 30));
  const int n = ::gzread(stream_->file, buffer_.data() + end_, room);
  int error = Z_OK;
  const char* message = ::gzerror(stream_->file, &error);
  if (n < 0 || (error != Z_OK && error != Z_STREAM_END)) {
    const std::string why = error == Z_BUF_ERROR ? "the gzip stream is cut off"
                            : error == Z_ERRNO   ? std::string("read failed: ") + std::strerror(errno)
                                                 : std::string("the gzip stream is damaged: ") + message;
    throw DataError(path_ + ": " + why + " (after line " + std::to_string(lines_) + ")",
                    "fetch or make the file again");
  }
  ended_ = n == 0;
  end_ += static_cast<std::size_t>(n);
  return !ended_;
}

bool LineReader::next(std::string_view& line) {
  std::size_t searched = 0;
  for (;;) {
    const char* from = buffer_.data() + begin_;
    const std::size_t there = end_ - begin_;
    const void* found = there > searched ? std::memchr(from + searched, '\n', there - searched) : nullptr;
    if (found) {
      line = {from, static_cast<std::size_t>(static_cast<const char*>(found) - from)};
      begin_ += line.size() + 1;
      terminated_ = true;
      ++lines_;
      return true;
    }
    searched = there;
    if (static_cast<Bytes>(there) > kMostLineBytes)
      throw DataError(place_of_line(path_, lines_ + 1) + ": the line is longer than " +
                          std::to_string(kMostLineBytes / kMiB) + " MiB",
                      "is this a text file with one sentence a line?");
    if (fill()) continue;
    if (there == 0) return false;
    line = {buffer_.data() + begin_, there};
    begin_ = end_;
    terminated_ = false;
    ++lines_;
    return true;
  }
}

Bytes LineReader::consumed() const {
  return static_cast<Bytes>(::gzoffset(stream_->file));
}

std::string_view TextBlock::line(std::size_t side, std::size_t i) const {
  const Side& s = sides[side];
  const std::size_t begin = i == 0 ? 0 : s.ends[i - 1];
  return std::string_view(s.text).substr(begin, s.ends[i] - begin);
}

std::uint64_t TextBlock::bytes() const {
  std::uint64_t bytes = 0;
  for (const Side& side : sides) bytes += side.text.size() + side.ends.size();
  return bytes;
}

BlockReader::BlockReader(const std::vector<std::string>& paths, Bytes block_bytes)
    : block_bytes_(block_bytes) {
  for (const std::string& path : paths) readers_.emplace_back(path);
}

bool BlockReader::next(TextBlock& block) {
  block.sides.resize(readers_.size());
  for (TextBlock::Side& side : block.sides) {
    side.text.clear();
    side.ends.clear();
  }
  block.first_line = readers_[0].lines() + 1;
  bool full = false;
  while (!full) {
    std::size_t ended = 0;
    for (std::size_t i = 0; i < readers_.size(); ++i) {
      std::string_view line;
      if (!readers_[i].next(line)) {
        ++ended;
        continue;
      }
      TextBlock::Side& side = block.sides[i];
      side.text.append(line);
      side.ends.push_back(side.text.size());
      side.terminated = readers_[i].terminated();
      full = full || static_cast<Bytes>(side.text.size()) >= block_bytes_;
    }
    if (ended == readers_.size()) break;
    if (ended == 0) continue;
    std::string counts;
    for (LineReader& reader : readers_) {
      for (std::string_view line; reader.next(line);) continue;
      counts += (counts.empty() ? "" : ", ") + reader.path() + " has " + std::to_string(reader.lines());
    }
    throw DataError("parallel files have unequal numbers of lines: " + counts,
                    "line i of each file is to be the translation of line i of the others");
  }
  block.consumed = 0;
  for (const LineReader& reader : readers_) block.consumed += reader.consumed();
  return block.lines() > 0;
}

Bytes size_of_files(const std::vector<std::string>& paths) {
  Bytes size = 0;
  for (const std::string& path : paths) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    if (!error) size = saturating_sum(size, static_cast<Bytes>(bytes));
  }
  return size;
}

std::string place_of_line(const std::string& path, std::uint64_t line) {
  return path + ":" + std::to_string(line);
}

}  // namespace millrace
