#include "runtime/train/status_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/text.h"

namespace millrace {
namespace {
constexpr std::size_t kSize = 256;  // one JSON object, padded with spaces
constexpr std::string_view kBeat = "{\"beat\":";
constexpr std::size_t kDigits = 13;  // digits of milliseconds since 1970, until the year 2286
constexpr std::size_t kBegin = kBeat.size() + kDigits;
constexpr std::chrono::seconds kBeatEvery{1};

}  // namespace

class StatusBoard::Heart {
 public:
  explicit Heart(char* place) : place_(place) {
    beat();
    thread_ = std::jthread([this](const std::stop_token& stop) {
      for (std::unique_lock lock(mutex_); !stop.stop_requested();) {
        ended_.wait_for(lock, stop, kBeatEvery, [] { return false; });
        beat();
      }
    });
  }

 private:
  void beat() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const std::string text =
        std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
    if (text.size() == kDigits) std::memcpy(place_, text.data(), kDigits);
  }

  char* place_;
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;
};

StatusBoard::StatusBoard() = default;

StatusBoard::StatusBoard(const std::string& path, int rank, int stage)
    : begin_(",\"rank\":" + std::to_string(rank) + ",\"stage\":" + std::to_string(stage) + ",\"step\":") {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;  // a missing status file costs only detail in a failure summary
  // Written instead of truncated to length: a full disk is reported here, instead of ending the process
  // (SIGBUS) at the first store into an unallocated page.
  std::string blank(kSize, ' ');
  blank.back() = '\n';
  if (::pwrite(fd, blank.data(), kSize, 0) == static_cast<ssize_t>(kSize)) {
    void* mapped = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) text_ = static_cast<char*>(mapped);
  }
  ::close(fd);
  if (!text_) return;
  std::memcpy(text_, kBeat.data(), kBeat.size());
  heart_ = std::make_unique<Heart>(text_ + kBeat.size());
  update(-1, "start");
}

StatusBoard::~StatusBoard() {
  heart_.reset();
  if (text_) ::munmap(text_, kSize);
}

StatusBoard::StatusBoard(StatusBoard&& other) noexcept
    : text_(std::exchange(other.text_, nullptr)),
      heart_(std::move(other.heart_)),
      begin_(std::move(other.begin_)),
      end_(std::move(other.end_)),
      shown_(other.shown_) {}

StatusBoard& StatusBoard::operator=(StatusBoard&& other) noexcept {
  std::swap(text_, other.text_);
  std::swap(heart_, other.heart_);
  std::swap(begin_, other.begin_);
  std::swap(end_, other.end_);
  std::swap(shown_, other.shown_);
  return *this;
}

void StatusBoard::set_slow(double times) {
  end_ = printed(",\"slow\":%.1f}", std::min(times, 9999.0));
}

void StatusBoard::write(std::int64_t step, std::string_view action) {
  char line[kSize];
  char* end = std::copy(begin_.begin(), begin_.end(), line);
  end = std::to_chars(end, line + kSize, step).ptr;
  for (const std::string_view part : {std::string_view(",\"action\":\""), action.substr(0, 120),
                                      std::string_view("\""), std::string_view(end_)})
    end = std::copy(part.begin(), part.end(), end);
  const auto length = static_cast<std::size_t>(end - line);
  if (length < shown_) std::memset(end, ' ', shown_ - length);
  std::memcpy(text_ + kBegin, line, std::max(length, shown_));
  shown_ = length;
}

}  // namespace millrace
