// Starts the ranks of a job, here or through agents on other hosts, carries their output, and ends all when
// one fails. Linux; no shell is involved. LibTorch-free.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "driver/hosts/heartbeats.h"
#include "driver/hosts/host_connection.h"
#include "driver/hosts/kept_ranks.h"
#include "driver/hosts/rank_process.h"
#include "driver/launch/checkpoint_collector.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

namespace millrace {

class HostResults;  // driver/launch/host_results.h

/// How a process ended.
struct RankExit {
  int rank = -1;
  int stage = -1;
  pid_t pid = -1;
  int status = 0;              ///< of exit(); meaningless if `signal` is set
  int signal = 0;              ///< that killed it, or 0
  double after_s = 0;          ///< seconds from the first start until the launcher saw the end
  int order = 0;               ///< 0: seen first
  bool was_suspended = false;  ///< by SIGSTOP or a debugger, when another rank failed
  bool consequence = false;    ///< it ended by a signal of the launcher, or stopped because a peer was gone
  bool is_kept = false;        ///< its run ended with `status`, and its process waits for the next one
  std::string lost{};  ///< how its host was lost, or since when it gave no sign of life; empty: neither
  std::vector<std::string> last_lines;  ///< of stderr

  bool failed() const { return signal != 0 || status != 0; }
  int exit_code() const { return signal != 0 ? 128 + signal : status; }
};

struct LaunchOutcome {
  std::vector<RankExit> exits;  ///< by position in the list of processes
  int first_failure = -1;       ///< position of the root cause; -1: none, or the launcher was interrupted
  int interrupt = 0;            ///< signal that asked the launcher to stop, or 0
  bool stopped_early = false;   ///< a rank ended with its state saved, before the last step
  bool hurried = false;         ///< a second signal ended the ranks at once
  double seconds = 0;

  /// 0; the first failing rank's code (128+n for signals); 75 if interrupted ranks saved their state, else
  /// 128+n.
  int exit_code() const;
};

/// These outlive a run of a job that starts again.
struct Survivors {
  KeptRanks ranks{};                                     ///< of this host
  std::vector<std::unique_ptr<HostConnection>> hosts{};  ///< whose agents may have kept ranks, too

  /// Gives up the connection that was made by this command; null: there is none.
  std::unique_ptr<HostConnection> take(const std::vector<std::string>& command);
  void end();
};

/// Hosts that cannot run their ranks.
class UnreadyHosts : public ConfigError {
 public:
  UnreadyHosts(const std::string& what, std::vector<std::size_t> hosts)
      : ConfigError(what), hosts_(std::move(hosts)) {}
  const std::vector<std::size_t>& hosts() const { return hosts_; }  ///< positions in LaunchOptions::hosts

 private:
  std::vector<std::size_t> hosts_;
};

struct LaunchOptions {
  /// Gets the signals of the whole command, also those that came before; null: the run blocks them by itself.
  const SignalGuard* signals = nullptr;
  std::chrono::milliseconds grace{2000};  ///< from SIGTERM to SIGKILL after a failure
  std::chrono::milliseconds interrupt_grace{
      30'000};  ///< the same after SIGINT or SIGTERM: time for a checkpoint
  /// Finds ranks of this host that give no sign of life; they are killed. Null: nobody looks.
  std::shared_ptr<Heartbeats> heartbeats{};
  /// Text that changes when the ranks get on; may be empty. As long as it does, SIGKILL after SIGINT or
  /// SIGTERM is put off, up to four times `interrupt_grace`.
  std::function<std::string()> progress;
  bool append_logs = false;
  /// Holds the ranks that outlive the failure of another one, between two runs; null: none does.
  Survivors* kept = nullptr;
  /// The hosts of ranks that are no processes of this one (RankProcess::host); empty: all are. They end with
  /// the call, but for those that go to `kept`.
  std::vector<std::unique_ptr<HostConnection>> hosts{};
  /// Called when all hosts have looked at the run's folder, with whether all can start their ranks.
  std::function<void(bool)> hosts_ready{};
  std::function<void()> started{};                  ///< called when all processes have been started
  std::chrono::milliseconds host_deadline{60'000};  ///< of all hosts, until their ranks can start
  /// Gets the files of hosts that do not see the run's folder; null: they are dropped.
  std::shared_ptr<HostResults> results{};
  /// Gather the checkpoints of hosts that do not see the run's folder, by the prefix of their paths
  /// (own_shards.h); empty: the ranks save none.
  std::map<std::string, std::shared_ptr<CheckpointCollector>> collectors{};
  /// Called if hosts have folders of their own: puts what the ranks go on from where all look for it, and
  /// returns the folder for their --resume; empty: the one that they were given.
  std::function<std::string()> place_resumed{};
  int out = 1;  ///< gets the ranks' stdout, as it is
  int err = 2;  ///< gets the ranks' stderr line by line with "[rank k] " in front
};

/// Runs all processes to their end. Each is the leader of its own session and process group, with stdin from
/// /dev/null. The first failure ends the others: SIGTERM, after `grace` SIGKILL. Ranks that may be kept get
/// no SIGTERM: they notice by themselves that a peer is lost. SIGINT, SIGTERM, SIGHUP and SIGUSR1 to the
/// launcher are forwarded, but while ranks end already; a second SIGINT or SIGTERM kills. SIGHUP stays
/// ignored if it is (nohup). A rank that ends with Requeue was asked by somebody else: the others have the
/// same time to end. Output that nobody reads holds up nothing: see console.h. No process is left when it
/// returns or throws. Throws ConfigError if a process cannot be started or a log cannot be created. One call
/// at a time in a process: it takes SIGCHLD and the stop signals for itself meanwhile.
LaunchOutcome run_ranks(const std::vector<RankProcess>& processes, LaunchOptions options, Clock& clock);

}  // namespace millrace
