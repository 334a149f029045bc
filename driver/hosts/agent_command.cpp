#include "driver/hosts/agent_command.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "driver/cli/command_support.h"
#include "driver/hosts/agent_job.h"
#include "driver/hosts/delivered_checkpoint.h"
#include "driver/hosts/frames.h"
#include "driver/hosts/heartbeats.h"
#include "driver/hosts/kept_ranks.h"
#include "driver/hosts/machine.h"
#include "driver/hosts/own_shards.h"
#include "driver/hosts/program_paths.h"
#include "driver/hosts/result_files.h"
#include "runtime/base/choices.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/private_folder.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"
#include "runtime/base/version.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr int kPollMs = 200;                       // also the age of the ranks' status at the launcher
constexpr std::chrono::milliseconds kGrace{2000};  // from SIGTERM to SIGKILL when the launcher is gone
constexpr Bytes kMostWholeBytes = 64 * kMiB;       // larger files go in pieces
constexpr std::size_t kMostStatusBytes = 4096;     // smaller files are sent again only if they have changed

struct AgentRank {
  int rank = 0;
  ChildProcess process;
  RankProcess told{};  ///< what it was started with
  bool alive = true;
  bool has_joined = false;  ///< it has met the others: it notices by itself that one is lost
  bool was_suspended = false;
  std::string silence{};  ///< why it was killed: it gave no sign of life
};

/// The launcher is gone, or sent what no launcher sends.
struct Disconnected {};
/// The ranks cannot run here.
struct RefusedJob {
  Problems problems;
};

/// Returns a TCP port that nobody listens on.
int free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), plain, size) != 0 || ::getsockname(socket.get(), plain, &size) != 0) return 29500;
  return ntohs(address.sin_port);
}

/// Whether a name is an address, or means one on this host. An alias in somebody's ssh configuration does
/// not.
bool resolves(const std::string& name) {
  addrinfo* found = nullptr;
  const bool is_known = ::getaddrinfo(name.c_str(), nullptr, nullptr, &found) == 0;
  if (is_known) ::freeaddrinfo(found);
  return is_known;
}

/// Returns the address at which ssh reached this host, else its first one that other hosts could reach, IPv4
/// before IPv6; empty: it has none.
std::string own_address() {
  if (const char* connection =
          std::getenv("SSH_CONNECTION")) {  // the client's address and port, then the server's
    const std::vector<std::string> words = split(connection, ' ');
    if (words.size() == 4 && !words[2].starts_with("127.") && words[2] != "::1" &&
        words[2].find('%') == std::string::npos)
      return words[2];
  }
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "";
  std::string v4, v6;
  for (const ifaddrs* one = all; one; one = one->ifa_next) {
    if (!one->ifa_addr || !(one->ifa_flags & IFF_UP) || (one->ifa_flags & IFF_LOOPBACK)) continue;
    const int family = one->ifa_addr->sa_family;
    char text[INET6_ADDRSTRLEN] = {};
    if (family == AF_INET && v4.empty()) {
      ::inet_ntop(family, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
      v4 = text;
    } else if (family == AF_INET6 && v6.empty()) {
      const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;
      ::inet_ntop(family, &address, text, sizeof text);
      v6 = text;
    }
  }
  ::freeifaddrs(all);
  return v4.empty() ? v6 : v4;
}

/// The whole files that this host may send, by time of their last change.
class ResultFiles {
 public:
  ResultFiles(fs::path folder, std::vector<int> ranks)
      : folder_(std::move(folder)), ranks_(std::move(ranks)) {
    changed();
  }

  /// Returns the paths, below the folder, of files that have changed since the last call.
  std::vector<fs::path> changed() {
    std::vector<fs::path> paths;
    std::error_code error;
    fs::recursive_directory_iterator it(folder_, fs::directory_options::skip_permission_denied, error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      if (it.depth() > 0) it.disable_recursion_pending();
      const fs::path path = it->path().lexically_relative(folder_);
      if (result_form(path.string(), ranks_, -1) != ResultForm::Whole || it->is_symlink(error)) continue;
      const fs::file_time_type time = it->last_write_time(error);
      const auto [before, is_new] = seen_.try_emplace(path, time);
      if (error || (!is_new && before->second == time)) continue;
      before->second = time;
      paths.push_back(path);
    }
    return paths;
  }

 private:
  fs::path folder_;
  std::vector<int> ranks_;
  std::map<fs::path, fs::file_time_type> seen_;
};

void write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (n > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      pollfd room{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&room, 1, kPollMs);
    } else if (n == 0 || errno != EINTR) {
      throw Disconnected();
    }
  }
}
void send(FrameType type, const Json& json) {
  write_all(to_bytes(type, json.dump()));
}

