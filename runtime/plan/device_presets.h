// Memory and links of common devices, by name, for use without a cluster file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/units.h"
#include "runtime/plan/cluster_spec.h"

namespace millrace {

struct DevicePreset {
  std::string name;  ///< e.g. "h100-80g"
  Bytes memory = 0;  ///< bytes that its driver reports, less 1 GiB for the context and libraries
  ClusterLink link;  ///< between two of them in one host: nominal, one direction
};

/// Returns the preset of that name. An unknown name is a Problem at `where`, with the nearest name as its
/// hint.
Result<DevicePreset> device_preset(std::string_view name, const std::string& where);
/// "v100-16g, v100-32g, ...".
std::string device_preset_names();

}  // namespace millrace
