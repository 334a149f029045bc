// A command line as a user types it: what it printed, and how it ended.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace millrace {

struct Answer {
  int code = -1;     ///< 128 + n if signal n ended it
  std::string text;  ///< stdout and stderr
};

inline Answer shell(const std::string& command) {
  Answer answer;
  FILE* pipe = ::popen(("exec 2>&1; " + command).c_str(), "r");
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) answer.text.append(buffer, n);
  const int status = ::pclose(pipe);
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return answer;
}

}  // namespace millrace
