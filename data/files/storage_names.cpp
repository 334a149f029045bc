#include "data/files/storage_names.h"

#include <sstream>
#include <utility>
#include <vector>

#include "runtime/base/text.h"
#include "runtime/base/text_values.h"

namespace millrace {
namespace {

struct Preset {
  const char* name;
  double latency_s, bytes_per_s;
  int queue_depth;
};

constexpr Preset kPresets[] = {
    {"hdd", 8e-3, 150e6, 1},
    {"sata-ssd", 100e-6, 530e6, 32},
    {"nvme", 80e-6, 3e9, 64},
    {"network", 2e-3, 1.25e9, 16},
};

Result<double> latency_from(const std::string& text) {
  constexpr std::pair<const char*, double> kUnits[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
  for (const auto& [unit, seconds] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const Result<double> number =
        number_from(text.substr(0, text.size() - std::string(unit).size()), 0, 3600);
    if (!number) return number.problems();
    return *number * seconds;
  }
  return Problem{"", "'" + text + "' is not a latency", "a number with its unit: 100us, 8ms, 0.1s"};
}

}  // namespace

std::string storage_presets() {
  std::string text;
  for (const Preset& preset : kPresets)
    text += (text.empty() ? "" : "; ") + std::string(preset.name) +
            printed(" (%g ms, %g MB/s, %d at once)", preset.latency_s * 1e3, preset.bytes_per_s / 1e6,
                    preset.queue_depth);
  return text;
}

Result<StorageSpec> storage_from(const std::string& text) {
  if (text == "disk") return StorageSpec{.name = text, .is_real = true};
  for (const Preset& preset : kPresets)
    if (text == preset.name)
      return StorageSpec{text, preset.latency_s, preset.bytes_per_s, preset.queue_depth};
  std::vector<std::string> parts;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) parts.push_back(word);
  const Problem unknown{"", "'" + text + "' is not a storage",
                        "disk, LATENCY,BANDWIDTH[,DEPTH] as 8ms,150MB,1, or one of: " + storage_presets()};
  if (parts.size() < 2 || parts.size() > 3) return unknown;
  const Result<double> latency = latency_from(parts[0]);
  if (!latency) return latency.problems();
  const Result<Bytes> rate = bytes_from(parts[1]);
  if (!rate) return rate.problems();
  if (*rate < 1) return Problem{"", "a bandwidth of 0 bytes a second", "for example 150MB"};
  const Result<std::int64_t> depth = integer_from(parts.size() == 3 ? parts[2] : "1", 1, 4096);
  if (!depth) return depth.problems();
  return StorageSpec{text, *latency, static_cast<double>(*rate), static_cast<int>(*depth)};
}

Result<StorageSpec> modelled_storage_from(const std::string& text) {
  const Result<StorageSpec> storage = storage_from(text);
  if (storage && storage->is_real)
    return Problem{"", "'disk' has no known speed", "a preset or LATENCY,BANDWIDTH: " + storage_presets()};
  return storage;
}

}  // namespace millrace
