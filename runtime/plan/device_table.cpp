#include "runtime/plan/device_table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <iterator>
#include <utility>

#include "runtime/base/byte_order_mark.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr std::size_t kDevice = 0, kModel = 2, kBatch = 3, kCopy = 6, kSeconds = 7, kLeastColumns = 8,
                      kStack = 11;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool has_no_figure(std::string_view cell) {
  constexpr std::array<std::string_view, 4> kNone{"", "n/a", "#value!", "#div/0!"};
  return std::ranges::find(kNone, lower(std::string(cell))) != kNone.end();
}

template <class Map>
std::vector<std::string> keys_of(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& entry : map) keys.push_back(entry.first);
  return keys;
}

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

Problem not_found(const std::string& file, const std::string& kind, const std::string& wanted,
                  const std::vector<std::string>& there) {
  const std::optional<std::string> nearest = nearest_name(lower(wanted), there);
  return {file, "it has no " + kind + " " + wanted,
          (nearest ? "did you mean " + *nearest + "? It has " : "it has ") + listed(there)};
}

}  // namespace

Result<DeviceTable> DeviceTable::load(const std::string& path) {
  const Result<std::string> text = read_file(path);
  if (!text) return text.problems();
  return parse(*text, path);
}

Result<DeviceTable> DeviceTable::parse(std::string_view text, const std::string& name) {
  DeviceTable table;
  table.name_ = name;
  Problems problems;
  int line = 0;
  for (std::string& row : split(without_mark(text), '\n')) {
    ++line;
    if (row.ends_with('\r')) row.pop_back();
    if (row.empty()) continue;
    const std::string where = name + ":" + std::to_string(line);
    const std::vector<std::string> cells = split(row, '\t');
    if (cells.size() < kLeastColumns) {
      problems.push_back({where,
                          "it has " + std::to_string(cells.size()) + " columns, at least " +
                              std::to_string(kLeastColumns) + " were expected",
                          "device, memory, model, batch, input, memory of the model, seconds of the copy, "
                          "seconds of the computation, with tabs between"});
      continue;
    }
    if (has_no_figure(cells[kSeconds])) continue;
    const std::optional<int> batch = number_of<int>(cells[kBatch]);
    const std::optional<double> seconds = number_of<double>(cells[kSeconds]);
    if (!batch || *batch < 1)
      problems.push_back({where, "the batch is '" + cells[kBatch] + "'", "a number of samples was expected"});
    if (!seconds || !(*seconds > 0 && *seconds < 1e9))
      problems.push_back(
          {where, "the time is '" + cells[kSeconds] + "'", "seconds above 0, or N/A, were expected"});
    if (!batch || *batch < 1 || !seconds || !(*seconds > 0 && *seconds < 1e9)) continue;
    std::vector<DeviceTime>& times = table.times_[lower(cells[kDevice])][lower(cells[kModel])];
    const auto other = std::ranges::find(times, *batch, &DeviceTime::batch);
    if (other == times.end()) {
      times.push_back({*batch, *seconds, number_of<double>(cells[kCopy]).value_or(0), line,
                       cells.size() > kStack ? cells[kStack] : ""});
    } else if (other->seconds != *seconds) {
      problems.push_back({where,
                          "line " + std::to_string(other->line) + " has another time for " + cells[kModel] +
                              " in batches of " + cells[kBatch] + " on " + cells[kDevice],
                          "delete one of the two"});
    }
  }
  if (!problems.empty()) return problems;
  if (table.times_.empty()) return Problem{name, "it has no times", "is it a table of device profiles?"};
  for (auto& [device, models] : table.times_)
    for (auto& [model, times] : models) std::ranges::sort(times, {}, &DeviceTime::batch);
  return table;
}

bool DeviceTable::has(const std::string& device, const std::string& model) const {
  const auto models = times_.find(lower(device));
  return models != times_.end() && models->second.contains(lower(model));
}

std::vector<std::string> DeviceTable::devices() const {
  return keys_of(times_);
}

double interpolated(const std::vector<DeviceTime>& times, int batch) {
  constexpr double kFilling = 0.7, kFull = 0.9;  // powers of the batch by which the time grows
  const auto above = std::ranges::lower_bound(times, batch, {}, &DeviceTime::batch);
  if (above->batch == batch) return above->seconds;
  const DeviceTime &low = *std::prev(above), &high = *above;
  const double share = double(batch - low.batch) / double(high.batch - low.batch);
  const double power =
      std::log(high.seconds / low.seconds) / std::log(double(high.batch) / double(low.batch));
  if (high.batch > 2 * low.batch || power < kFilling || power > kFull)
    return std::lerp(low.seconds, high.seconds, share);
  return double(batch) / std::lerp(low.batch / low.seconds, high.batch / high.seconds, share);
}

