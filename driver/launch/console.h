// Text for somebody who may not read it: a terminal held with ^S, a pipe to a program that hangs. Whoever
// prints never waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

/// Returns a line in a form that is safe on a terminal: escaped, but for its tabs. Of a line that was drawn
/// anew (\r) the last state is left.
std::string on_terminal(std::string_view line);

/// Lines to a terminal, pipe, socket or file. On a terminal the last line is a progress bar, made of the
/// ranks' own `step=K/N ...` lines; elsewhere every line is a line. SIGPIPE is to be ignored. Not
/// thread-safe.
class Console {
 public:
  /// The most bytes that wait for a reader. Whole lines beyond are left out and counted.
  static constexpr std::size_t kStory = std::size_t{1} << 20;
  static constexpr std::size_t kResults = std::size_t{256} << 20;

  Console(int fd, std::size_t most_waiting);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  ~Console();

  /// On a terminal the line is shown as on_terminal() says; elsewhere it stays as it is.
  void print(const std::string& line);
  /// Text as it is.
  void write(const std::string& text);

  bool is_waiting() const { return !waiting_.empty(); }
  int descriptor() const { return fd_; }  ///< to poll for room while is_waiting()
  /// Writes what goes out without waiting.
  void flush();
  /// Ends the progress bar and waits for the reader as long as he takes something every `patience`, but not
  /// when `interrupt` (a descriptor, or -1) becomes readable. False: something was left.
  bool finish(std::chrono::milliseconds patience, int interrupt = -1);

 private:
  enum class Kind { File, Socket, Reopened, Shared };
  void add(const std::string& text);
  bool has_room() const;

  int fd_;
  Kind kind_;
  bool terminal_;
  std::size_t most_;
  std::string waiting_;
  std::string bar_;
  std::size_t left_out_ = 0;  ///< lines since the last that went
};

/// One message after or beside a Console: waits a second at most.
void print_without_waiting(int fd, const std::string& text);

}  // namespace millrace
