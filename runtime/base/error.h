// Failures while running: one exception class per reaction. `main` turns the class into the exit code.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/base/option_names.h"

namespace millrace {

/// Exit codes of every program (docs/commands.md lists them). 128+n: killed by signal n.
enum class ExitCode : int {
  Done = 0,
  RunFailed = 1,
  Usage = 2,  ///< wrong flags, configuration or plan
  InputData = 3,
  Checkpoint = 4,
  Peer = 5,      ///< communication with another rank failed
  Numeric = 6,   ///< NaN or Inf under policy `stop`
  Requeue = 75,  ///< stopped early, state saved
};

/// Base of all run-time failures. `hint` (may be empty) tells the user what to do. Both write options as
/// flags; printed messages name them as set_option_names specifies.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what, std::string hint = {})
      : std::runtime_error(with_option_names(what)), code_(code), hint_(with_option_names(std::move(hint))) {}
  ExitCode code() const noexcept { return code_; }
  const std::string& hint() const noexcept { return hint_; }
  /// Throws the same class with `context` in front of the message.
  [[noreturn]] virtual void throw_with(const std::string& context) const {
    throw Error(code_, context + what(), hint_);
  }

 private:
  ExitCode code_;
  std::string hint_;
};

#define MILLRACE_ERROR_CLASS(Name, Code)                                      \
  class Name : public Error {                                                 \
   public:                                                                    \
    explicit Name(const std::string& what, std::string hint = {})             \
        : Error(ExitCode::Code, what, std::move(hint)) {}                     \
    [[noreturn]] void throw_with(const std::string& context) const override { \
      throw Name(context + what(), hint());                                   \
    }                                                                         \
  }
MILLRACE_ERROR_CLASS(ConfigError, Usage);
MILLRACE_ERROR_CLASS(DataError, InputData);
MILLRACE_ERROR_CLASS(CheckpointError, Checkpoint);
MILLRACE_ERROR_CLASS(PeerError, Peer);
MILLRACE_ERROR_CLASS(NumericError, Numeric);
MILLRACE_ERROR_CLASS(OutOfMemory, RunFailed);
MILLRACE_ERROR_CLASS(Cancelled, Requeue);
MILLRACE_ERROR_CLASS(InternalError, RunFailed);
#undef MILLRACE_ERROR_CLASS

}  // namespace millrace