/// The agent keeps this as long as the connection lasts.
struct Connection {
  SignalGuard signals{};
  FrameReader frames{};
  KeptRanks kept{};  ///< processes of the job before
};

/// Runs one job.
class Agent {
 public:
  explicit Agent(Connection& connection)
      : signals_(connection.signals), frames_(connection.frames), kept_(connection.kept) {}

  /// The job that the launcher has sent behind the one that was run.
  const std::optional<std::string>& next_job() const { return next_job_; }

  /// `job`: its frame; empty: it is still to come.
  int run(const std::optional<std::string>& job) {
    try {
      if (job) prepare(*job);
      while (!finished_) {
        wait();
        for ([[maybe_unused]] const int signal : signals_.read()) take_signal();
        read_launcher();
        if (next_job_) return static_cast<int>(ExitCode::Done);
        read_ranks();
        send_news();
      }
      send(FrameType::Done, Json::object());
      return static_cast<int>(ExitCode::Done);
    } catch (const RefusedJob& refused) {
      end_ranks();
      write_all(to_bytes(FrameType::Refused, to_string(refused.problems)));
      return static_cast<int>(ExitCode::Usage);
    } catch (const Disconnected&) {
      end_ranks();
      return static_cast<int>(ExitCode::Peer);
    } catch (const PeerError&) {  // bytes that are no frames
      end_ranks();
      return static_cast<int>(ExitCode::Peer);
    }
  }

 private:
  /// A scheduler wants the job to stop. Some signal the agent alone, others (Slurm) its ranks too. A second
  /// SIGTERM would end a rank at once, so the ranks get SIGHUP: they save, however often it comes. The
  /// launcher sees how they end. A second signal ends them here.
  void take_signal() {
    if (!started_ || scheduler_stops_ || has_ended_) throw Disconnected();
    scheduler_stops_ = true;
    pass_on(SIGHUP);
  }

  /// The launcher may have been told by the scheduler, too.
  void take_signal_of_launcher(int signal, bool to_joined = true) {
    const bool again = scheduler_stops_ && !launcher_stops_ && (signal == SIGTERM || signal == SIGINT);
    launcher_stops_ = true;
    pass_on(again ? SIGHUP : signal, to_joined);
  }

  // ---- the launcher