namespace {

/// Returns the time of a batch outside the range of `times`.
double extrapolated(const std::vector<DeviceTime>& times, int batch) {
  if (times.size() == 1) return times[0].seconds * batch / times[0].batch;
  const bool above = batch > times.back().batch;
  const DeviceTime& end = above ? times.back() : times.front();
  const DeviceTime& next = above ? times[times.size() - 2] : times[1];
  const double slope = std::max(0.0, (end.seconds - next.seconds) / (end.batch - next.batch));
  // Time never approaches zero: below the range it is at least proportional to the samples.
  return std::max(end.seconds + slope * (batch - end.batch), above ? 0.0 : end.seconds * batch / end.batch);
}

}  // namespace

Result<double> DeviceTable::seconds(const std::string& device, const std::string& model, int batch,
                                    const TableLeave& leave) const {
  const auto models = times_.find(lower(device));
  if (models == times_.end()) return not_found(name_, "device", device, devices());
  const auto found = models->second.find(lower(model));
  if (found == models->second.end())
    return not_found(name_, "figure of " + device + " for model", model, keys_of(models->second));
  const std::vector<DeviceTime>& times = found->second;
  const auto above = std::ranges::lower_bound(times, batch, {}, &DeviceTime::batch);
  if (above == times.end() || (above == times.begin() && above->batch != batch)) {
    if (leave.extrapolate) return extrapolated(times, batch);
    std::vector<std::string> batches;
    for (const DeviceTime& one : times) batches.push_back(std::to_string(one.batch));
    return Problem{name_,
                   "it has " + model + " on " + device + " in batches of " + listed(batches) + ", not of " +
                       std::to_string(batch),
                   "times are not extended beyond what was measured: set " + batches.front() +
                       (batches.size() > 1 ? " to " + batches.back() : "") + " by " + leave.batch_option +
                       ", or give --extrapolate"};
  }
  if (above->batch != batch && std::prev(above)->stack != above->stack && !leave.mix_stacks) {
    const auto told = [](const DeviceTime& one) {
      return "line " + std::to_string(one.line) + " (" + (one.stack.empty() ? "not told" : one.stack) + ")";
    };
    return Problem{name_,
                   "the software differs between " + told(*std::prev(above)) + " and " + told(*above) +
                       ", and a batch of " + std::to_string(batch) + " lies between them",
                   "delete the lines of one of them, or give --mix-stacks"};
  }
  return interpolated(times, batch);
}

double DeviceTable::copy_seconds(const std::string& device, const std::string& model, int batch) const {
  const std::vector<DeviceTime>& times = times_.at(lower(device)).at(lower(model));
  const DeviceTime* nearest = nullptr;
  for (const DeviceTime& time : times)
    if (time.copy_s > 0 && (!nearest || std::abs(time.batch - batch) < std::abs(nearest->batch - batch)))
      nearest = &time;
  return nearest ? nearest->copy_s * batch / nearest->batch : 0;
}

double batch_seconds(const LayerGraph& profile) {
  double sum = profile.loss_s;
  for (const LayerNode& node : profile.nodes)
    sum += node.forward_s + node.backward_s() + profile.update_s_per_byte * double(node.touched_bytes());
  return sum;
}

LayerGraph rescaled(LayerGraph profile, double seconds, std::string device) {
  const double factor = seconds / batch_seconds(profile);
  const auto scale = [factor](LayerGraph& graph) {
    graph.sum_s_per_byte = 0;  // another device has another cost of sums
    for (LayerNode& node : graph.nodes) {
      for (double* time : {&node.forward_s, &node.backward_input_s, &node.backward_weight_s}) *time *= factor;
      for (LayerSeconds& one : node.of_microbatches)
        for (double* time : {&one.forward, &one.backward_input, &one.backward_weight}) *time *= factor;
    }
    for (MeasuredMicrobatch& one : graph.microbatches) {
      one.seconds *= factor;
      one.loss_s *= factor;
    }
    for (double* time :
         {&graph.loss_s, &graph.update_s_per_byte, &graph.update_copy_s_per_byte, &graph.norm_s_per_byte})
      *time *= factor;
  };
  scale(profile);
  for (LayerGraph& turn : profile.turns) scale(turn);
  profile.arrays.clear();  // the table has no job arrays
  profile.data_s = 0;      // the table has no data loading
  profile.measured = {};
  profile.device = std::move(device);
  return profile;
}

}  // namespace millrace
