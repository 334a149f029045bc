#include "driver/launch/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "runtime/base/log.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

// A write of so much does not block where poll() sees room in a pipe (PIPE_BUF).
constexpr std::size_t kSafeWrite = 4096;

/// "... step=12/50 loss=0.7 ..." -> "[#####....] step=12/50 loss=0.7 ..."; anything else -> "". Says whether
/// it is the last one.
std::string bar_of(const std::string& line, bool& is_full) {
  const std::size_t at = line.find(" step=");
  long long done = 0, total = 0;
  if (at == std::string::npos || std::sscanf(line.c_str() + at, " step=%lld/%lld ", &done, &total) != 2)
    return "";
  is_full = done >= total;
  return progress_bar(done, total) + line.substr(at);
}

}  // namespace

/// Opens the file anew where that is possible. Our writes then do not block, and the descriptors of other
/// processes stay as they are.
Console::Console(int fd, std::size_t most_waiting)
    : fd_(fd), kind_(Kind::File), terminal_(::isatty(fd) == 1), most_(most_waiting) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return;
  if (S_ISSOCK(info.st_mode)) kind_ = Kind::Socket;
  if (!S_ISFIFO(info.st_mode) && !terminal_) return;
  const int own =
      ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  kind_ = own >= 0 ? Kind::Reopened : Kind::Shared;
  if (own >= 0) fd_ = own;
}

Console::~Console() {
  if (kind_ == Kind::Reopened) ::close(fd_);
}

std::string on_terminal(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  line.remove_prefix(line.rfind('\r') + 1);  // what a terminal would show of a line that is drawn anew
  std::string text;
  for (std::size_t tab; (tab = line.find('\t')) != std::string_view::npos; line.remove_prefix(tab + 1))
    text += escaped(line.substr(0, tab)) + '\t';
  return text + escaped(line);
}

void Console::print(const std::string& raw) {
  if (!terminal_) return add(raw + "\n");
  const std::string line = on_terminal(raw);
  bool is_full = false;
  if (std::string bar = bar_of(line, is_full); !bar.empty()) {
    bar_ = is_full ? "" : bar;  // what follows stands below a full one
    add(redrawn(bar) + (is_full ? "\n" : ""));
  } else {
    add(bar_.empty() ? line + "\n" : "\r\x1b[K" + line + "\n" + redrawn(bar_));
  }
}

void Console::write(const std::string& text) {
  add(text);
}

void Console::add(const std::string& text) {
  flush();
  if (waiting_.size() + text.size() > most_) {
    ++left_out_;
    return;
  }
  if (left_out_ > 0)
    waiting_ += "millrace: nobody read this for a while: " + std::to_string(left_out_) +
                " lines are left out here, the ranks' logs have them\n";
  left_out_ = 0;
  waiting_ += text;
  flush();
}

bool Console::has_room() const {
  pollfd state{fd_, POLLOUT, 0};
  return ::poll(&state, 1, 0) > 0;
}

void Console::flush() {
  std::size_t done = 0;
  while (done < waiting_.size()) {
    if (kind_ == Kind::Shared && !has_room()) break;
    const char* from = waiting_.data() + done;
    const std::size_t left = waiting_.size() - done;
    const std::size_t size = kind_ == Kind::Shared ? std::min(left, kSafeWrite) : left;
    const ssize_t n = kind_ == Kind::Socket ? ::send(fd_, from, size, MSG_DONTWAIT | MSG_NOSIGNAL)
                                            : ::write(fd_, from, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) done = waiting_.size();  // a closed console or a full disk must not stop the job
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  waiting_.erase(0, done);
}

bool Console::finish(std::chrono::milliseconds patience, int interrupt) {
  if (!bar_.empty()) add("\n");
  bar_.clear();
  flush();
  while (is_waiting()) {
    pollfd polled[] = {{fd_, POLLOUT, 0}, {interrupt, POLLIN, 0}};
    const int n = ::poll(polled, 2, static_cast<int>(patience.count()));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || polled[1].revents != 0) return false;
    flush();
  }
  return true;
}

void print_without_waiting(int fd, const std::string& text) {
  Console console(fd, Console::kStory);
  console.write(text);
  console.finish(std::chrono::seconds(1));
}

}  // namespace millrace
