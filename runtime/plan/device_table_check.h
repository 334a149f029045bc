// Checks device tables against each other and against themselves: implausible labels, and the error of times
// between the measured batches.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/device_table.h"

namespace millrace {

/// A device of one table compared with a device of the same or another one, over the models and batches of
/// both.
struct DevicePair {
  std::string one, other;  ///< "v100 (gpus.tsv)"
  bool same_name = false;
  int common = 0;     ///< models and batches in both
  double ratio = 1;   ///< median of time on `one` / time on `other`
  double spread = 0;  ///< median distance from the median ratio, as a share of it
  /// Returns whether the two seem to be one device: at least three common points, a ratio near 1, a small
  /// spread.
  bool alike() const;
};

struct DeviceReport {
  std::vector<DevicePair> pairs;  ///< pairs with common points
  /// Implausible entries: two names with the times of one device; one name with the times of two devices or
  /// software stacks; a device far faster than every other; times that fall while the batch grows.
  Problems suspects;
};
DeviceReport check_devices(const std::vector<DeviceTable>& tables);

/// The error of times between measured batches. Errors are shares of the measured time.
struct HeldOut {
  std::string device, model;
  int known = 0, held_out = 0;         ///< batches
  double mean = 0, p95 = 0, most = 0;  ///< errors of interpolated()
  double line = 0;                     ///< mean error of straight lines between the known batches
  double proportional = 0;  ///< mean error of a time proportional to that of batch 64, or the nearest
};
/// Predicts each batch that is not a power of two from those that are. If there is none between two powers,
/// predicts each inner batch from its neighbours. Devices and models without such batches are left out.
std::vector<HeldOut> held_out_errors(const DeviceTable& table);

}  // namespace millrace
