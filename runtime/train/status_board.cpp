#include "runtime/train/status_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/base/run_files.h"

namespace millrace {
namespace {
constexpr std::size_t kSize = 640;    // one JSON object, padded with spaces
constexpr std::size_t kAction = 120;  // characters at most
constexpr std::size_t kReason = 300;
}  // namespace

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

void StatusBoard::show(std::string_view line) {
  if (line.size() < shown_) std::memset(text_ + line.size(), ' ', shown_ - line.size());
  std::memcpy(text_, line.data(), line.size());
  shown_ = line.size();
}

void StatusBoard::write(std::int64_t step, std::string_view action) {
  char line[kSize];
  char* end = std::copy(begin_.begin(), begin_.end(), line);
  end = std::to_chars(end, line + kSize, step).ptr;
  for (const std::string_view part :
       {std::string_view(",\"action\":\""), action.substr(0, kAction), std::string_view("\"}")})
    end = std::copy(part.begin(), part.end(), end);
  show({line, static_cast<std::size_t>(end - line)});
}

void StatusBoard::end(std::string_view reason) {
  if (!text_) return;
  std::string plain(reason.substr(0, kReason));
  for (char& c : plain)
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ') c = ' ';
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string line(text_, shown_ - 1);  // without the brace
  show(line + ",\"ended_ns\":" + std::to_string(std::chrono::nanoseconds(now).count()) + ",\"ended\":\"" +
       plain + "\"}");
}

std::string first_to_end(const std::filesystem::path& folder, int ranks, int me) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == me) continue;
    const Result<Json> status = read_json((folder / run_files::kStatus.of(rank)).string());
    if (!status || !status->is_object()) continue;
    const Json *when = status->find("ended_ns"), *why = status->find("ended");
    if (!when || when->kind() != Json::Kind::Int || !why || !why->is_string() || when->as_int() >= first)
      continue;
    first = when->as_int();
    text = "rank " + std::to_string(rank) + " gave up before: " + why->as_string();
  }
  return text;
}

}  // namespace millrace
