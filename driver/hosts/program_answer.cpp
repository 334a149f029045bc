#include "driver/hosts/program_answer.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "driver/hosts/rank_process.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace millrace {
namespace {

constexpr std::size_t kMostAnswerBytes = 4 << 20;
constexpr std::chrono::seconds kSuspended{2};  // a program that is suspended for so long gives no answer
constexpr int kPollMs = 20;  // how late the end of a program is seen that has closed its outputs

/// From the last "error: " on, with its hint, in one line; else the last line.
std::string last_words(const std::string& text) {
  const std::size_t at = text.rfind("error: ");
  if (at == std::string::npos || (at > 0 && text[at - 1] != '\n')) return last_line(text);
  std::string said;
  for (const std::string& line : words_of(std::string_view(text).substr(at + 7), '\n'))
    said += (said.empty() ? "" : " ") + line;
  return said;
}

/// An ignored SIGCHLD, inherited, would make exit codes vanish.
class PlainChildSignal {
 public:
  PlainChildSignal() {
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &plain, &old_);
  }
  PlainChildSignal(const PlainChildSignal&) = delete;
  PlainChildSignal& operator=(const PlainChildSignal&) = delete;
  ~PlainChildSignal() { ::sigaction(SIGCHLD, &old_, nullptr); }

 private:
  struct sigaction old_ {};
};

/// Ends and collects the program in any case.
class Asked {
 public:
  /// The program gets no signal mask of this thread, which may block those that it reads from a descriptor: a
  /// shell that never sees SIGCHLD waits for ever.
  explicit Asked(const std::vector<std::string>& argv) {
    sigset_t mask;
    ::sigemptyset(&mask);
    process_ = start_child("the program", argv, {}, mask);
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  ~Asked() {
    if (process_.pid > 0 && !end_) {
      ::kill(-process_.pid, SIGKILL);
      ::waitpid(process_.pid, nullptr, 0);
    }
  }

  /// Waits for output or the end, and takes what is there. Returns false when the program has ended.
  bool wait() {
    std::vector<pollfd> polled;
    for (const Descriptor* stream : {&process_.out, &process_.err})
      if (stream->is_open()) polled.push_back({stream->get(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), kPollMs);
    end_ = end_of(process_.pid);
    take(process_.out, out);
    take(process_.err, err);
    return !end_;
  }
  const ChildEnd& end() const { return *end_; }
  bool is_suspended() const { return millrace::is_suspended(process_.pid); }

  std::string out, err;

 private:
  static void take(Descriptor& stream, std::string& text) {
    char buffer[1 << 14];
    while (stream.is_open() && text.size() <= kMostAnswerBytes) {
      const ssize_t n = ::read(stream.get(), buffer, sizeof buffer);
      if (n > 0)
        text.append(buffer, static_cast<std::size_t>(n));
      else if (n < 0 && errno == EAGAIN)
        return;
      else if (n == 0 || errno != EINTR)
        stream.close();
    }
  }

  PlainChildSignal signal_;
  ChildProcess process_;
  std::optional<ChildEnd> end_;
};

}  // namespace

Result<std::string> answer_of(const std::vector<std::string>& argv, std::chrono::milliseconds deadline) {
  try {
    SteadyClock clock;
    const TimePoint until = clock.now() + deadline;
    Asked asked(argv);
    TimePoint last_awake = clock.now();
    while (asked.wait()) {
      if (!asked.is_suspended()) last_awake = clock.now();
      if (clock.now() - last_awake >= kSuspended)
        return Problem{argv.front(), "is suspended (SIGSTOP or a debugger) on " + host_name(),
                       "resume it (kill -CONT), or find what suspends it there"};
      if (asked.out.size() > kMostAnswerBytes) return Problem{argv.front(), "prints too much", {}};
      if (clock.now() >= until)
        return Problem{
            argv.front(),
            "gave no answer on " + host_name() + " within " + printed("%.0f s", Seconds(deadline).count()),
            {}};
    }
    if (asked.end().signal == 0 && asked.end().status == 0) return asked.out;
    std::string why = last_words(asked.err);
    if (why.empty())
      why = asked.end().signal != 0 ? "was killed by signal " + std::to_string(asked.end().signal)
                                    : "ended with exit code " + std::to_string(asked.end().status);
    return Problem{argv.front(), why, {}};
  } catch (const ConfigError& error) {
    return Problem{argv.front(), error.what(), error.hint()};
  }
}

}  // namespace millrace
