// Reads the tensors of a state_dict that `torch.save` wrote, and nothing else of it. LibTorch-free.
// Source: torch/serialization.py.
#pragma once

#include <string>
#include <string_view>

#include "driver/checkpoint/pickle.h"
#include "driver/checkpoint/saved_tensors.h"
#include "runtime/base/result.h"

namespace millrace {

/// Returns whether the file is one of torch.save, of any PyTorch since 0.2 (is_torch_save).
bool is_pt_file(const std::string& path);

/// Opens a state_dict: a dict or OrderedDict of names and tensors. `key` names the one to take of a file with
/// dicts in dicts: "model", or "state/model"; empty: the file is one itself. It may hold tensors, dicts,
/// tuples and plain values; any other class or function is a Problem that names it, but entries next
/// to the dict that `key` names are ignored. Tensors must be contiguous and inside their storages. A process
/// of its own reads the file, with limits of time and memory (own_process.h).
Result<SavedTensors> open_pt_file(const std::string& path, const std::string& key);

/// Reads the bytes of such a file in this process. The tensors point into them.
Result<SavedTensors> tensors_in(std::string_view bytes, const std::string& path, const std::string& key);

/// Reads the tensors of an archive, also those in tuples, lists and dicts, in order. Their elements are in
/// `archive`; they have no names.
Result<std::vector<SavedTensor>> tensors_of_archive(std::string_view archive, const std::string& where);

/// The parts of a key: "state/model" has two.
std::vector<std::string> parts_of_key(const std::string& key);

/// Some dicts that hold tensors, for a message: "there are: model (8 tensors), state/ema (8 tensors)".
struct KeyOffer {
  std::string key;
  std::size_t tensors = 0;
};
Problem no_such_dict(const std::string& path, const std::string& what, const std::vector<KeyOffer>& offers);

}  // namespace millrace
