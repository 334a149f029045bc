#include "experiments/stalls/storage_model.h"

#include <algorithm>
#include <sstream>

#include "driver/cli/flag_target.h"
#include "runtime/base/text.h"

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

StorageModel::StorageModel(StorageSpec spec)
    : spec_(std::move(spec)), place_free_(static_cast<std::size_t>(std::max(1, spec_.queue_depth))) {}

TimePoint StorageModel::served_at(TimePoint now, Bytes size) {
  const auto time = [](double seconds) {
    return std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds));
  };
  const std::lock_guard lock(mutex_);
  const auto place = std::min_element(place_free_.begin(), place_free_.end());
  const TimePoint found = std::max(now, *place) + time(spec_.latency_s);
  pipe_free_ = std::max(found, pipe_free_) + time(static_cast<double>(size) / spec_.bytes_per_s);
  return *place = pipe_free_;
}

}  // namespace millrace