  void read_launcher() {
    char buffer[1 << 16];
    for (;;) {
      const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (n == 0) throw Disconnected();
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) break;
      if (n < 0) throw Disconnected();
      frames_.add({buffer, static_cast<std::size_t>(n)});
    }
    while (!next_job_) {
      const std::optional<Frame> frame = frames_.next();
      if (!frame) break;
      take(*frame);
    }
  }

  void take(const Frame& frame) {
    switch (frame.type) {
      case FrameType::Job:
        return take_job(frame.payload);
      case FrameType::File:
        return take_file(frame.payload);
      case FrameType::Go:
        return start(frame.payload);
      case FrameType::Signal:
        return take_signal_of_launcher(number_of<int>(frame.payload).value_or(0));
      case FrameType::PeerLost:
        return take_signal_of_launcher(SIGTERM, false);
      case FrameType::Collect:
        return collect(frame.payload);
      case FrameType::Finish:
        finished_ = true;
        return;
      default:
        throw Disconnected();
    }
  }

  static Json parsed(const std::string& payload) {
    const Result<Json> json = parse_json(payload, "the launcher's frame");
    if (!json) throw RefusedJob{json.problems()};
    return *json;
  }

  // ---- before the ranks start

  void take_job(const std::string& payload) {
    if (started_ && !has_ended_) throw Disconnected();
    own_shards_.clear();
    if (job_.ranks.empty())
      prepare(payload);
    else
      next_job_ = payload;
  }

  void prepare(const std::string& payload) {
    Result<AgentJob> job = agent_job_from(parsed(payload));
    if (!job) throw RefusedJob{job.problems()};
    job_ = *std::move(job);
    Problems problems;
    std::error_code error;
    static const fs::path home = fs::current_path(error);  // of every job of this connection
    const fs::path directory = home / job_.directory;
    fs::create_directories(directory, error);
    if (::chdir(directory.c_str()) != 0)
      throw RefusedJob{
          {Problem{job_.directory, std::strerror(errno), "workdir: give a folder of every host"}}};
    if (job_.worker.empty())
      job_.worker = worker_path(value_named<ComputeDevice>(job_.device).value_or(ComputeDevice::Cpu));
    if (::access(job_.worker.c_str(), X_OK) != 0)
      problems.push_back({job_.worker, "is missing: it is the program that trains",
                          "build millrace on every host, or give worker: PROGRAM"});
    if (const int gpus = job_.device == "cuda" ? gpus_of_this_machine() : 0;
        gpus > 0 && gpus < static_cast<int>(job_.ranks.size()))
      problems.push_back({"hosts",
                          std::to_string(job_.ranks.size()) + " ranks for " + std::to_string(gpus) + " GPUs",
                          "each rank has a GPU of its own: give this host fewer ranks"});
    const bool shared = fs::exists(fs::path(job_.output_dir) / job_.probe, error);
    if (!shared) {
      if (const Status made = make_private_folder(job_.output_dir); !made) append(problems, made.problems());
    }
    Json paths = Json::array();
    for (const AgentInput& input : job_.inputs) {
      if (input.hash.empty()) {
        if (!fs::exists(input.path, error))
          problems.push_back(
              {input.path, "is not there", "put it on every host: it is too large to be sent"});
      } else if (!(input_file(input.path) == input)) {
        missing_.insert(input.path);
        paths.push_back(input.path);
      }
    }
    if (!problems.empty()) throw RefusedJob{problems};
    if (!shared && !job_.checkpoint.folder.empty()) {
      Result<DeliveredCheckpoint> delivered =
          DeliveredCheckpoint::begin(job_.checkpoint, own_shards_folder(), job_.host);
      if (!delivered) throw RefusedJob{delivered.problems()};
      for (const std::string& path : delivered->missing()) paths.push_back(path);
      delivered_.emplace(*std::move(delivered));
    }
    if (job_.only_asks) return tell_what_is_held(shared);
    if (!shared) {
      std::vector<int> ranks;
      for (const RankProcess& rank : job_.ranks) ranks.push_back(rank.rank);
      for (const int rank : ranks) fs::remove(fs::path(job_.output_dir) / run_files::kStatus.of(rank), error);
      logs_.emplace(job_.output_dir, ranks);
      results_.emplace(job_.output_dir, ranks);
    }
    send(FrameType::Need, Json::object({{"paths", paths}}));
    ready_if_all_came();
  }

  /// An earlier launcher may have ended before all of this had come to it.
  void tell_what_is_held(bool shared) {
    std::error_code ignored;
    for (const auto& [prefix, folder] :
         {std::pair("", own_shards_folder()), {kBestPrefix, own_shards_folder() / run_files::kBest}}) {
      if (!fs::is_directory(folder, ignored)) continue;
      for (const HeldCheckpoint& held : own_shards_.emplace(prefix, folder).first->second.earlier()) {
        Json files = Json::array();
        for (const std::string& file : held.files) files.push_back(file);
        send(FrameType::Held,
             Json::object({{"prefix", prefix}, {"manifest", held.manifest}, {"files", files}}));
      }
    }
    ready(shared);
  }

  fs::path own_shards_folder() const {
    return fs::path(job_.output_dir) / run_files::kHostCheckpoints.of(job_.host);
  }

  /// A piece of an input or of a shard; an empty one ends the file.
  void take_file(std::string_view payload) {
    const std::string path = take_path(payload);
    if (delivered_ && delivered_->wants(path)) {
      if (const Status taken = delivered_->take(path, payload); !taken) throw RefusedJob{taken.problems()};
    } else {
      keep_input(path, payload);
    }
    if (payload.empty()) ready_if_all_came();
  }

  /// Inputs that this host lacks, or has otherwise, go into the run's folder under the name of their hash.
  void keep_input(const std::string& path, std::string_view piece) {
    const auto wanted = std::ranges::find(job_.inputs, path, &AgentInput::path);
    const std::optional<Hash128> hash = wanted == job_.inputs.end() ? std::nullopt : hash_from(wanted->hash);
    if (!missing_.contains(path) || !hash) throw Disconnected();
    const fs::path folder = fs::path(job_.output_dir) / "inputs";
    const std::string own =
        (folder / (wanted->hash.substr(0, 16) + "-" + fs::path(path).filename().string())).string();
    const std::string temporary = own + ".tmp." + std::to_string(::getpid());
    if (!arriving_) {
      if (const Status made = make_writable_folder(folder); !made) throw RefusedJob{made.problems()};
      Result<ArrivingFile> created = ArrivingFile::create(temporary);
      if (!created) throw RefusedJob{created.problems()};
      arriving_.emplace(*std::move(created));
    }
    const Status taken =
        piece.empty() ? arriving_->finish({.bytes = wanted->bytes, .hash = *hash}) : arriving_->add(piece);
    if (!taken) {
      ::unlink(temporary.c_str());
      throw RefusedJob{taken.problems()};
    }
    if (!piece.empty()) return;
    arriving_.reset();
    missing_.erase(path);
    if (::rename(temporary.c_str(), own.c_str()) != 0)
      throw RefusedJob{{Problem{own, std::string("rename failed: ") + std::strerror(errno), {}}}};
    for (RankProcess& rank : job_.ranks) {
      for (std::string& word : rank.argv) {  // "--plan=plan.json"
        if (word == path)
          word = own;
        else if (word.ends_with("=" + path))
          word.replace(word.size() - path.size(), path.size(), own);
      }
    }
  }

  void ready_if_all_came() {
    if (!missing_.empty() || (delivered_ && !delivered_->missing().empty())) return;
    if (delivered_) {
      if (const Status published = delivered_->finish(); !published) throw RefusedJob{published.problems()};
    }
    ready(!results_);
  }

  void ready(bool shared) {
    send(FrameType::Ready, Json::object({{"shared", shared},
                                         {"port", free_port()},
                                         {"address", own_address()},
                                         {"resolves", job_.meeting.empty() || resolves(job_.meeting)},
                                         {"machine", to_json(this_machine())}}));
  }

  // ---- the ranks

  void start(const std::string& payload) {
    const Json go = parsed(payload);
    const Json* added = go.find("environment");
    if (started_ || job_.ranks.empty() || !added || !added->is_object()) throw Disconnected();
    started_ = true;
    heartbeats_.emplace(job_.output_dir, std::chrono::milliseconds(job_.heartbeat_ms));
    const Json* folders = added->find("MILLRACE_FOLDERS");
    if (folders && folders->is_string()) {
      own_shards_.emplace("", own_shards_folder());
      const auto is_best = [](const std::string& word) { return word.starts_with("--keep-best"); };
      if (std::ranges::any_of(job_.ranks.front().argv, is_best))
        own_shards_.emplace(kBestPrefix, own_shards_folder() / run_files::kBest);
    }
    const Json* resume = go.find("resume");
    for (RankProcess& rank : job_.ranks) {
      rank.argv.insert(rank.argv.begin(), job_.worker);
      for (std::string& word : rank.argv)
        if (resume && resume->is_string() && word.starts_with("--resume="))
          word = "--resume=" + resume->as_string();
      for (const auto& [name, value] : added->members())
        if (value.is_string()) rank.environment.emplace_back(name, value.as_string());
      rank.environment.emplace_back("MILLRACE_LAUNCHER_PID", std::to_string(::getpid()));
      ranks_.push_back({.rank = rank.rank, .process = process_for(rank), .told = rank});
    }
    kept_.end();  // the job before may have had more ranks
  }

  /// A process that was kept, or a new one.
  ChildProcess process_for(const RankProcess& rank) {
    if (std::optional<ChildProcess> kept = kept_.take(rank)) return *std::move(kept);
    try {
      return start_child("rank " + std::to_string(rank.rank), rank.argv, rank.environment,
                         signals_.old_mask(), job_.keeps_ranks ? ChildInput::Orders : ChildInput::None);
    } catch (const ConfigError& error) {
      throw RefusedJob{{Problem{"", error.what(), error.hint()}}};
    }
  }

  bool any_alive() const { return std::ranges::any_of(ranks_, &AgentRank::alive); }

  void wait() const {
    std::vector<pollfd> polled{{STDIN_FILENO, POLLIN, 0}, {signals_.descriptor(), POLLIN, 0}};
    for (const AgentRank& rank : ranks_) {
      for (const Descriptor* stream : {&rank.process.out, &rank.process.err, &rank.process.orders})
        if (stream->is_open()) polled.push_back({stream->get(), POLLIN, 0});
    }
    bool has_more = false;
    for (const auto& [prefix, shards] : own_shards_) {
      polled.push_back({shards.descriptor(), POLLIN, 0});
      has_more = has_more || shards.is_sending();
    }
    ::poll(polled.data(), polled.size(), has_more ? 0 : kPollMs);
  }

  void read_ranks() {
    for (AgentRank& rank : ranks_) {
      drain(rank, rank.process.out, FrameType::Output);
      drain(rank, rank.process.err, FrameType::ErrorOutput);
      if (!rank.alive) continue;
      const std::optional<ChildEnd> end = end_of_run(rank);
      if (!end) {
        kill_if_silent(rank);
        continue;
      }
      rank.alive = false;
      drain(rank, rank.process.out, FrameType::Output);
      drain(rank, rank.process.err, FrameType::ErrorOutput);
      const pid_t pid = rank.process.pid;
      if (end->is_kept) {
        kept_.keep(rank.told, std::move(rank.process));
      } else {
        rank.process.out.close();  // a grandchild may hold the other end for ever
        rank.process.err.close();
        rank.process.orders.close();
      }
      if (results_) send_status();
      send(FrameType::Exit, Json::object({{"rank", rank.rank},
                                          {"pid", std::int64_t{pid}},
                                          {"status", end->status},
                                          {"signal", end->signal},
                                          {"suspended", rank.was_suspended},
                                          {"silence", rank.silence},
                                          {"kept", end->is_kept}}));
    }
  }

  /// How the process ended, or its run, if it waits for the next one; empty: it runs.
  static std::optional<ChildEnd> end_of_run(AgentRank& rank) {
    while (const std::optional<char> said = next_word(rank.process.orders)) {
      rank.has_joined = rank.has_joined || *said == kHasJoined;
      if (*said == kWaits) return ChildEnd{.status = static_cast<int>(ExitCode::Peer), .is_kept = true};
    }
    return end_of(rank.process.pid);
  }

  void kill_if_silent(AgentRank& rank) {
    const auto silence = heartbeats_->silence(rank.rank, rank.process.pid, clock_.now());
    if (!silence || !rank.silence.empty()) return;
    rank.silence = *silence;
    ::kill(-rank.process.pid, SIGKILL);
  }

  void drain(const AgentRank& rank, Descriptor& stream, FrameType type) {
    char buffer[1 << 15];
    while (stream.is_open()) {
      const ssize_t n = ::read(stream.get(), buffer, sizeof buffer);
      if (n > 0)
        write_all(to_bytes(type, with_rank(rank.rank, {buffer, static_cast<std::size_t>(n)})));
      else if (n < 0 && errno == EINTR)
        continue;
      else if (n < 0 && errno == EAGAIN)
        return;
      else
        stream.close();
    }
  }

  void pass_on(int signal, bool to_joined = true) {
    if (signal < 1 || signal >= NSIG) throw Disconnected();
    for (AgentRank& rank : ranks_) {
      if (!rank.alive) continue;
      rank.was_suspended = rank.was_suspended || is_suspended(rank.process.pid);
      const bool saves_nothing = !to_joined && rank.was_suspended;
      if (to_joined || saves_nothing || !rank.has_joined)
        ::kill(-rank.process.pid, saves_nothing ? SIGKILL : signal);
    }
  }

  /// Nobody supervises the ranks any more.
  void end_ranks() {
    const TimePoint kill_at = clock_.now() + kGrace;
    for (const AgentRank& rank : ranks_)
      if (rank.alive) ::kill(-rank.process.pid, SIGTERM);
    bool killed = false;
    while (any_alive()) {
      for (AgentRank& rank : ranks_)
        if (rank.alive && end_of(rank.process.pid)) rank.alive = false;
      if (!killed && clock_.now() >= kill_at) {
        killed = true;
        for (const AgentRank& rank : ranks_)
          if (rank.alive) ::kill(-rank.process.pid, SIGKILL);
      }
      clock_.sleep_until(clock_.now() + std::chrono::milliseconds(10));
    }
  }

  // ---- what they write, where the launcher does not see this folder

  /// One piece of a checkpoint at a time, so that the ranks' output goes on.
  void send_news() {
    if (results_ && !has_ended_ && clock_.now() >= next_status_) {
      send_status();
      if (started_) send_logs();
    }
    bool has_saved = false;
    for (auto& [prefix, shards] : own_shards_) {
      if (const std::optional<std::string> manifest = shards.look()) {
        has_saved = true;
        write_all(to_bytes(FrameType::Saved, with_path(prefix, *manifest)));
      }
      if (!shards.is_sending()) continue;
      const OwnShards::Piece piece = shards.next();
      write_all(to_bytes(FrameType::Shard, with_path(prefix + piece.path, piece.bytes)));
    }
    if (!started_ || any_alive() || has_ended_ || has_saved) return;
    if (results_) {
      send_status();
      while (send_logs()) {
      }
      for (const fs::path& path : results_->changed()) send_file(path);
    }
    write_all(to_bytes(FrameType::Ended, ""));
    has_ended_ = true;
  }

  void collect(const std::string& payload) {
    const Json wanted = parsed(payload);
    const Json* step = wanted.find("step");
    const Json* logs = wanted.find("logs");
    if (logs && logs->is_object() && job_.only_asks) return send_earlier_logs(*logs);
    const std::string name = step && step->is_string() ? step->as_string() : "";
    const std::string prefix = name.starts_with(kBestPrefix) ? kBestPrefix : "";
    const auto shards = own_shards_.find(prefix);
    if (name.empty() || shards == own_shards_.end()) throw Disconnected();
    if (job_.only_asks) shards->second.earlier();  // after a newer one that was damaged, an older one
    shards->second.collect(name.substr(prefix.size()));
  }

  /// `logs`: the last line that the launcher has of each.
  void send_earlier_logs(const Json& logs) {
    for (const auto& [path, line] : logs.members()) {
      if (!line.is_string()) throw Disconnected();
      const Result<std::string> log = read_regular_file(fs::path(job_.output_dir) / path, kGiB);
      std::string_view left = log ? lines_behind(*log, line.as_string()) : std::string_view();
      for (std::int64_t sent = 0; !left.empty();) {
        const std::string_view piece = left.substr(0, kPiece);
        send_grown({.path = path, .offset = sent, .bytes = std::string(piece)});
        sent += static_cast<std::int64_t>(piece.size());
        left.remove_prefix(piece.size());
      }
    }
    write_all(to_bytes(FrameType::Ended, ""));
  }

  void send_status() {
    next_status_ = clock_.now() + std::chrono::milliseconds(kPollMs);
    for (const AgentRank& rank : ranks_) send_file(run_files::kStatus.of(rank.rank));
  }

  /// Returns whether logs have grown.
  bool send_logs() {
    const std::vector<GrowingLogs::Piece> pieces = logs_->next();
    for (const GrowingLogs::Piece& piece : pieces) send_grown(piece);
    return !pieces.empty();
  }

  static void send_grown(const GrowingLogs::Piece& piece) {
    write_all(to_bytes(FrameType::Grown,
                       with_path(piece.path, with_path(std::to_string(piece.offset), piece.bytes))));
  }

  static void send_large_file(const fs::path& path, const fs::path& file) {
    std::int64_t sent = 0;
    for (std::string bytes; !(bytes = piece_of_file(file, sent)).empty();) {
      send_grown({.path = path.string(), .offset = sent, .bytes = bytes});
      sent += static_cast<std::int64_t>(bytes.size());
    }
  }

  void send_file(const fs::path& path) {
    const fs::path file = fs::path(job_.output_dir) / path;
    std::error_code error;
    if (fs::file_size(file, error) > static_cast<std::uintmax_t>(kMostWholeBytes) && !error)
      return send_large_file(path, file);
    const Result<std::string> content = read_regular_file(file, kMostWholeBytes);
    if (!content) return;
    if (content->size() <= kMostStatusBytes) {
      std::string& before = sent_[path];
      if (before == *content) return;
      before = *content;
    }
    write_all(to_bytes(FrameType::Result, with_path(path.string(), *content)));
  }

  SteadyClock clock_;
  const SignalGuard& signals_;
  FrameReader& frames_;
  KeptRanks& kept_;
  std::optional<std::string> next_job_;
  AgentJob job_;
  std::set<std::string> missing_;  ///< inputs that are still to come
  std::vector<AgentRank> ranks_;
  std::optional<Heartbeats> heartbeats_;  ///< once they have been started
  std::optional<ArrivingFile> arriving_;  ///< the input that is coming
  std::optional<DeliveredCheckpoint> delivered_;
  /// Keys: the prefix of their paths. Empty if all hosts see the launcher's folder.
  std::map<std::string, OwnShards> own_shards_;
  std::optional<GrowingLogs> logs_;     ///< as results_
  std::optional<ResultFiles> results_;  ///< only where the output folder is not the launcher's
  std::map<fs::path, std::string> sent_;
  TimePoint next_status_{};
  bool started_ = false, has_ended_ = false, finished_ = false;
  bool scheduler_stops_ = false, launcher_stops_ = false;
};

/// Greets the launcher and runs its jobs, one after the other.
int serve() {
  Connection connection;
  ::fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  try {
    write_all(kAgentGreeting);
    send(FrameType::Hello, Json::object({{"version", MILLRACE_VERSION}, {"host", std::string(host)}}));
  } catch (const Disconnected&) {
    return static_cast<int>(ExitCode::Peer);
  }
  for (std::optional<std::string> job;;) {
    Agent agent(connection);
    const int code = agent.run(job);
    job = agent.next_job();
    if (!job) return code;
  }
}

}  // namespace

CommandSpec agent_spec() {
  CommandSpec spec;
  spec.command = "agent";
  spec.summary = "Run the ranks of this host for `millrace launch` on another host, which starts it.";
  return spec;
}

int agent_command(const std::vector<std::string>& args) {
  return run_command(agent_spec(), args, [](const Arguments&, const Problems& problems) {
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    return serve();
  });
}

}  // namespace millrace
