// Emulated checkpoints: the files that each rank of a parallel training job writes, with their true sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/io/dlio/dlio_config.h"

namespace millrace {

struct CheckpointTensor {
  std::string name;
  std::string datatype;  ///< "fp16", ...
  std::int64_t elements = 0;
  Bytes bytes = 0;
};

struct CheckpointFile {
  std::string name;  ///< without extension
  std::vector<CheckpointTensor> tensors;
  Bytes bytes() const;
};

/// Parameters of the transformer: embedding, layers of two norms, attention and gated feed-forward, norm,
/// head.
std::int64_t num_parameters(const DlioConfig& config);

/// Returns the files that `rank` of `ranks` writes. Source: DLIO's sharding rules (layers over pipeline
/// stages, tensors over tensor-parallel ranks, ZeRO 1 saves layers from data rank 0 only, ZeRO 3 shards
/// them, optimizer states are three copies over all).
std::vector<CheckpointFile> checkpoint_files(const DlioConfig& config, int rank, int ranks);

/// Problems of the job's shape: ranks that are no multiple of tensor * pipeline, a subset that is larger than
/// the job.
Problems check_checkpoint_shape(const DlioConfig& config, int ranks);

/// Writes FOLDER/NAME.safetensors for each file; fsync where asked, of files and folder. Bytes written.
/// Throws CheckpointError. `seed`: of the contents.
Bytes write_checkpoint(const std::string& folder, const std::vector<CheckpointFile>& files, bool fsync,
                       bool randomize, std::uint64_t seed);
/// Reads them back whole. Bytes read. Throws CheckpointError if one is missing or has another size.
Bytes read_checkpoint(const std::string& folder, const std::vector<CheckpointFile>& files);

}  // namespace millrace
