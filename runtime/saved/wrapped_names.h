// Names of weights without the prefixes that PyTorch wrappers add before a model is saved. LibTorch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// Finds the wrappers in the names of one state_dict. "_orig_mod." (torch.compile), "_fsdp_wrapped_module."
/// and "_checkpoint_wrapped_module." may be anywhere: no layer has such a name. "module." (DataParallel,
/// DistributedDataParallel, averaged models) and "model." (trainers) are wrappers if every name starts with
/// them, in any order and number. Names of two state_dicts are compared after their wrappers are removed.
class Unwrapping {
 public:
  /// Names with a '/' are not weights, and "n_averaged" counts the updates of an averaged model: both are
  /// ignored.
  explicit Unwrapping(const std::vector<std::string>& names);

  /// Returns a name without wrappers. The name should be from the state_dict.
  std::string operator()(std::string_view name) const;
  /// Returns the wrappers found, for messages: "_orig_mod. module."; empty if there are none.
  const std::string& found() const { return found_; }

 private:
  std::string before_;  ///< the "module." and "model." prefixes of all names
  std::string found_;
};

/// Returns whether `name` is a PyTorch counter of batches or updates, which millrace does not need.
bool counts_updates(std::string_view name);

}  // namespace millrace
