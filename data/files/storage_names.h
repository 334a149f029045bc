// Storage devices by name, for flags.
#pragma once

#include <string>

#include "data/files/storage_model.h"
#include "runtime/base/result.h"

namespace millrace {

/// "disk", a preset ("hdd", "sata-ssd", "nvme", "network"), or "LATENCY,BANDWIDTH[,DEPTH]" as "8ms,150MB,1":
/// the bandwidth is a size per second.
Result<StorageSpec> storage_from(const std::string& text);
/// The same without "disk", whose speed is unknown until it is measured.
Result<StorageSpec> modelled_storage_from(const std::string& text);
/// Names of the presets, with their numbers, for help and errors.
std::string storage_presets();

}  // namespace millrace
