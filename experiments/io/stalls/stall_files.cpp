#include "experiments/io/stalls/stall_files.h"

#include <filesystem>
#include <thread>

#include "experiments/drawing/svg_chart.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
constexpr const char* kFormat = "millrace-stalls-1";

Json json_of(const MeasuredPoint& point) {
  return Json::object({{"cache_fraction", point.predicted.cache_fraction},
                       {"miss_share", point.predicted.miss_share},
                       {"predicted_samples_per_s", point.predicted.speed},
                       {"bound", point.predicted.bound},
                       {"measured_samples_per_s", to_json(point.speed)},
                       {"median_samples_per_s", point.median_speed},
                       {"hit_ratio", point.hit_ratio}});
}

std::string csv_of(const StallReport& report) {
  std::string text =
      "cache_fraction,miss_share,predicted_samples_per_s,bound,measured_samples_per_s,half_interval_95,hit_"
      "ratio\n";
  for (const MeasuredPoint& point : report.measured)
    text += printed("%g,%.6f,%.6g,%s,%.6g,%.3g,%.6f\n", point.predicted.cache_fraction,
                    point.predicted.miss_share, point.predicted.speed, point.predicted.bound.c_str(),
                    point.speed.mean, point.speed.half, point.hit_ratio);
  return text;
}

std::string chart_of(const StallJob& job, const StallReport& report) {
  Series predicted{.name = "min(F, P, G)", .colour = "#4269d0"},
      measured{.name = "measured", .colour = "#ff725c"};
  measured.style = Series::Style::Dots;
  for (int i = 0; i <= 20; ++i) {
    const double x = i / 20.0;
    predicted.points.emplace_back(
        100 * x, predict(report.rates, x,
                         simulated_miss_share(job.sizes, job.policy, x, job.storage, job.fetch_threads))
                     .speed);
  }
  for (const MeasuredPoint& point : report.measured)
    measured.points.emplace_back(100 * point.predicted.cache_fraction, point.speed.mean);
  return line_chart_svg(
      {.title = "Speed by size of the cache (" + to_string(job.policy) + ", " + job.storage.name + ")",
       .x_label = "cached % of the data",
       .y_label = "samples / s",
       .y_from_zero = true},
      {predicted, measured});
}

}  // namespace

Json stalls_json(const StallJob& job, const StallReport& report) {
  Json sizes = Json::array(), measured = Json::array();
  for (const Bytes size : job.sizes) sizes.push_back(size);
  for (const MeasuredPoint& point : report.measured) measured.push_back(json_of(point));
  return Json::object({{"format", kFormat},
                       {"epoch_s", report.split.total()},
                       {"compute_s", report.split.compute_s},
                       {"preparation_stall_s", report.split.preparation_s},
                       {"fetch_stall_s", report.split.fetch_s},
                       {"phases", Json::object({{"ingestion_s", to_json(report.ingestion_s)},
                                                {"prepared_s", to_json(report.prepared_s)},
                                                {"limited_s", to_json(report.limited_s)},
                                                {"first_epoch_s", report.first_epoch_s}})},
                       {"rates_samples_per_s", Json::object({{"device", report.rates.device},
                                                             {"preparation", report.rates.preparation},
                                                             {"storage", report.rates.storage}})},
                       {"cache", Json::object({{"policy", to_string(job.policy)},
                                               {"fraction", job.cache_fraction},
                                               {"bytes", share_of_bytes(job.sizes, job.cache_fraction)},
                                               {"hit_ratio", report.hit_ratio},
                                               {"miss_bytes_per_epoch", report.miss_bytes}})},
                       {"storage", Json::object({{"name", job.storage.name},
                                                 {"latency_s", job.storage.latency_s},
                                                 {"bytes_per_s", job.storage.bytes_per_s},
                                                 {"queue_depth", job.storage.queue_depth},
                                                 {"real", job.storage.is_real}})},
                       {"samples", report.samples},
                       {"steps", report.steps},
                       {"batch", job.batch},
                       {"decode_threads", job.decode_threads},
                       {"fetch_threads", job.fetch_threads},
                       {"cores", static_cast<std::int64_t>(std::thread::hardware_concurrency())},
                       {"repeats", job.repeats},
                       {"data_wait_s", report.data_wait_s},
                       {"bytes_from_devices", report.device_bytes},
                       {"measured", std::move(measured)},
                       {"file_bytes", std::move(sizes)}});
}

Result<StallSummary> read_stalls(const std::string& path) {
  const Result<Json> json = read_json(path);
  if (!json) return json.problems();
  const Problem wrong{path, "is not what `millrace stalls analyze` writes", "give its stalls.json"};
  const auto part = [&](const char* name) { return json->is_object() ? json->find(name) : nullptr; };
  const auto number = [](const Json* object, const char* name) -> std::optional<double> {
    const Json* value = object && object->is_object() ? object->find(name) : nullptr;
    if (!value || !value->is_number()) return std::nullopt;
    return value->as_double();
  };
  const auto text = [](const Json* object, const char* name) -> std::string {
    const Json* value = object && object->is_object() ? object->find(name) : nullptr;
    return value && value->is_string() ? value->as_string() : "";
  };
  if (json->is_object() && text(&*json, "format") == kJobStallsFormat)
    return Problem{path, "is of `millrace stalls job`, which does not measure reading and decoding alone",
                   "give the stalls.json of `millrace stalls analyze`; another storage or cache of a job: "
                   "`millrace stalls job --storage NAME --cache F`"};
  if (!json->is_object() || text(&*json, "format") != kFormat) return wrong;
  const Json* rates = part("rates_samples_per_s");
  const auto device = number(rates, "device"), preparation = number(rates, "preparation"),
             storage = number(rates, "storage");
  const Json* sizes = part("file_bytes");
  const auto latency = number(part("storage"), "latency_s"), rate = number(part("storage"), "bytes_per_s"),
             depth = number(part("storage"), "queue_depth"), threads = number(&*json, "fetch_threads"),
             fraction = number(part("cache"), "fraction");
  const std::optional<CachePolicy> policy = value_named<CachePolicy>(text(part("cache"), "policy"));
  if (!device || !preparation || !storage || !latency || !rate || !depth || !threads || !fraction ||
      !policy || !sizes || !sizes->is_array() || sizes->items().empty() || *device <= 0 ||
      *preparation <= 0 || *storage <= 0)
    return wrong;
  StallSummary summary{
      .rates = {*device, *preparation, *storage}, .policy = *policy, .cache_fraction = *fraction};
  summary.fetch_threads = static_cast<int>(*threads);
  summary.storage = {text(part("storage"), "name"), *latency, *rate, static_cast<int>(*depth), *rate == 0};
  for (const Json& size : sizes->items()) {
    if (!size.is_number() || size.as_double() < 1) return wrong;
    summary.sizes.push_back(static_cast<Bytes>(size.as_double()));
  }
  return summary;
}

Status write_stall_files(const std::string& folder, const StallJob& job, const StallReport& report) {
  const fs::path out = folder;
  if (const Status written =
          write_file_atomically(out / "stalls.json", stalls_json(job, report).dump(1) + "\n");
      !written)
    return written;
  if (const Status written = write_file_atomically(out / "stalls.csv", csv_of(report)); !written)
    return written;
  return write_file_atomically(out / "stalls.svg", chart_of(job, report));
}

}  // namespace millrace
