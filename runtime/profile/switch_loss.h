// What ranks that share a core lose each time that it goes from one to another: their data have left its
// caches. LibTorch-free.
#pragma once

#include <vector>

#include "runtime/base/mean.h"
#include "runtime/base/median.h"

namespace millrace {

/// A pass over a model beside the ranks that share the core, and one alone on it right after.
struct PassPair {
  double beside_others_s = 0, alone_s = 0;  ///< processor time
  double switches = 0;  ///< how often the rank had to leave its core in the first, less those in the second
};

struct SwitchLoss {
  double seconds = 0;  ///< processor time, each time that a core comes back to a rank
  double share = 0;    ///< part of the processor time of passes beside others
};

/// Returns the loss by the median pair. Noise can make it negative: take means over ranks first. None, if the
/// rank did not have to leave its core. At least one pair.
inline SwitchLoss switch_loss(const std::vector<PassPair>& pairs) {
  std::vector<double> shares, seconds, switches;
  for (const PassPair& pair : pairs) {
    shares.push_back(1 - pair.alone_s / pair.beside_others_s);
    seconds.push_back(pair.beside_others_s);
    switches.push_back(pair.switches);
  }
  if (mean(switches) < 1) return {};
  const double share = median(shares);
  return {.seconds = share * median(seconds) / mean(switches), .share = share};
}

}  // namespace millrace
