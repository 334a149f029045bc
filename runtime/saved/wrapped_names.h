// Names of weights without what PyTorch programs wrap around a model before they save it. LibTorch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// Finds the wrappers in the names of one state_dict. "_orig_mod." (torch.compile), "_fsdp_wrapped_module."
/// and
/// "_checkpoint_wrapped_module." may be anywhere: no layer has such a name. "module." (DataParallel,
/// DistributedDataParallel, averaged models) and "model." (trainers) are wrappers where every name begins
/// with them, in any order and number. Names of two state_dicts are compared without the wrappers of each.
class Unwrapping {
 public:
  /// Names with a '/' are no weights, and "n_averaged" counts the updates of an averaged model: both have no
  /// say.
  explicit Unwrapping(const std::vector<std::string>& names);

  /// Returns a name without wrappers. The name should be one of the state_dict's.
  std::string operator()(std::string_view name) const;
  /// Returns the wrappers that were found, for messages: "_orig_mod. module."; empty: there are none.
  const std::string& found() const { return found_; }

 private:
  std::string before_;  ///< "module." and "model." before all names
  std::string found_;
};

/// Whether `name` counts batches or updates in PyTorch, which nothing here needs.
bool counts_updates(std::string_view name);

}  // namespace millrace
