// A rank that meets the others as a worker does, reports its state, and computes nothing: `scripts/benchmark
// ranks` starts a thousand of them on one machine. Without LibTorch, so each takes a few MB.
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/run_files.h"
#include "runtime/comm/store.h"

namespace {

using namespace millrace;

constexpr std::chrono::seconds kDeadline{300};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// All have set their key when rank 0 opens the door.
void meet(Store& store, int rank, int size) {
  store.set("rank" + std::to_string(rank), "here");
  if (rank == 0) {
    for (int other = 0; other < size; ++other) store.get("rank" + std::to_string(other), kDeadline);
    store.set("go", "go");
  }
  store.get("go", kDeadline);
}

int run(const std::string& output_dir) {
  const int rank = std::stoi(variable("RANK")), size = std::stoi(variable("WORLD_SIZE"));
  sigset_t stop;
  sigemptyset(&stop);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&stop, signal);
  ::sigprocmask(SIG_BLOCK, &stop, nullptr);
  const int stops = ::signalfd(-1, &stop, SFD_CLOEXEC);
  const auto store = make_tcp_store({.address = variable("MASTER_ADDR"),
                                     .port = std::stoi(variable("MASTER_PORT")),
                                     .rank = rank,
                                     .size = size,
                                     .job = "light",
                                     .token = variable("MILLRACE_TOKEN"),
                                     .deadline = kDeadline});
  meet(*store, rank, size);
  std::printf("met %.3f\n", now());
  std::fflush(stdout);
  // A worker's status changes with every action: here every second, as the board is written at most.
  for (int step = 1;; ++step) {
    const Json status = Json::object(
        {{"rank", rank}, {"stage", 0}, {"step", step}, {"action", "0F0"}, {"pid", std::int64_t{::getpid()}}});
    if (!write_file_atomically(std::filesystem::path(output_dir) / run_files::kStatus.of(rank),
                               status.dump()))
      return 1;
    pollfd waits{stops, POLLIN, 0};
    if (::poll(&waits, 1, 1000) > 0) return static_cast<int>(ExitCode::Requeue);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string output_dir = ".";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("--output-dir=")) output_dir = word.substr(13);
  }
  try {
    return run(output_dir);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  }
}
