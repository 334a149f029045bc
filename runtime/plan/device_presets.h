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
  Bytes memory = 0;  ///< bytes that its driver reports, minus 1 GiB for the context and libraries
  ClusterLink link;  ///< nominal link between two of them in one host, one direction
};

/// Returns the preset with this name. Returns an error at `where` if the name is unknown, with the nearest
/// name as its hint.
Result<DevicePreset> device_preset(std::string_view name, const std::string& where);
/// Returns "v100-16g, v100-32g, ...".
std::string device_preset_names();

}  // namespace millrace
