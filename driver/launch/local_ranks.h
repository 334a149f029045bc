// Helpers of every command that starts ranks on this host: the store where ranks meet, their environment,
// and the text of their end. LibTorch-free.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "driver/launch/launcher.h"

namespace millrace {

/// A fresh folder for the ranks' meeting, for this user only; gone at the end. The ranks remove it themselves
/// when all have met; what a launcher left that was killed before is removed by the next one: a folder whose
/// lock nobody holds. Throws ConfigError.
class StoreFolder {
 public:
  StoreFolder();
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;
  ~StoreFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;  ///< held as long as this process lives
};

/// Returns the environment that torchrun gives to a rank, with our file store. The rank ends when this
/// process does.
std::vector<std::pair<std::string, std::string>> rank_environment(int rank, int ranks,
                                                                  const std::string& store);

/// Whether this process is a rank of a job already (RANK or WORLD_SIZE is set, or a scheduler of clusters
/// started it as one of several tasks): it starts no others.
bool is_rank_of_a_job();

/// Starts `worker COMMAND ARGS` as so many ranks and ends all when one fails; says on stderr which failed
/// first. `threads` is their OMP_NUM_THREADS unless that is set. 0, or the first failing rank's code.
int run_command_ranks(const std::string& worker, const std::string& command,
                      const std::vector<std::string>& args, int ranks, int threads);

/// Says on stderr which rank of a command failed first, or that a signal stopped it.
void explain_failure(const std::string& command, const LaunchOutcome& outcome);

/// Whether the rank refused what it was told to do (exit code 2). Its message says all there is to say.
bool is_refusal(const RankExit& exit);

std::string signal_text(int signal);         ///< "signal 9 (SIGKILL)"
std::string end_text(const RankExit& exit);  ///< "killed by signal 9 (SIGKILL)", "exit code 2", "done"

}  // namespace millrace
