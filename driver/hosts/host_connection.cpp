#include "driver/hosts/host_connection.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <tuple>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"
#include "runtime/base/version.h"

namespace millrace {
namespace {

constexpr std::size_t kKeptErrors = 4096;
constexpr int kLookMs = 100;  // how often deadlines are looked at

std::string text_member(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

std::int64_t number_member(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value && value->kind() == Json::Kind::Int ? value->as_int() : 0;
}

bool true_member(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value && value->kind() == Json::Kind::Bool && value->as_bool();
}

Json json_of(const Frame& frame) {
  const Result<Json> json = parse_json(frame.payload, "the agent's frame");
  if (!json) throw PeerError(to_string(json.problems()));
  return *json;
}

/// "ssh -o BatchMode=yes -- node1 true": what shows the same without millrace.
std::string command_to_try(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& word : command) text += (text.empty() ? "" : " ") + word;
  return "try `" + text + "`";
}

}  // namespace

HostConnection::~HostConnection() {
  end_process();
}

void HostConnection::end_process() {
  if (process_.pid < 0) return;
  process_.in.close();  // the agent ends its ranks
  if (done_ || !open_ || ended_) {
    // Nothing is left to do there. The agent ends by itself, and so does ssh.
    for (int i = 0; i < 100 && !end_of(process_.pid); ++i) {
      if (::waitpid(process_.pid, nullptr, WNOHANG) < 0) return;
      ::usleep(10'000);
    }
  }
  ::kill(-process_.pid, SIGTERM);
  for (int i = 0; i < 300; ++i) {
    if (end_of(process_.pid) || ::waitpid(process_.pid, nullptr, WNOHANG) != 0) return;
    ::usleep(10'000);
  }
  ::kill(-process_.pid, SIGKILL);
  ::waitpid(process_.pid, nullptr, 0);
}

void HostConnection::again(AgentJob job) {
  job_ = std::move(job);
  ready_ = shared_ = started_ = ended_ = false;
  held_.clear();
}

void HostConnection::start(const sigset_t& mask) {
  if (open_) return send(FrameType::Job, to_json(job_).dump());
  process_ = start_child("the connection to " + name_, command_, {}, mask, ChildInput::Pipe);
  ::fcntl(process_.in.get(), F_SETFL, O_NONBLOCK);
  open_ = true;
}

void HostConnection::send(FrameType type, std::string_view payload) {
  outgoing_ += to_bytes(type, payload);
  write_out();
}

void HostConnection::write_out() {
  do {
    send_pieces();
    write_bytes();
  } while (outgoing_.empty() && !files_.empty() && process_.in.is_open());
}

/// A piece goes to the bytes that wait as soon as there are few of them: a file of any size takes little
/// memory.
void HostConnection::send_pieces() {
  if (files_.empty() || outgoing_.size() >= kPiece) return;
  Outgoing& next = files_.front();
  std::string bytes(kPiece, '\0');
  ssize_t n;
  do {
    n = ::read(next.file.get(), bytes.data(), bytes.size());
  } while (n < 0 && errno == EINTR);
  bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);  // the agent sees by the hash what is missing
  outgoing_ += to_bytes(FrameType::File, with_path(next.path, bytes));
  if (bytes.empty()) files_.pop_front();
}

void HostConnection::write_bytes() {
  while (!outgoing_.empty() && process_.in.is_open()) {
    const ssize_t n = ::write(process_.in.get(), outgoing_.data(), outgoing_.size());
    if (n > 0) {
      outgoing_.erase(0, static_cast<std::size_t>(n));
      sent_ += n;
    } else if (n < 0 && errno == EINTR)
      continue;
    else if (n < 0 && errno == EAGAIN)
      return;
    else
      process_.in.close();  // the end of its output tells why
  }
}

void HostConnection::go(const std::vector<std::pair<std::string, std::string>>& environment,
                        const std::string& resume) {
  Json variables = Json::object();
  for (const auto& [name, value] : environment) variables[name] = value;
  Json go = Json::object({{"environment", variables}});
  if (!resume.empty()) go["resume"] = resume;
  started_ = true;
  send(FrameType::Go, go.dump());
}

void HostConnection::signal(int number) {
  send(FrameType::Signal, std::to_string(number));
}

void HostConnection::end_ranks() {
  send(FrameType::PeerLost, "");
}

void HostConnection::collect(const std::string& step) {
  send(FrameType::Collect, Json::object({{"step", step}}).dump());
}

void HostConnection::collect_logs(const std::vector<std::pair<std::string, std::string>>& last_lines) {
  Json logs = Json::object();
  for (const auto& [path, line] : last_lines) logs[path] = line;
  send(FrameType::Collect, Json::object({{"logs", logs}}).dump());
}

void HostConnection::finish() {
  if (!std::exchange(finishing_, true)) send(FrameType::Finish, "");
}

void HostConnection::descriptors(std::vector<pollfd>& to) const {
  if (!open_) return;
  for (const Descriptor* stream : {&process_.out, &process_.err})
    if (stream->is_open()) to.push_back({stream->get(), POLLIN, 0});
  if ((!outgoing_.empty() || !files_.empty()) && process_.in.is_open())
    to.push_back({process_.in.get(), POLLOUT, 0});
}

bool HostConnection::receive() {
  write_out();
  char buffer[1 << 16];
  while (process_.err.is_open()) {
    const ssize_t n = ::read(process_.err.get(), buffer, sizeof buffer);
    if (n > 0) {
      errors_.append(buffer, static_cast<std::size_t>(n));
      if (errors_.size() > kKeptErrors) errors_.erase(0, errors_.size() - kKeptErrors);
    } else if (n < 0 && errno == EAGAIN) {
      break;
    } else if (n == 0 || errno != EINTR) {
      process_.err.close();
    }
  }
  while (process_.out.is_open()) {
    const ssize_t n = ::read(process_.out.get(), buffer, sizeof buffer);
    if (n > 0) {
      frames_.add({buffer, static_cast<std::size_t>(n)});
      received_ += n;
      return true;  // frames first: a flood is taken piece by piece
    }
    if (n < 0 && errno == EAGAIN) return true;
    if (n == 0 || errno != EINTR) process_.out.close();
  }
  return false;
}

/// Why the connecting process ended: its own last words are the best account.
std::string HostConnection::exit_text() {
  if (const std::string said = last_line(errors_); !said.empty()) return said;
  if (const std::string said = last_line(frames_.noise()); !frames_.is_greeted() && !said.empty())
    return "it answered '" + said + "', not as an agent";
  return frames_.is_greeted() ? "the connection ended" : "it ended without an answer";
}

bool HostConnection::read(HostEvents& events) {
  if (!open_) return false;
  try {
    for (;;) {
      const bool more = receive();
      std::size_t taken = 0;
      while (const std::optional<Frame> frame = frames_.next()) {
        ++taken;
        std::string_view payload = frame->payload;
        if (frame->type == FrameType::Output || frame->type == FrameType::ErrorOutput) {
          const int rank = take_rank(payload);
          events.wrote(rank, frame->type == FrameType::ErrorOutput, payload);
        } else if (frame->type == FrameType::Result) {
          const std::string path = take_path(payload);
          events.sent(job_.host, path, payload);
        } else if (frame->type == FrameType::Grown) {
          const std::string path = take_path(payload);
          const std::optional<std::int64_t> offset = number_of<std::int64_t>(take_path(payload));
          events.grown(job_.host, path, offset.value_or(-1), payload);
        } else if (frame->type == FrameType::Saved) {
          const std::string prefix = take_path(payload);
          events.saved(job_.host, prefix, payload);
        } else if (frame->type == FrameType::Shard) {
          const std::string path = take_path(payload);
          events.collected(job_.host, path, payload);
        } else if (frame->type == FrameType::Ended) {
          ended_ = true;
        } else if (frame->type == FrameType::Exit) {
          const Json json = json_of(*frame);
          events.ended(static_cast<int>(number_member(json, "rank")),
                       static_cast<pid_t>(number_member(json, "pid")),
                       {.status = static_cast<int>(number_member(json, "status")),
                        .signal = static_cast<int>(number_member(json, "signal")),
                        .silence = escaped(text_member(json, "silence")),
                        .is_kept = true_member(json, "kept")},
                       true_member(json, "suspended"));
        } else if (frame->type == FrameType::Refused) {
          loss_ = escaped(frame->payload);
        } else if (frame->type == FrameType::Done) {
          done_ = true;
          open_ = false;
          return false;
        }
      }
      if (!more) {
        open_ = false;
        if (loss_.empty()) loss_ = exit_text();
        return false;
      }
      if (taken == 0) return true;
    }
  } catch (const PeerError& error) {
    open_ = false;
    loss_ = error.what();
    return false;
  }
}

/// The agent gets files that the job names, and no others.
void HostConnection::promise(const std::string& path) {
  namespace fs = std::filesystem;
  std::string source = path;
  const fs::path name = fs::path(path).filename(), step = fs::path(path).parent_path();
  if (!job_.checkpoint.folder.empty() && step.parent_path() == fs::path(job_.checkpoint.folder) &&
      step.filename() == job_.checkpoint_source.filename())
    source = (job_.checkpoint_source / name).string();
  else if (std::ranges::find(job_.inputs, path, &AgentInput::path) == job_.inputs.end())
    throw PeerError("the agent asks for a file that the job does not name");
  Descriptor file(::open(source.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.is_open())
    files_.push_back({.path = path, .file = std::move(file)});
  else
    problems_.push_back({source, std::string("cannot be opened: ") + std::strerror(errno), {}});
}

void HostConnection::take_before_go(const Frame& frame) {
  if (frame.type == FrameType::Hello) {
    const std::string version = text_member(json_of(frame), "version");
    if (version != MILLRACE_VERSION) {
      problems_.push_back({"host " + name_,
                           "its millrace is version " + escaped(version) + ", this one is " MILLRACE_VERSION,
                           "install the same version on every host"});
      return;
    }
    send(FrameType::Job, to_json(job_).dump());
  } else if (frame.type == FrameType::Need) {
    const Json json = json_of(frame);
    const Json* paths = json.find("paths");
    if (!paths || !paths->is_array()) throw PeerError("the agent asks for no files");
    for (const Json& item : paths->items()) {
      const std::string path = item.is_string() ? item.as_string() : "";
      promise(path);
    }
    write_out();
  } else if (frame.type == FrameType::Held && job_.only_asks) {
    const Json json = json_of(frame);
    HeldCheckpoint held{
        .manifest = text_member(json, "manifest"), .files = {}, .prefix = text_member(json, "prefix")};
    if (const Json* files = json.find("files"); files && files->is_array())
      for (const Json& file : files->items())
        if (file.is_string()) held.files.push_back(file.as_string());
    held_.push_back(std::move(held));
  } else if (frame.type == FrameType::Ready) {
    const Json json = json_of(frame);
    shared_ = true_member(json, "shared");
    port_ = static_cast<int>(number_member(json, "port"));
    address_ = text_member(json, "address");
    resolves_ = true_member(json, "resolves");
    if (const Json* machine = json.find("machine")) machine_ = machine_from(*machine);
    ready_ = true;
  } else if (frame.type == FrameType::Refused) {
    for (const std::string& line : split(frame.payload, '\n'))
      problems_.push_back({"host " + name_, escaped(line), {}});
  } else {
    throw PeerError("the agent sent what it should not yet");
  }
}

void HostConnection::prepare(const sigset_t& mask) {
  try {
    const bool more = receive();
    if (!more && !frames_.is_greeted() && starts_ > 1) {
      --starts_;
      end_process();
      errors_.clear();
      frames_ = FrameReader(kAgentGreeting);
      open_ = false;
      return start(mask);
    }
    while (problems_.empty()) {
      const std::optional<Frame> frame = frames_.next();
      if (!frame) break;
      take_before_go(*frame);
    }
    if (!more && problems_.empty() && !ready_)
      problems_.push_back({"host " + name_, exit_text(), command_to_try(command_)});
  } catch (const Error& error) {
    problems_.push_back(
        {"host " + name_, error.what(), error.hint().empty() ? command_to_try(command_) : error.hint()});
  }
}

Result<int> prepare_hosts(std::vector<std::unique_ptr<HostConnection>>& hosts,
                          std::chrono::milliseconds deadline, const SignalGuard& signals, Clock& clock) {
  // A host that gets large files has more time, as long as it takes them.
  std::map<const HostConnection*, std::pair<std::int64_t, TimePoint>> heard;
  for (const auto& host : hosts) {
    heard[host.get()] = {0, clock.now()};
    try {
      host->start(signals.old_mask());
    } catch (const ConfigError& error) {
      host->problems_.push_back({"host " + host->name_, error.what(), error.hint()});
    }
  }
  const auto open = [](const auto& host) { return host->problems_.empty() && !host->ready_; };
  while (std::ranges::any_of(hosts, open)) {
    std::vector<pollfd> polled{{signals.descriptor(), POLLIN, 0}};
    for (const auto& host : hosts)
      if (open(host)) host->descriptors(polled);
    ::poll(polled.data(), polled.size(), kLookMs);
    if (const std::vector<int> came = signals.read(); !came.empty()) return came.front();
    for (const auto& host : hosts) {
      if (!open(host)) continue;
      host->prepare(signals.old_mask());
      auto& [bytes, when] = heard[host.get()];
      if (const std::int64_t now = host->files_.empty() ? bytes : host->sent_; now != bytes)
        std::tie(bytes, when) = std::pair(now, clock.now());
      if (open(host) && clock.now() >= when + deadline)
        host->problems_.push_back({"host " + host->name_,
                                   "is not ready after " + printed("%.0f s", Seconds(deadline).count()),
                                   command_to_try(host->command_)});
    }
  }
  Problems problems;
  for (const auto& host : hosts) append(problems, host->problems_);
  if (!problems.empty()) return problems;
  return 0;
}

}  // namespace millrace
