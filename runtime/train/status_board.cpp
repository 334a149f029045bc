#include "runtime/train/status_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

namespace millrace {
namespace {
constexpr std::size_t kSize = 256;  // one JSON object, padded with spaces
}

StatusBoard::StatusBoard(const std::string& path, int rank, int stage) : rank_(rank), stage_(stage) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;  // a missing status file costs only detail in a failure summary
  // Written, not only made long: a full disk says so here, instead of ending the process (SIGBUS) at the
  // first store into a page that has no place on it.
  const std::string blank(kSize, ' ');
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
    : text_(std::exchange(other.text_, nullptr)), rank_(other.rank_), stage_(other.stage_) {}

StatusBoard& StatusBoard::operator=(StatusBoard&& other) noexcept {
  std::swap(text_, other.text_);
  rank_ = other.rank_;
  stage_ = other.stage_;
  return *this;
}

void StatusBoard::update(std::int64_t step, std::string_view action) {
  if (!text_) return;
  char line[kSize];
  const int n =
      std::snprintf(line, sizeof line, "{\"rank\":%d,\"stage\":%d,\"step\":%lld,\"action\":\"%.*s\"}", rank_,
                    stage_, static_cast<long long>(step),
                    static_cast<int>(std::min<std::size_t>(action.size(), 120)), action.data());
  std::memset(line + n, ' ', kSize - n - 1);
  line[kSize - 1] = '\n';
  std::memcpy(text_, line, kSize);
}

}  // namespace millrace
