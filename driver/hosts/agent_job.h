// The messages between a launcher and the agent of a host, as JSON in frames (frames.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "driver/hosts/rank_process.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

/// A file or folder that the ranks read, by the path that their arguments name.
struct AgentInput {
  std::string path;
  std::string hash;        ///< XXH3-128 of the launcher's file; empty: a folder, or too large to send
  std::int64_t bytes = 0;  ///< of the launcher's file
  bool operator==(const AgentInput&) const = default;
};

/// A checkpoint that the ranks go on from. A host that does not see the launcher's folder gets what it lacks.
struct AgentCheckpoint {
  std::string folder;    ///< with step folders and `latest`; empty: there is no checkpoint
  std::string manifest;  ///< its text
};

/// The ranks of one host and what they need.
struct AgentJob {
  std::string directory;   ///< where the ranks run; made if it is not there
  std::string output_dir;  ///< of the run
  std::string probe;       ///< a file in the launcher's output folder: a host that sees it shares the folder
  std::string worker;      ///< the program of the ranks; empty: the agent's own for `device`
  std::string device;      ///< "cpu", "cuda"
  std::string meeting;     ///< the first host's name, where the ranks meet; empty: at its own address
  int host = 0;            ///< position among the job's hosts
  int heartbeat_ms = 0;    ///< a rank without a sign of life for so long is lost; 0: none is
  bool keeps_ranks = false;  ///< processes may outlive this job, for the next one of the connection
  bool only_asks = false;    ///< what the host holds of an earlier run is wanted; there are no ranks
  AgentCheckpoint checkpoint;
  std::filesystem::path
      checkpoint_source;  ///< the launcher's own step folder of `checkpoint`; it is not sent
  std::vector<AgentInput> inputs;
  std::vector<RankProcess> ranks;  ///< argv without the program; environment without what the agent adds
};
Json to_json(const AgentJob& job);
Result<AgentJob> agent_job_from(const Json& json);

/// Returns what the agent needs to know a file by; an input without a hash if it cannot be read.
AgentInput input_file(const std::string& path);
/// Larger files of `--data` are not sent: they have to be on the host.
inline constexpr Bytes kMostDataBytes = 64 * kMiB;

}  // namespace millrace
