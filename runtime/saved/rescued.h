// The state that the ranks of a failed run still had. Each writes its part by itself, and the launcher joins
// the parts to a checkpoint, so that no step is lost if every stage has a rank that is left.
//   DIR/step-00000013.tmp.RUN/{rank1.json, rank1.stage0.safetensors, ...}
// LibTorch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

/// The folder of the parts of `step`: that of a save which did not end, so that the next run removes it.
std::filesystem::path rescue_folder(const std::filesystem::path& checkpoints, std::int64_t step,
                                    const std::string& run);
std::string rescued_shard_name(int rank, int stage);
/// Writes the last file of a rank's part. `manifest` is that of the whole checkpoint, but with the rank's own
/// shards only, under the names that they will have.
Status write_rescued_part(const std::filesystem::path& folder, int rank, int stages, Json manifest);

/// Publishes the newest step of which there is a part of every stage. Replicas have the same weights, so any
/// of them will do. `accept` is asked whether a step will do. All parts are removed. Returns the step;
/// nothing: the ranks that are left did not have the whole model after one step. The ranks must have ended.
std::optional<std::int64_t> publish_rescued(const std::filesystem::path& checkpoints,
                                            const std::function<bool(std::int64_t step)>& accept);

}  // namespace millrace
