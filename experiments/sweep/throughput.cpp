#include "experiments/sweep/throughput.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "experiments/runs/run_data.h"
#include "runtime/base/files.h"
#include "runtime/base/flag.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr const char* kHeader = ",epoch,epoch_start,epoch_stop,num_samples";
constexpr double kRate = 4;            // of the exponential distribution, HFTA's
constexpr int kMostDraws = 1'000'000;  // a value that is never drawn must not hang

/// Returns the seconds by which the steady clock is behind the wall clock.
double wall_offset() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(wall).count() - std::chrono::duration<double>(steady).count();
}

std::string number(double value) {
  return printed("%.9g", value);
}

}  // namespace

Result<Timing> timing_of_run(const std::string& folder, std::int64_t steps_per_epoch, int jobs) {
  const Result<RunData> run = read_run(folder);
  if (!run) return run.problems();
  const RankRun* rank = loss_rank(*run);
  if (!rank || rank->steps.empty()) return Problem{folder, "holds no step", "its log says why"};
  const double offset = wall_offset();
  Timing timing;
  const auto per_epoch = static_cast<std::size_t>(steps_per_epoch);
  for (std::size_t first = 0; first + per_epoch <= rank->steps.size(); first += per_epoch) {
    const StepLine& begin = rank->steps[first];
    const StepLine& end = rank->steps[first + per_epoch - 1];
    if (!begin.ended_s || !end.ended_s)
      return Problem{folder, "its log does not say when steps ended", "it is of an older version"};
    EpochTime epoch{.epoch = static_cast<int>(timing.size()),
                    .start = *begin.ended_s - begin.step_s + offset,
                    .stop = *end.ended_s + offset};
    double samples = 0;
    for (std::size_t i = first; i < first + per_epoch; ++i)
      samples += std::round(rank->steps[i].samples_per_s * rank->steps[i].step_s);
    epoch.samples = static_cast<std::int64_t>(samples) * std::max(jobs, 1);
    timing.push_back(epoch);
  }
  return timing;
}

std::string timing_csv(const Timing& timing) {
  std::string text = std::string(kHeader) + "\n";
  for (std::size_t i = 0; i < timing.size(); ++i) {
    const EpochTime& e = timing[i];
    text +=
        printed("%zu,%d,%.6f,%.6f,%lld\n", i, e.epoch, e.start, e.stop, static_cast<long long>(e.samples));
  }
  return text;
}

Result<Timing> read_timing(const std::string& path) {
  const Result<std::string> text = read_file(path);
  if (!text) return text.problems();
  const std::vector<std::string> lines = words_of(*text, '\n');
  if (lines.empty() || lines.front() != kHeader)
    return Problem{path, "is no timing.csv", std::string("its first line is ") + kHeader};
  Timing timing;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> cells = split(lines[i], ',');
    const auto cell = [&](std::size_t c) { return number_from(cells[c], 0, 1e15); };
    if (cells.size() != 5 || !cell(1) || !cell(2) || !cell(3) || !cell(4))
      return Problem{path + ":" + std::to_string(i + 1), "is not five numbers", {}};
    timing.push_back({static_cast<int>(*cell(1)), *cell(2), *cell(3), static_cast<std::int64_t>(*cell(4))});
  }
  return timing;
}

double throughput(const std::vector<Timing>& processes, int warmup) {
  double samples = 0, start = std::numeric_limits<double>::infinity(), stop = -start;
  for (const Timing& timing : processes) {
    for (const EpochTime& epoch : timing) {
      if (epoch.epoch < warmup) continue;
      samples += static_cast<double>(epoch.samples);
      start = std::min(start, epoch.start);
      stop = std::max(stop, epoch.stop);
    }
  }
  return stop > start ? samples / (stop - start) : 0;
}

double interpolated(const RateCurve& curve, int jobs) {
  if (curve.empty()) return 0;
  const auto after = curve.lower_bound(jobs);
  if (after == curve.end()) return curve.rbegin()->second;
  if (after->first == jobs || after == curve.begin()) return after->second;
  const auto before = std::prev(after);
  const double share = double(jobs - before->first) / (after->first - before->first);
  return before->second + share * (after->second - before->second);
}

Band band_at(const ModeCurves& mode, int jobs) {
  Band band{.low = std::numeric_limits<double>::infinity(), .high = -std::numeric_limits<double>::infinity()};
  int count = 0;
  for (const RateCurve& curve : mode.repeats) {
    if (curve.empty()) continue;
    const double value = interpolated(curve, jobs);
    band.mean += value;
    band.low = std::min(band.low, value);
    band.high = std::max(band.high, value);
    ++count;
  }
  if (count == 0) return {};
  band.mean /= count;
  return band;
}

std::string throughputs_csv(const std::vector<ModeCurves>& modes, double serial, int most) {
  std::string text = "B";
  for (const ModeCurves& mode : modes) {
    const std::string name = mode.mode + ":" + mode.precision + ":";
    for (std::size_t r = 0; r < mode.repeats.size(); ++r) text += "," + name + std::to_string(r);
    for (const char* what : {"avg", "min", "max"}) text += "," + name + what;
  }
  text += "\n";
  for (int jobs = 1; jobs <= most; ++jobs) {
    text += std::to_string(jobs);
    for (const ModeCurves& mode : modes) {
      for (const RateCurve& curve : mode.repeats)
        text += "," + (curve.empty() ? "" : number(interpolated(curve, jobs) / serial));
      const Band band = band_at(mode, jobs);
      text += "," + number(band.mean / serial) + "," + number(band.low / serial) + "," +
              number(band.high / serial);
    }
    text += "\n";
  }
  return text;
}

std::vector<int> sizes_to_measure(int most, int count, std::uint64_t seed) {
  std::set<int> sizes{1, most};
  RandomStream random(derive_seed(seed, "sizes", static_cast<std::uint64_t>(most)));
  const std::size_t wanted = static_cast<std::size_t>(std::min(std::max(count, 2), most));
  for (int i = 0; sizes.size() < wanted && i < kMostDraws; ++i) {
    const double draw = -std::log(1 - random.uniform()) / kRate * most;
    const long size = std::lround(std::min(draw, most + 1.0));
    if (size >= 1 && size <= most) sizes.insert(static_cast<int>(size));
  }
  return {sizes.begin(), sizes.end()};
}

int largest_that_fits(int cap, const std::function<bool(int)>& fits) {
  int good = 0, bad = cap + 1;
  for (int size = 1; size <= cap;) {
    if (!fits(size)) {
      bad = size;
      break;
    }
    good = size;
    if (size == cap) break;
    size = size > cap / 2 ? cap : 2 * size;
  }
  while (good > 0 && bad - good > 1) {
    const int middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace millrace
