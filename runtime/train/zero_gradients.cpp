#include "runtime/train/zero_gradients.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/log.h"

namespace millrace {
namespace {

/// Usually checks few elements: only a gradient that may be zero is read completely.
bool is_all_zero(const at::Tensor& values) {
  const at::Tensor flat = values.flatten();
  const std::int64_t first = std::min<std::int64_t>(flat.numel(), 256);
  return !flat.narrow(0, 0, first).any().item<bool>() && !flat.any().item<bool>();
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}
}  // namespace

void warn_of_zero_gradients(const HeldStage& held) {
  held.executor->complete_gradients();
  if (held.replica != 0 || held.store->flat_gradient().is_meta()) return;  // an emulated device has no values
  std::vector<std::string> zero;                                           // parameters of a job
  std::map<std::string, std::vector<int>> jobs_of;  // jobs with a zero gradient for that parameter
  for (const HeldStage::Rule& rule : held.rules) {
    if (held.in_turn() && held.executor != held.executors[rule.turn].get()) continue;
    const ParameterStore store = held.store_of(rule);
    for (std::size_t s = 0; s < store.slots().size(); ++s) {
      if (!is_all_zero(store.view(store.flat_gradient(), s))) continue;
      std::string name = store.slots()[s].name;
      if (held.named()) name.erase(0, name.find('/') + 1);  // "job3/fc.weight"
      if (jobs_of[name].empty()) zero.push_back(name);
      jobs_of[name].push_back(held.first_job + rule.job);
    }
  }
  for (std::string& name : zero) {
    const std::vector<int>& jobs = jobs_of[name];
    if (static_cast<int>(jobs.size()) == held.all_jobs) continue;
    std::vector<std::string> numbers;
    for (const int job : jobs) numbers.push_back(std::to_string(job));
    name += " (job " + listed(numbers) + ")";
  }
  if (!zero.empty())
    log_warning("in the first step the gradient is zero in all elements of " + listed(zero) +
                ": they do not train as long as that is so. Does the loss depend on them, and does what "
                "follows them start at zero?");
  // All arrays have the same layers.
  if (!held.unreached.empty() && held.array == 0 && held.executor == held.executors.back().get())
    log_warning("no path leads to the loss from " + listed(held.unreached) + ": they keep their values");
}

}  // namespace millrace
