#include "runtime/plan/device_table_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "runtime/base/median.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

// Two measurements of one device agree within 3 % in the published tables, and two devices differ by 40 % or
// more.
constexpr double kAlikeRatio = 1.1, kAlikeSpread = 0.1, kOtherStack = 1.3, kImpossible = 20, kNoise = 0.05;
constexpr int kLeastCommon = 3;

using Times = std::map<std::string, std::vector<DeviceTime>>;

struct LabelledDevice {
  std::string name, label;
  const Times* times;
};

std::vector<double> log_ratios(const Times& one, const Times& other) {
  std::vector<double> ratios;
  for (const auto& [model, times] : one) {
    const auto found = other.find(model);
    if (found == other.end()) continue;
    for (const DeviceTime& time : times) {
      const auto same = std::ranges::find(found->second, time.batch, &DeviceTime::batch);
      if (same != found->second.end()) ratios.push_back(std::log(time.seconds / same->seconds));
    }
  }
  return ratios;
}

/// Finds the largest fall of a device's times from one batch to the next.
void find_falls(const LabelledDevice& device, Problems& suspects) {
  for (const auto& [model, times] : *device.times) {
    const DeviceTime* before = nullptr;
    double most = kNoise;
    std::string where;
    for (const DeviceTime& time : times) {
      if (before && 1 - time.seconds / before->seconds > most) {
        most = 1 - time.seconds / before->seconds;
        where = printed("%.1f %% from a batch of %d to one of %d (lines %d and %d)", 100 * most,
                        before->batch, time.batch, before->line, time.line);
      }
      before = &time;
    }
    if (!where.empty())
      suspects.push_back({device.label, "the time of " + model + " falls by " + where,
                          "a larger batch takes no less time: measure again"});
  }
}

double straight(const std::vector<DeviceTime>& times, int batch) {
  const auto above = std::ranges::lower_bound(times, batch, {}, &DeviceTime::batch);
  const DeviceTime &low = *std::prev(above), &high = *above;
  return std::lerp(low.seconds, high.seconds, double(batch - low.batch) / double(high.batch - low.batch));
}

double proportional(const std::vector<DeviceTime>& times, int batch) {
  const auto distance = [](const DeviceTime& t) { return std::abs(std::log(t.batch / 64.0)); };
  const DeviceTime& from = *std::ranges::min_element(times, {}, distance);
  return from.seconds * batch / from.batch;
}

}  // namespace

bool DevicePair::alike() const {
  return common >= kLeastCommon && std::abs(std::log(ratio)) <= std::log(kAlikeRatio) &&
         spread <= kAlikeSpread;
}

DeviceReport check_devices(const std::vector<DeviceTable>& tables) {
  std::vector<LabelledDevice> devices;
  for (const DeviceTable& table : tables) {
    const std::string file = std::filesystem::path(table.name()).filename().string();
    for (const auto& [name, times] : table.times())
      devices.push_back({name, name + " (" + file + ")", &times});
  }
  DeviceReport report;
  // by device: the smallest ratio by which it is faster than another one
  std::vector<double> lead(devices.size(), 0);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (std::size_t k = i + 1; k < devices.size(); ++k) {
      std::vector<double> ratios = log_ratios(*devices[i].times, *devices[k].times);
      if (ratios.empty()) continue;
      DevicePair pair{devices[i].label, devices[k].label, devices[i].name == devices[k].name,
                      static_cast<int>(ratios.size())};
      const double middle = median(ratios);
      for (double& ratio : ratios) ratio = std::abs(ratio - middle);
      pair.ratio = std::exp(middle);
      pair.spread = median(ratios);
      const auto keep_least = [](double& least, double value) {
        least = least == 0 ? value : std::min(least, value);
      };
      keep_least(lead[i], 1 / pair.ratio);
      keep_least(lead[k], pair.ratio);
      if (pair.alike() && !pair.same_name)
        report.suspects.push_back({pair.one,
                                   printed("it has the times of %s: %.3f times as long in the median of %d "
                                           "points, with a spread of %.1f %%",
                                           pair.other.c_str(), pair.ratio, pair.common, 100 * pair.spread),
                                   "one of the two names is wrong"});
      if (pair.same_name && std::abs(middle) > std::log(kOtherStack))
        report.suspects.push_back({pair.one,
                                   printed("it takes %.2f times as long as %s in the median of %d points",
                                           pair.ratio, pair.other.c_str(), pair.common),
                                   "they are of other software (cuDNN, TF32, precision) or of other devices: "
                                   "use one of them"});
      report.pairs.push_back(std::move(pair));
    }
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (lead[i] > kImpossible)
      report.suspects.push_back({devices[i].label,
                                 printed("it is at least %.0f times as fast as every other device", lead[i]),
                                 "are these measured times?"});
    find_falls(devices[i], report.suspects);
  }
  return report;
}

std::vector<HeldOut> held_out_errors(const DeviceTable& table) {
  std::vector<HeldOut> all;
  for (const auto& [device, models] : table.times()) {
    for (const auto& [model, times] : models) {
      HeldOut out{.device = device, .model = model};
      std::vector<double> errors;
      const auto foretell = [&](const std::vector<DeviceTime>& known, const DeviceTime& time) {
        errors.push_back(std::abs(interpolated(known, time.batch) / time.seconds - 1));
        out.line += std::abs(straight(known, time.batch) / time.seconds - 1);
        out.proportional += std::abs(proportional(known, time.batch) / time.seconds - 1);
      };
      std::vector<DeviceTime> known;
      for (const DeviceTime& time : times)
        if (std::has_single_bit(static_cast<unsigned>(time.batch))) known.push_back(time);
      out.known = static_cast<int>(known.size());
      for (const DeviceTime& time : times)
        if (known.size() > 1 && time.batch > known.front().batch && time.batch < known.back().batch &&
            !std::has_single_bit(static_cast<unsigned>(time.batch)))
          foretell(known, time);
      if (errors.empty() && times.size() > 2) {
        out.known = static_cast<int>(times.size()) - 1;
        for (std::size_t i = 1; i + 1 < times.size(); ++i) {
          std::vector<DeviceTime> others = times;
          others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
          foretell(others, times[i]);
        }
      }
      if (errors.empty()) continue;
      std::ranges::sort(errors);
      const auto n = static_cast<double>(errors.size());
      for (const double error : errors) out.mean += error / n;
      out.line /= n, out.proportional /= n;
      out.held_out = static_cast<int>(errors.size());
      out.p95 = errors[(errors.size() * 95) / 100];
      out.most = errors.back();
      all.push_back(out);
    }
  }
  return all;
}

}  // namespace millrace
