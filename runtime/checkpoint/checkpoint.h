// Checkpoints by parameter name: any plan loads what any other plan saved.
//   DIR/step-00000500/{stage0.safetensors, ..., manifest.json}, DIR/latest
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/comm/communicator.h"
#include "runtime/stage/parameter_store.h"
#include "runtime/stage/update_rule.h"

namespace millrace {

struct CheckpointInfo {
  std::string model;
  std::uint64_t seed = 0;
  std::int64_t step = 0;      ///< steps done
  std::int64_t position = 0;  ///< microbatches consumed
  std::int64_t updates = 0;   ///< of the update rule
  std::string rule;           ///< "sgd"
  std::string plan_fingerprint;
};

/// Everything a stage needs to go on: weights, buffers and rule state by full name ("NAME" and
/// "rule/STATE/NAME").
NamedTensors stage_state(const ParameterStore& store, UpdateRule& rule);
/// Weights and buffers in the model's order (state_dict).
NamedTensors stage_weights(const ParameterStore& store);

/// What a rank writes of one stage; replicas leave it to the first of them.
struct StageTensors {
  int stage = 0;
  NamedTensors tensors;
};

/// Collective over `world`. Each rank writes a shard for each of `mine`; rank 0 then checks that all are
/// there, writes the manifest, renames the folder into place, updates `latest` and removes the oldest beyond
/// `keep`. A reader sees the old or the new checkpoint, never a mixture. Throws CheckpointError.
void save_checkpoint(Communicator& world, const std::string& folder, const CheckpointInfo& info,
                     int num_stages, const std::vector<StageTensors>& mine, int keep = 3);

/// An opened checkpoint: manifest and shards are verified (sizes, checksums).
struct Checkpoint {
  CheckpointInfo info;
  std::string path;
  std::vector<SafetensorsFile> shards;
  const SafetensorsFile* find(const std::string& name) const;
};

/// `path`: a step folder, a folder with `latest`, or an output folder that holds `checkpoints/`.
/// From a folder the newest complete checkpoint is taken; what was skipped is logged.
Result<Checkpoint> open_checkpoint(const std::string& path);

/// Copies the state into a stage. Problems: parameters missing or of another shape, another model.
Problems load_stage(const Checkpoint& checkpoint, const std::string& model, ParameterStore& store,
                    UpdateRule& rule);

/// Collective. The whole model's weights and buffers by name in one file, whatever the plan: the same bytes.
void save_weights(Communicator& world, const std::string& path, int num_stages,
                  const std::vector<StageTensors>& mine);

}  // namespace millrace
