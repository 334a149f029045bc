#include "runtime/train/loss_spikes.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include "runtime/base/median.h"

namespace millrace {
namespace {
constexpr std::size_t kWindow = 64, kFewest = 16;  // losses; with fewer than kFewest, none is a spike
constexpr double kShare = 0.25, kDeviations = 8, kOfNormal = 1.4826;
}  // namespace

std::optional<double> LossSpikes::add(double loss) {
  if (!std::isfinite(loss)) return std::nullopt;
  if (before_.size() >= kFewest) {
    const double middle = median({before_.begin(), before_.end()});
    if (const double above = loss - middle; above > kShare * std::abs(middle)) {
      std::vector<double> distances;
      for (const double one : before_) distances.push_back(std::abs(one - middle));
      if (above > kDeviations * kOfNormal * median(std::move(distances))) return middle;
    }
  }
  before_.push_back(loss);
  if (before_.size() > kWindow) before_.pop_front();
  return std::nullopt;
}

}  // namespace millrace
