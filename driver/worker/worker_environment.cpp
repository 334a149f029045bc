#include "driver/worker/worker_environment.h"

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
#include <sstream>

#include "driver/hosts/rank_process.h"
#include "driver/launch/pmix_session.h"
#include "driver/launch/task_environment.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers.h"
#include "runtime/comm/addresses.h"
#include "runtime/comm/handshake.h"
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

/// The addresses at which the ranks meet.
struct MeetingPlace {
  SocketAddress address;              ///< of MASTER_ADDR, here
  std::optional<SocketAddress> real;  ///< of this host, where MASTER_ADDR is its name and means loopback here
};

/// Debian writes `127.0.1.1 HOST` into /etc/hosts: ranks of other hosts, for whom the name is a real address,
/// would find nobody. Who says 127.0.0.1, ::1 or localhost means it.
MeetingPlace meeting_place(const JobEnvironment& job, TimePoint deadline) {
  MeetingPlace place{.address = await_address(job.address, job.port, deadline, steady_clock()), .real = {}};
  const bool is_name = job.address != "localhost" &&
                       job.address.find_first_not_of("0123456789.") != std::string::npos &&
                       job.address.find(':') == std::string::npos;
  if (is_name && place.address.is_loopback() && !job.one_host && job.size > 1) place.real = outward_address();
  return place;
}

std::shared_ptr<Store> tcp_store(const JobEnvironment& job, const JoinOptions& join,
                                 const MeetingPlace& place, TimePoint deadline) {
  if (job.rank == 0 && place.real) {
    log_warning("MASTER_ADDR " + job.address + " is " + place.address.text() +
                " on this host (/etc/hosts?), where ranks of other hosts find nobody: rank 0 listens on " +
                (job.bind_all ? std::string("all addresses, and its messages go by ") : std::string()) +
                place.real->text() + ". Hint: set MASTER_ADDR to the address that other hosts reach" +
                (job.bind_all ? "" : ", or MILLRACE_BIND_ALL=1 on every rank to listen on all addresses"));
  }
  if (job.rank == 0 && job.token.empty() && (place.real || !place.address.is_loopback())) {
    log_warning("ranks meet at " + host_and_port(job.address, job.port) +
                " without a token: who reaches that port can join the job. Hint: give all ranks the same "
                "MILLRACE_TOKEN_FILE");
  }
  if (join.encrypt && job.token.empty())
    throw ConfigError(
        "--encrypt: the job has no token, from which the key is made",
        "give all ranks the same MILLRACE_TOKEN_FILE; `millrace launch` with hosts does so itself");
  const bool wide = place.real && job.bind_all;
  return make_tcp_store(
      {.address = place.real && !wide ? place.real->text() : job.address,
       .all_addresses = wide,
       .port = job.port,
       .rank = job.rank,
       .size = job.size,
       .job = job.job + (job.job.empty() ? "" : " ") + join.purpose,
       .token = job.token,
       .encrypt = join.encrypt,
       .deadline = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock().now())});
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

