// Reads the tensors of a state_dict that `torch.save` wrote, and nothing else of it. LibTorch-free.
// Source: torch/serialization.py, torch/_utils.py (_rebuild_tensor_v2), Python's pickletools.py.
#pragma once

#include <string>

#include "driver/checkpoint/saved_tensors.h"
#include "runtime/base/result.h"

namespace millrace {

/// Returns whether the file is a zip archive, as torch.save writes them since PyTorch 1.6.
bool is_pt_file(const std::string& path);

/// Opens a state_dict: a dict or OrderedDict of names and tensors. The pickle in it is read as data: no name
/// in it is looked up, and nothing is called. It may hold tensors, dicts, tuples and plain values; any other
/// class or function is a Problem that names it. Tensors must be contiguous and lie in their storages.
Result<SavedTensors> open_pt_file(const std::string& path);

}  // namespace millrace
