#include "runtime/rules/averaging_trigger.h"

namespace millrace {

bool AveragingTrigger::evaluated(double loss, std::int64_t steps, std::int64_t updates) {
  if (has_begun()) return false;
  state_.evaluated = steps;
  std::vector<double>& losses = state_.losses;
  const bool begins = losses.size() > patience_ && loss > losses.front();
  losses.push_back(loss);
  // The first two are replaced by their minimum. A loss that is not finite is not a baseline.
  if (losses.size() > patience_ + 1) {
    if (!(losses[1] >= losses[0])) losses[0] = losses[1] == losses[1] ? losses[1] : losses[0];
    losses.erase(losses.begin() + 1);
  }
  if (begins) state_.from = updates;
  return begins;
}

}  // namespace millrace
