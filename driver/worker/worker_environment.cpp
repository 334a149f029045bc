#include "driver/worker/worker_environment.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/comm/store.h"

namespace millrace {
namespace {

constexpr Bytes kMostTokenBytes = 4096;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

Result<int> environment_integer(const char* name, int low, int high) {
  const std::string text = environment(name);
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end || value < low || value > high) {
    return Problem{
        std::string("environment variable ") + name,
        "is '" + text + "', expected an integer from " + std::to_string(low) + " to " + std::to_string(high),
        {}};
  }
  return static_cast<int>(value);
}

/// The address of this host on its way to `host`; loopback if that has no way or no name (the store's own
/// attempt then says so).
std::string address_towards(const std::string& host) {
  const std::string loopback = "127.0.0.1";
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return loopback;
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  socklen_t size = sizeof own;
  // Connecting a datagram socket sends nothing: it asks the routing table.
  const bool routed = fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                      ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0;
  if (fd >= 0) ::close(fd);
  ::freeaddrinfo(found);
  char text[INET_ADDRSTRLEN];
  return routed && ::inet_ntop(AF_INET, &own.sin_addr, text, sizeof text) ? text : loopback;
}

/// A secret belongs to its user alone.
Result<std::string> token_of_file(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return Problem{"MILLRACE_TOKEN_FILE", path + ": " + std::strerror(errno), "give a file of your own"};
  if (info.st_uid != ::geteuid() || (info.st_mode & 077) != 0)
    return Problem{"MILLRACE_TOKEN_FILE", path + " may be read or written by others", "chmod 600 " + path};
  Result<std::string> text = read_file(path, kMostTokenBytes);
  if (!text) return text;
  while (!text->empty() && std::isspace(static_cast<unsigned char>(text->back()))) text->pop_back();
  if (text->empty()) return Problem{"MILLRACE_TOKEN_FILE", path + " is empty", {}};
  return text;
}

Result<std::string> token_of_environment() {
  const std::string token = environment("MILLRACE_TOKEN"), file = environment("MILLRACE_TOKEN_FILE");
  if (!token.empty() && !file.empty())
    return Problem{"MILLRACE_TOKEN", "is given beside MILLRACE_TOKEN_FILE", "give one of them"};
  return file.empty() ? Result<std::string>(token) : token_of_file(file);
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address.rfind("127.", 0) == 0;
}

std::shared_ptr<Store> tcp_store(const JobEnvironment& job, const JoinOptions& join) {
  if (job.rank == 0 && job.token.empty() && !is_loopback(job.address)) {
    log_warning("ranks meet at " + job.address + ":" + std::to_string(job.port) +
                " without a token: who reaches that port can join the job. Hint: give all ranks the same "
                "MILLRACE_TOKEN_FILE");
  }
  return make_tcp_store({.address = job.address,
                         .port = job.port,
                         .rank = job.rank,
                         .size = job.size,
                         .job = job.job + (job.job.empty() ? "" : " ") + join.purpose,
                         .token = job.token,
                         .deadline = join.deadline});
}

/// When all have met, nobody needs the store any more: its port is closed, its folder goes.
void end_meeting(JoinedJob& joined, const JobEnvironment& job) {
  joined.communicator->barrier();
  joined.store.reset();
  if (job.rank != 0 || job.store_folder.empty() || !job.has_launcher) return;
  std::error_code ignored;
  std::filesystem::remove_all(job.store_folder, ignored);
}

}  // namespace

Result<JobEnvironment> read_environment() {
  JobEnvironment job;
  if (environment("WORLD_SIZE").empty() && environment("RANK").empty()) return job;
  job.distributed = true;
  const auto size = environment_integer("WORLD_SIZE", 1, 1 << 20);
  if (!size) return size.problems();
  const auto rank = environment_integer("RANK", 0, *size - 1);
  if (!rank) return rank.problems();
  job.size = *size;
  job.rank = job.local_rank = *rank;
  if (!environment("LOCAL_RANK").empty()) {
    const auto local = environment_integer("LOCAL_RANK", 0, *size - 1);
    if (!local) return local.problems();
    job.local_rank = *local;
  }
  Result<std::string> token = token_of_environment();
  if (!token) return token.problems();
  job.token = *std::move(token);
  job.job = environment("TORCHELASTIC_RUN_ID");
  job.has_launcher = !environment("MILLRACE_LAUNCHER_PID").empty();
  job.store_folder = environment("MILLRACE_STORE");
  if (job.store_folder.empty()) {
    if (!environment("MASTER_ADDR").empty()) job.address = environment("MASTER_ADDR");
    if (!environment("MASTER_PORT").empty()) {
      const auto port = environment_integer("MASTER_PORT", 1, 65534);
      if (!port) return port.problems();
      // torchrun's agent listens on MASTER_PORT itself; our store takes the next one.
      job.port = *port + (environment("TORCHELASTIC_USE_AGENT_STORE") == "True" ? 1 : 0);
    }
  }
  return job;
}

void die_with_launcher() {
  const std::string launcher = environment("MILLRACE_LAUNCHER_PID");
  if (launcher.empty()) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::to_string(::getppid()) != launcher) std::exit(static_cast<int>(ExitCode::Peer));
}

int launcher_process() {
  return std::atoi(environment("MILLRACE_LAUNCHER_PID").c_str());
}

JoinedJob join_job(const JobEnvironment& job, const JoinOptions& join, const Device& device,
                   const Accelerator& accelerator) {
  CommunicatorOptions options{.backend = join.backend,
                              .rank = RankId(job.rank),
                              .size = job.size,
                              .deadline = join.deadline,
                              .rendezvous_deadline = join.deadline,
                              .device = device.identity(),
                              .decorators = join.decorators};
  if (!options.device.empty() && accelerator.make_nccl) options.nccl = accelerator.make_nccl(device);
  JoinedJob joined;
  if (job.store_folder.empty()) {
    options.interface_address = address_towards(job.address);
    joined.store = tcp_store(job, join);
  } else {
    joined.store = make_file_store(job.store_folder);
  }
  joined.communicator = make_communicator(options, joined.store);
  if (!options.nccl) end_meeting(joined, job);
  return joined;
}

}  // namespace millrace
