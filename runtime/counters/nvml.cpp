#include "runtime/counters/nvml.h"

#include <dlfcn.h>

#include <vector>

namespace millrace {
namespace {

// The parts of nvml.h that are used; its ABI is stable (changed functions get a new name).
using Device = void*;
struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
constexpr int kSuccess = 0;
constexpr int kPcieTransmit = 0, kPcieReceive = 1;

class Library {
 public:
  Library() {
    handle_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle_) return;
    const auto init = find<int (*)()>("nvmlInit_v2");
    const auto count = find<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
    const auto device = find<int (*)(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
    utilization_ = find<int (*)(Device, Utilization*)>("nvmlDeviceGetUtilizationRates");
    memory_ = find<int (*)(Device, Memory*)>("nvmlDeviceGetMemoryInfo");
    pcie_ = find<int (*)(Device, int, unsigned*)>("nvmlDeviceGetPcieThroughput");
    power_ = find<int (*)(Device, unsigned*)>("nvmlDeviceGetPowerUsage");
    unsigned devices = 0;
    if (!init || !count || !device || init() != kSuccess || count(&devices) != kSuccess) return;
    for (unsigned i = 0; i < devices; ++i) {
      Device one = nullptr;
      if (device(i, &one) == kSuccess) devices_.push_back(one);
    }
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  // Never unloaded: the driver's threads may be executing in it.

  std::map<std::string, double> fields() const {
    std::map<std::string, double> fields;
    const auto mean = static_cast<double>(devices_.size());
    for (const Device device : devices_) {
      Utilization use{};
      if (utilization_ && utilization_(device, &use) == kSuccess) {
        fields["gpu_utilization"] += use.gpu / mean;
        fields["memory_utilization"] += use.memory / mean;
      }
      Memory memory{};
      if (memory_ && memory_(device, &memory) == kSuccess)
        fields["fb_used_bytes"] += static_cast<double>(memory.used);
      unsigned value = 0;
      if (pcie_ && pcie_(device, kPcieTransmit, &value) == kSuccess)
        fields["pcie_tx_bytes_per_s"] += 1024.0 * value;
      if (pcie_ && pcie_(device, kPcieReceive, &value) == kSuccess)
        fields["pcie_rx_bytes_per_s"] += 1024.0 * value;
      if (power_ && power_(device, &value) == kSuccess) fields["power_w"] += value * 1e-3;
    }
    return fields;
  }

 private:
  template <class Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(::dlsym(handle_, name));
  }
  void* handle_ = nullptr;
  int (*utilization_)(Device, Utilization*) = nullptr;
  int (*memory_)(Device, Memory*) = nullptr;
  int (*pcie_)(Device, int, unsigned*) = nullptr;
  int (*power_)(Device, unsigned*) = nullptr;
  std::vector<Device> devices_;
};

}  // namespace

std::map<std::string, double> nvml_fields() {
  static const Library library;
  return library.fields();
}

bool is_peak_field(const std::string& field) {
  return field == "fb_used_bytes";
}

}  // namespace millrace
