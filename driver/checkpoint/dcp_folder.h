// Reads the tensors of a checkpoint of torch.distributed.checkpoint. LibTorch-free.
// Source: torch/distributed/checkpoint/metadata.py and filesystem.py.
#pragma once

#include <string>

#include "driver/checkpoint/saved_tensors.h"
#include "runtime/base/result.h"

namespace millrace {

/// Returns whether the folder has a `.metadata`, as those checkpoints do.
bool is_dcp_folder(const std::string& path);

/// Opens such a folder: a pickle of metadata, which is read as data, and `__0_0.distcp`, ... with an archive
/// of torch.save for each piece of a tensor. Tensors of several pieces are put together. `key` names the part
/// of a nested dict to take: "model"; empty: the dict is flat. Other entries are ignored. Problems:
/// pieces that are missing, overlap or leave a gap, files that are named outside the folder.
Result<SavedTensors> open_dcp_folder(const std::string& path, const std::string& key);

}  // namespace millrace
