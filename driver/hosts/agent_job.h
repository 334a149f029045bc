// The messages between a launcher and the agent of a host, as JSON in frames (frames.h).
#pragma once

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
  std::string hash;  ///< file_hash of the launcher's file; empty: a folder, or too large to send
  bool operator==(const AgentInput&) const = default;
};

/// The ranks of one host and what they need.
struct AgentJob {
  std::string directory;   ///< where the ranks run; made if it is not there
  std::string output_dir;  ///< of the run
  std::string probe;       ///< a file in the launcher's output folder: a host that sees it shares the folder
  std::string worker;      ///< the program of the ranks; empty: the agent's own for `device`
  std::string device;      ///< "cpu", "cuda"
  std::vector<AgentInput> inputs;
  std::vector<RankProcess> ranks;  ///< argv without the program; environment without what the agent adds
};
Json to_json(const AgentJob& job);
Result<AgentJob> agent_job_from(const Json& json);

/// Returns a hash of the file's content: 32 hexadecimal digits of XXH3-128; empty if it cannot be read or is
/// larger than kMostInputBytes.
std::string file_hash(const std::string& path);
/// Larger inputs are not sent: they have to be on the host.
inline constexpr Bytes kMostInputBytes = 64 * kMiB;

}  // namespace millrace
