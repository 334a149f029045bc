// Queries NVIDIA's driver about the GPUs. Its library is loaded on the first query, and may be absent.
// LibTorch-free.
#pragma once

#include <map>
#include <string>

namespace millrace {

/// Returns values by field, over all GPUs: gpu_utilization, memory_utilization (percent, mean of the GPUs),
/// fb_used_bytes (sum), pcie_tx_bytes_per_s, pcie_rx_bytes_per_s (sums), power_w (sum). Empty without the
/// library or a GPU. Fields that a GPU does not support are left out. Not thread-safe.
std::map<std::string, double> nvml_fields();

/// Returns whether samples of the field are aggregated by their maximum instead of their mean.
bool is_peak_field(const std::string& field);

}  // namespace millrace
