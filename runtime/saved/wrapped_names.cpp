#include "runtime/saved/wrapped_names.h"

#include <algorithm>

namespace millrace {
namespace {

constexpr std::string_view kAnywhere[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                          "_checkpoint_wrapped_module."};
constexpr std::string_view kInFront[] = {"module.", "model."};
constexpr std::string_view kAveraged = "n_averaged";  // torch.optim.swa_utils.AveragedModel

/// Returns the name without the wrappers in kAnywhere, and adds each removed wrapper to `found` once.
std::string without_inner(std::string_view name, std::string& found) {
  std::string rest(name);
  for (const std::string_view wrapper : kAnywhere) {
    for (std::size_t at = 0; (at = rest.find(wrapper, at)) != std::string::npos;) {
      if (at > 0 && rest[at - 1] != '.') {
        at += wrapper.size();
        continue;
      }
      rest.erase(at, wrapper.size());
      if (found.find(wrapper) == std::string::npos) (found += found.empty() ? "" : " ") += wrapper;
    }
  }
  return rest;
}

}  // namespace

Unwrapping::Unwrapping(const std::vector<std::string>& names) {
  std::vector<std::string> rest;
  for (const std::string& name : names)
    if (name.find('/') == std::string::npos && name != kAveraged) rest.push_back(without_inner(name, found_));
  if (rest.empty()) return;
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view wrapper : kInFront) {
      const auto begins = [&](const std::string& name) {
        return std::string_view(name).substr(before_.size()).starts_with(wrapper);
      };
      if (!std::ranges::all_of(rest, begins)) continue;
      before_ += wrapper;
      (found_ += found_.empty() ? "" : " ") += wrapper;
      more = true;
    }
  }
}

std::string Unwrapping::operator()(std::string_view name) const {
  std::string ignored;
  std::string rest = without_inner(name, ignored);
  if (rest.starts_with(before_)) rest.erase(0, before_.size());
  return rest;
}

bool counts_updates(std::string_view name) {
  constexpr std::string_view kBatches = "num_batches_tracked";
  return name == kBatches || name == kAveraged ||
         (name.ends_with(kBatches) && name[name.size() - kBatches.size() - 1] == '.');
}

}  // namespace millrace
