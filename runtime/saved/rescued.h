// The state that the surviving ranks of a failed run saved. Each rank writes its part independently, and the
// launcher joins the parts into a checkpoint. No step is lost if a rank of every stage survives.
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

/// Returns the folder for the parts of `step`. It has the name of an unfinished save, so that the next run
/// removes it.
std::filesystem::path rescue_folder(const std::filesystem::path& checkpoints, std::int64_t step,
                                    const std::string& run);
std::string rescued_shard_name(int rank, int stage);
/// Writes the last file of a rank's part. `manifest` describes the whole checkpoint, but lists only the
/// rank's own shards, under their final names.
Status write_rescued_part(const std::filesystem::path& folder, int rank, int stages, Json manifest);

/// Publishes the newest step that has a part of every stage. Replicas have the same weights, so any replica's
/// part is used. `accept` returns whether a step is acceptable. All parts are removed. Returns the step;
/// nothing if the surviving ranks did not have the whole model after any one step. The ranks must have ended.
std::optional<std::int64_t> publish_rescued(const std::filesystem::path& checkpoints,
                                            const std::function<bool(std::int64_t step)>& accept);

}  // namespace millrace
