// The launcher's end of an agent on another host: the process that reaches it (driver/queues/engine.h), and
// the frames between them.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver/hosts/agent_job.h"
#include "driver/hosts/frames.h"
#include "driver/hosts/machine.h"
#include "driver/hosts/own_shards.h"
#include "driver/hosts/rank_process.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace millrace {

/// Takes the events of a host while its ranks run.
class HostEvents {
 public:
  virtual ~HostEvents() = default;
  virtual void wrote(int rank, bool to_stderr, std::string_view bytes) = 0;
  virtual void ended(int rank, pid_t pid, const ChildEnd& end, bool was_suspended) = 0;
  /// A file of the run whose folder the launcher does not see. `path` is below the output folder.
  virtual void sent(int host, const std::string& path, std::string_view content) = 0;
  /// Bytes that were appended to such a log after its first `offset` bytes.
  virtual void grown(int host, const std::string& path, std::int64_t offset, std::string_view bytes) = 0;
  /// The host's ranks have saved a checkpoint on its disk. `prefix`: of its paths (own_shards.h).
  virtual void saved(int host, const std::string& prefix, std::string_view manifest) = 0;
  /// A piece of a checkpoint's file, "STEP/FILE"; an empty one ends it, and "STEP/" ends the checkpoint.
  virtual void collected(int host, const std::string& path, std::string_view piece) = 0;
};

/// A host with its agent. Not thread-safe. The destructor ends the connection, and with it the ranks.
class HostConnection {
 public:
  /// `command` starts the agent, here or by an engine. `name` is the host's, for messages. The command has
  /// `starts` tries to bring an agent that answers.
  HostConnection(std::string name, std::vector<std::string> command, AgentJob job, int starts)
      : name_(std::move(name)), command_(std::move(command)), job_(std::move(job)), starts_(starts) {}
  HostConnection(const HostConnection&) = delete;
  HostConnection& operator=(const HostConnection&) = delete;
  ~HostConnection();

  const std::string& name() const { return name_; }
  const std::vector<std::string>& command() const { return command_; }
  const AgentJob& job() const { return job_; }
  bool shares_output() const { return shared_; }
  /// The checkpoints of an earlier run of which the host has shards (AgentJob::only_asks).
  const std::vector<HeldCheckpoint>& held() const { return held_; }
  int port() const { return port_; }
  /// The host's own first address that other hosts could reach; empty: it has none.
  const std::string& address() const { return address_; }
  /// Whether the name of the first host (AgentJob::meeting) means an address there.
  bool resolves_meeting() const { return resolves_; }

  /// What the host said of itself when it was ready.
  const Machine& machine() const { return machine_; }

  /// Whether the agent can be given another job: its ranks have ended, or were not started.
  bool is_idle() const { return open_ && (ended_ || (ready_ && !started_)); }
  /// Gives it that job, with prepare_hosts(). It may keep processes of the one before.
  void again(AgentJob job);

  // ---- while the ranks run
  /// Starts the ranks with `environment` on top of what the job says. `resume` takes the place of their
  /// --resume; empty: it stays.
  void go(const std::vector<std::pair<std::string, std::string>>& environment, const std::string& resume);
  void signal(int number);
  /// Ends the ranks because another one is lost. Those that may be kept end their runs by themselves.
  void end_ranks();
  /// Asks for the shards of a checkpoint that the host has saved.
  void collect(const std::string& step);
  /// Asks for what logs have behind these lines, by path. It ends with has_ended().
  void collect_logs(const std::vector<std::pair<std::string, std::string>>& last_lines);
  /// The host answers no more: nothing is expected of it.
  void give_up() { open_ = false; }
  /// Lets the agent end, when its ranks have.
  void finish();
  bool has_ended() const { return ended_; }  ///< its ranks, and their results are here
  bool is_open() const { return open_; }
  std::int64_t bytes_received() const { return received_; }
  /// Appends the descriptors to poll for reading, and for writing if bytes wait to go out.
  void descriptors(std::vector<pollfd>& to) const;
  /// Passes on what has come. Returns false when the agent has said that all is done, or is gone.
  bool read(HostEvents& events);
  /// Tells why the connection ended before the agent had said that all is done; empty: it did not.
  const std::string& loss() const { return loss_; }

 private:
  friend Result<int> prepare_hosts(std::vector<std::unique_ptr<HostConnection>>& hosts,
                                   std::chrono::milliseconds deadline, const SignalGuard& signals,
                                   Clock& clock);

  void start(const sigset_t& mask);
  void end_process();
  void prepare(const sigset_t& mask);
  void take_before_go(const Frame& frame);
  void send(FrameType type, std::string_view payload);
  void promise(const std::string& path);
  void send_pieces();
  void write_bytes();
  void write_out();
  /// Returns false at the end of the agent's output.
  bool receive();
  std::string exit_text();

  std::string name_;
  std::vector<std::string> command_;
  AgentJob job_;
  int starts_;  ///< that are left, with the one that runs
  ChildProcess process_;
  FrameReader frames_{kAgentGreeting};
  std::string outgoing_;
  /// A file that goes out in pieces.
  struct Outgoing {
    std::string path;  ///< for the agent
    Descriptor file;
  };
  std::deque<Outgoing> files_;
  std::int64_t received_ = 0, sent_ = 0;  ///< bytes
  bool started_ = false, ended_ = false, finishing_ = false;
  std::string errors_;  ///< the last of what the connecting process wrote to stderr
  std::string loss_;
  Problems problems_;  ///< why this host cannot run its ranks
  bool ready_ = false, shared_ = false, resolves_ = false, done_ = false, open_ = false;
  int port_ = 0;
  std::string address_;
  Machine machine_;
  std::vector<HeldCheckpoint> held_;
};

/// Connects to all hosts at once, sends them their jobs and the inputs that they lack, and waits until each
/// can start its ranks. Every host is tried. Problem: one for each host that cannot, with the command that
/// shows the same. Returns 0, or the
/// signal that ended the wait.
Result<int> prepare_hosts(std::vector<std::unique_ptr<HostConnection>>& hosts,
                          std::chrono::milliseconds deadline, const SignalGuard& signals, Clock& clock);

}  // namespace millrace
