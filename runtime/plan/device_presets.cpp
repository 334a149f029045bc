#include "runtime/plan/device_presets.h"

#include "runtime/base/json.h"

namespace millrace {
namespace {

constexpr double kNvLink2 = 150e9, kNvLink3 = 300e9, kNvLink4 = 450e9, kNvLink5 = 900e9;
constexpr double kPcie3 = 12e9, kPcie4 = 25e9;  // 16 lanes, of which about 80 % is usable
constexpr double kLatency = 1e-5;

const std::vector<DevicePreset>& presets() {
  static const std::vector<DevicePreset> all = {{"v100-16g", Bytes{15} * kGiB, {kNvLink2, kLatency}},
                                                {"v100-32g", Bytes{30} * kGiB, {kNvLink2, kLatency}},
                                                {"a100-40g", Bytes{38} * kGiB, {kNvLink3, kLatency}},
                                                {"a100-80g", Bytes{78} * kGiB, {kNvLink3, kLatency}},
                                                {"h100-80g", Bytes{78} * kGiB, {kNvLink4, kLatency}},
                                                {"h200-141g", Bytes{139} * kGiB, {kNvLink4, kLatency}},
                                                {"b200-180g", Bytes{178} * kGiB, {kNvLink5, kLatency}},
                                                {"t4-16g", Bytes{14} * kGiB, {kPcie3, kLatency}},
                                                {"l4-24g", Bytes{21} * kGiB, {kPcie4, kLatency}},
                                                {"a10-24g", Bytes{21} * kGiB, {kPcie4, kLatency}},
                                                {"l40s-48g", Bytes{44} * kGiB, {kPcie4, kLatency}},
                                                {"a6000-48g", Bytes{46} * kGiB, {kPcie4, kLatency}},
                                                {"rtx3090-24g", Bytes{23} * kGiB, {kPcie4, kLatency}},
                                                {"rtx4090-24g", Bytes{22} * kGiB, {kPcie4, kLatency}}};
  return all;
}

}  // namespace

Result<DevicePreset> device_preset(std::string_view name, const std::string& where) {
  std::vector<std::string> names;
  for (const DevicePreset& preset : presets()) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  const auto near = nearest_name(name, names);
  return Problem{where, "no device is called '" + std::string(name) + "'",
                 near ? "did you mean '" + *near + "'?" : "one of: " + device_preset_names()};
}

std::string device_preset_names() {
  std::string names;
  for (const DevicePreset& preset : presets()) names += (names.empty() ? "" : ", ") + preset.name;
  return names;
}

}  // namespace millrace
