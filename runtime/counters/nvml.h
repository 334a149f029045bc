// Asks NVIDIA's driver about the GPUs. Its library is loaded at the first question, and may be absent.
// LibTorch-free.
#pragma once

#include <map>
#include <string>

namespace millrace {

/// Returns a value by field, over all GPUs: gpu_utilization, memory_utilization (per cent, mean of the
/// GPUs), fb_used_bytes (sum), pcie_tx_bytes_per_s, pcie_rx_bytes_per_s (sums), power_w (sum). Empty
/// without the library or a GPU. Fields that a GPU does not know are left out. Not thread-safe.
std::map<std::string, double> nvml_fields();

/// True if samples of it are put together by their maximum, else by their mean.
bool is_peak_field(const std::string& field);

}  // namespace millrace
