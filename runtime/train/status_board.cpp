#include "runtime/train/status_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace millrace {
namespace {
constexpr std::size_t kSize = 256;  // one JSON object, padded with spaces
}

StatusBoard::StatusBoard(const std::string& path, int rank, int stage)
    : begin_("{\"rank\":" + std::to_string(rank) + ",\"stage\":" + std::to_string(stage) + ",\"step\":") {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;  // a missing status file costs only detail in a failure summary
  // Written, not only made long: a full disk says so here, instead of ending the process (SIGBUS) at the
  // first store into a page that has no place on it.
  std::string blank(kSize, ' ');
  blank.back() = '\n';
  if (::pwrite(fd, blank.data(), kSize, 0) == static_cast<ssize_t>(kSize)) {
    void* mapped = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) text_ = static_cast<char*>(mapped);
  }
  ::close(fd);
  update(-1, "start");
}

StatusBoard::~StatusBoard() {
  if (text_) ::munmap(text_, kSize);
}

StatusBoard::StatusBoard(StatusBoard&& other) noexcept
    : text_(std::exchange(other.text_, nullptr)), begin_(std::move(other.begin_)), shown_(other.shown_) {}

StatusBoard& StatusBoard::operator=(StatusBoard&& other) noexcept {
  std::swap(text_, other.text_);
  std::swap(begin_, other.begin_);
  std::swap(shown_, other.shown_);
  return *this;
}

void StatusBoard::write(std::int64_t step, std::string_view action) {
  char line[kSize];
  char* end = std::copy(begin_.begin(), begin_.end(), line);
  end = std::to_chars(end, line + kSize, step).ptr;
  for (const std::string_view part :
       {std::string_view(",\"action\":\""), action.substr(0, 120), std::string_view("\"}")})
    end = std::copy(part.begin(), part.end(), end);
  const auto length = static_cast<std::size_t>(end - line);
  if (length < shown_) std::memset(end, ' ', shown_ - length);
  std::memcpy(text_, line, std::max(length, shown_));
  shown_ = length;
}

}  // namespace millrace
