#include "driver/local_ranks.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "runtime/base/error.h"

namespace millrace {

StoreFolder::StoreFolder()
    : path_((std::filesystem::temp_directory_path() / "millrace-store-XXXXXX").string()) {
  if (!::mkdtemp(path_.data())) {
    throw ConfigError(path_ + ": cannot be created: " + std::strerror(errno),
                      "set TMPDIR to a folder that you may write");
  }
}

StoreFolder::~StoreFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::pair<std::string, std::string>> rank_environment(int rank, int ranks,
                                                                  const std::string& store) {
  const std::string number = std::to_string(rank), size = std::to_string(ranks);
  return {{"RANK", number},
          {"LOCAL_RANK", number},
          {"WORLD_SIZE", size},
          {"LOCAL_WORLD_SIZE", size},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "29500"},  // torchrun's; the store replaces it
          {"MILLRACE_STORE", store},
          {"MILLRACE_LAUNCHER_PID", std::to_string(::getpid())}};
}

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return "signal " + std::to_string(signal) + (name ? std::string(" (SIG") + name + ")" : "");
}

std::string end_text(const RankExit& exit) {
  if (exit.signal != 0) return "killed by " + signal_text(exit.signal);
  return exit.status == 0 ? "done" : "exit code " + std::to_string(exit.status);
}

}  // namespace millrace