namespace {

/// Reads torchrun's variables.
Status place_of_ranks(JobEnvironment& job) {
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
  job.one_host = environment("LOCAL_WORLD_SIZE") == environment("WORLD_SIZE");
  job.job = environment("TORCHELASTIC_RUN_ID");
  return Ok{};
}

void place_of_task(const TaskPlace& task, JobEnvironment& job) {
  job.size = task.size;
  job.rank = task.rank;
  job.local_rank = task.local_rank;
  job.one_host = task.one_host;
  job.address = task.host;
  job.port = task.port;
  job.job = task.job;
  job.scheduler = task.scheduler + ": " + task.variables;
}

constexpr std::chrono::milliseconds kPmixAnswers{60'000};

void place_of_pmix(std::shared_ptr<PmixSession> session, JobEnvironment& job) {
  const PmixPlace& place = session->place();
  job.size = place.size;
  job.rank = place.rank;
  job.local_rank = place.local_rank;
  job.one_host = place.one_host;
  job.job = place.job;
  job.scheduler =
      "PMIx: rank " + std::to_string(place.rank) + " of " + std::to_string(place.size) + " of " + place.job;
  job.pmix = std::move(session);
}

/// The place that a scheduler of clusters gives; a job of one process: there is none.
Status place_of_scheduler(JobEnvironment& job) {
  Problems of_pmix;
  if (is_task_of_pmix()) {
    Result<std::unique_ptr<PmixSession>> session = PmixSession::open(kPmixAnswers);
    if (session) return place_of_pmix(std::move(*session), job), Ok{};
    of_pmix = session.problems();
  }
  const Result<std::optional<TaskPlace>> task = task_of_environment();
  if (task && *task) return place_of_task(**task, job), Ok{};  // that is enough without PMIx
  if (!task) append(of_pmix, task.problems());
  if (!of_pmix.empty()) return of_pmix;
  return Ok{};
}

/// A port of this host that is free now.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {INADDR_ANY}, .sin_zero = {}};
  socklen_t size = sizeof address;
  const bool known = socket >= 0 && ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (socket >= 0) ::close(socket);
  return known ? ntohs(address.sin_port) : 29500;
}

/// Rank 0 chooses where the ranks meet, and a token if there is none; PMIx takes both to the others.
void agree_by_pmix(JobEnvironment& job, std::chrono::milliseconds deadline) {
  std::string offer;
  if (job.rank == 0) {
    const std::optional<SocketAddress> own = job.one_host ? std::nullopt : outward_address();
    offer = (own ? own->text() : "127.0.0.1") + " " + std::to_string(free_port()) + " " +
            (job.token.empty() ? random_token() : "-");
  }
  const Result<std::string> told = job.pmix->from_rank_0(offer, deadline);
  if (!told) throw PeerError(to_string(told.problems()));
  std::istringstream words(*told);
  std::string token;
  if (!(words >> job.address >> job.port >> token))
    throw PeerError("PMIx: rank 0 told '" + *told + "', not where the ranks meet");
  if (token != "-") job.token = token;
  job.pmix.reset();  // the launcher need not look after it any more
}

}  // namespace

Result<JobEnvironment> read_environment() {
  JobEnvironment job;
  if (environment("WORLD_SIZE").empty() && environment("RANK").empty()) {
    if (const Status placed = place_of_scheduler(job); !placed) return placed.problems();
    if (job.size == 1) return JobEnvironment{};
  } else if (const Status placed = place_of_ranks(job); !placed) {
    return placed.problems();
  }
  job.distributed = true;
  Result<std::string> token = token_of_environment();
  if (!token) return token.problems();
  job.token = *std::move(token);
  job.bind_all = environment("MILLRACE_BIND_ALL") == "1";
  job.has_launcher = !environment("MILLRACE_LAUNCHER_PID").empty();
  if (environment("MILLRACE_FOLDERS") == "apart") {
    const auto host = environment_integer("MILLRACE_HOST", 0, 1 << 20);
    if (!host) return host.problems();
    job.host_folder = HostFolder{.host = *host, .first_rank = job.local_rank == 0};
  }
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

std::string launched_run() {
  return environment("MILLRACE_RUN");
}

bool launcher_rescues() {
  return environment("MILLRACE_RESCUE") == "1";
}

Seconds age_of_command(Seconds age) {
  return age + Seconds(number_of<double>(environment(kSpent)).value_or(0));
}

Result<std::vector<Failpoint>> planted_failpoints() {
  const std::string text = environment("MILLRACE_FAILPOINTS");
  return text.empty() ? Result<std::vector<Failpoint>>(std::vector<Failpoint>()) : failpoints_from(text);
}

JoinedJob join_job(const JobEnvironment& place_of_job, const JoinOptions& join, const Device& device,
                   const Accelerator& accelerator) {
  JobEnvironment job = place_of_job;
  if (job.pmix) agree_by_pmix(job, join.deadline);
  CommunicatorOptions options{.backend = join.backend,
                              .rank = RankId(job.rank),
                              .size = job.size,
                              .deadline = join.deadline,
                              .rendezvous_deadline = join.deadline + join.meets_later,
                              .token = job.token,
                              .encrypt = join.encrypt,
                              .device = device.identity(),
                              .decorators = join.decorators,
                              .recorder = join.recorder};
  if (!options.device.empty() && accelerator.make_nccl) options.nccl = accelerator.make_nccl(device);
  JoinedJob joined;
  if (job.store_folder.empty()) {
    const TimePoint deadline = steady_clock().now() + join.deadline;
    const MeetingPlace place = meeting_place(job, deadline);
    const auto own = place.real ? place.real : address_towards(place.address);
    if (own) options.interface_address = own->text();
    joined.store = tcp_store(job, join, place, deadline);
  } else {
    joined.store = make_file_store(job.store_folder);
  }
  joined.communicator = make_communicator(options, joined.store);
  if (!options.nccl) end_meeting(joined, job);
  return joined;
}

}  // namespace millrace
