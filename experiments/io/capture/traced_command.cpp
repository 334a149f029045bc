#include "experiments/io/capture/traced_command.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace millrace {

void unblock_signals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

void become(const TracedCommand& command, int go, int failure, const std::function<int()>& prepare) {
  char byte = 0;
  while (read(go, &byte, 1) < 0 && errno == EINTR) {
  }
  int error = prepare ? prepare() : 0;
  if (error == 0) {
    unblock_signals();
    ::signal(SIGXFSZ, SIG_DFL);  // which this program ignores: `ulimit -f` ends the command as ever
    if (command.body) {
      command.body();
      _exit(0);
    }
    std::vector<char*> words;
    for (const std::string& word : command.words) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    execvp(words[0], words.data());
    error = errno;
  }
  (void)!write(failure, &error, sizeof error);
  _exit(127);
}

}  // namespace millrace
