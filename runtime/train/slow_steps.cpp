#include "runtime/train/slow_steps.h"

#include <utility>

#include "runtime/base/median.h"

namespace millrace {

std::optional<double> SlowSteps::add(double seconds) {
  if (told_ || !std::exchange(warm_, true)) return std::nullopt;
  if (first_.size() < kSteps) {
    first_.push_back(seconds);
    if (first_.size() == kSteps) usual_ = median(first_);
    return std::nullopt;
  }
  if (!(seconds >= kFactor * usual_) || usual_ <= 0) return slow_.clear(), std::nullopt;
  slow_.push_back(seconds);
  if (slow_.size() < kSteps) return std::nullopt;
  told_ = true;
  return median(slow_) / usual_;
}

}  // namespace millrace
