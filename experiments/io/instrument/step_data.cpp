#include "experiments/io/instrument/step_data.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>

#include "experiments/io/trace/json_objects.h"
#include "experiments/io/trace/lines.h"
#include "experiments/runs/run_data.h"
#include "runtime/base/files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kLargestStepFile = 4 * kGiB;

std::vector<double>& metric_in(Metrics& metrics, const std::string& name) {
  for (auto& [known, values] : metrics) {
    if (known == name) return values;
  }
  return metrics.emplace_back(name, std::vector<double>{}).second;
}

/// Metrics of a source in the kit's order.
std::vector<std::string> metric_names(StepSource source) {
  switch (source) {
    case StepSource::Unet3d:
      return {"step_end", "load_batch_mem", "all_compute", "sample_load", "sample_preproc"};
    case StepSource::Dlrm:
      return {"step_end", "load_batch_mem", "all_compute", "batch_load", "batch_preproc"};
    case StepSource::Bert:
      return {"all_compute", "load_batch_mem", "step_end"};
    case StepSource::Dlio:
      return {"step_end",       "load_batch_mem", "all_compute",   "sample_load",
              "sample_preproc", "batch_load",     "batch_preproc", "load_batch_inner"};
    case StepSource::Own:
      return {"step_end", "load_batch_mem", "all_compute", "forward", "backward",
              "update",   "all_reduce",     "send",        "receive", "wait"};
  }
  return {};
}

Metrics empty_metrics(StepSource source) {
  Metrics metrics;
  for (const std::string& name : metric_names(source)) metrics.emplace_back(name, std::vector<double>{});
  return metrics;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Events that one of UNET3D and DLRM logs and the other does not.
const std::set<std::string>& marks_of(StepSource source) {
  static const std::set<std::string> unet3d{"epoch_start", "sample_load", "sample_preproc"},
      dlrm{"training_start", "batch_load", "batch_preproc"};
  return source == StepSource::Unet3d ? unet3d : dlrm;
}

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Collects the durations of one run and leaves the warm-up out.
class StepCollector {
 public:
  StepCollector(StepSource source, bool keep_warm_up, StepData& data, Metrics& into)
      : source_(source), keep_(keep_warm_up), data_(data), into_(into) {
    for (const std::string& name : metric_names(source)) names_.insert(name);
  }

  /// A new epoch or, for DLRM, a new training: its first step warms up.
  void new_stretch() {
    ++stretch_;
    settled_.clear();
  }

  /// `rank`: the kit's logs are of rank 0 alone, ours of all.
  void take(const std::string& metric, double nanoseconds, std::int64_t rank = 0) {
    if (names_.count(metric) == 0) return;
    ++data_.events;
    const bool skips_first = source_ == StepSource::Unet3d || source_ == StepSource::Dlio;
    const bool warm = keep_ || (settled_.count(rank) != 0 && !(skips_first && stretch_ <= 1));
    // The step that ends here was the rank's first of the stretch: what follows counts.
    if (metric == "step_end") settled_.insert(rank);
    if (!warm) {
      ++data_.dropped["durations of the warm-up"];
      return;
    }
    const double seconds = kit_seconds(nanoseconds);
    if (!(seconds > 0)) {
      ++data_.dropped["durations of zero"];
      return;
    }
    metric_in(into_, metric).push_back(seconds);
  }

 private:
  StepSource source_;
  bool keep_;
  StepData& data_;
  Metrics& into_;
  std::set<std::string> names_;
  int stretch_ = 0;
  std::set<std::int64_t> settled_;
};

const Json* member(const Json& json, const char* first, const char* second) {
  const Json* inner = json.find(first);
  return inner ? inner->find(second) : nullptr;
}

class Reader {
 public:
  explicit Reader(const StepDataOptions& options) : o_(options) {}

  Result<StepData> run() {
    read_manifest();
    for (const std::string& folder : o_.folders) {
      std::error_code error;
      if (!fs::is_directory(folder, error)) {
        problems_.push_back({folder, "is not a folder", "give the folder of one set of runs"});
        continue;
      }
      const std::int64_t before = data_.files;
      read_folder(folder);
      if (data_.files == before && problems_.empty()) nothing_in(folder);
    }
    if (!problems_.empty()) return problems_;
    for (auto& [configuration, metrics] : data_.by_configuration) finish(configuration, metrics);
    if (!problems_.empty()) return problems_;
    return std::move(data_);
  }

 private:
  void nothing_in(const std::string& folder) {
    static constexpr const char* kWanted[] = {
        "raw_data/*.json (arrays of mllog events)", "raw_data/*.json (arrays of mllog events)",
        "data/<run>/**/timeline-*.json", "dlio.log below it", "steps.rank*.jsonl"};
    problems_.push_back(
        {folder, "has nothing to process: no " + std::string(kWanted[static_cast<std::size_t>(o_.source)]),
         "is --workload right?"});
  }

  void read_manifest() {
    if (o_.manifest.empty()) return;
    const Result<Json> json = read_json(o_.manifest);
    if (!json) return append(problems_, json.problems());
    ObjectReader in(*json, problems_);
    const Json* runs = in.array("runs");
    in.finish();
    for (const Json& run : runs ? runs->items() : Json::Array{}) {
      ObjectReader one(run, problems_);
      const std::string path = one.string("path");
      const Configuration configuration{static_cast<int>(one.integer("ranks")),
                                        static_cast<int>(one.integer("batch"))};
      one.finish();
      if (configuration.ranks < 1 || configuration.batch < 1)
        problems_.push_back({o_.manifest, path + ": ranks and batch must be at least 1", ""});
      manifest_[path] = configuration;
    }
  }

  /// Reads the configuration from the flags, the manifest, or the name of the file or of a folder above it.
  std::optional<Configuration> configuration_of(const fs::path& folder, const fs::path& file) {
    if (o_.ranks && o_.batch) return Configuration{*o_.ranks, *o_.batch};
    std::error_code error;
    const std::string relative = fs::relative(file, folder, error).string();
    if (!o_.manifest.empty()) {
      for (const auto& [path, configuration] : manifest_) {
        if (relative == path || relative.starts_with(path + "/") || file == fs::path(path))
          return configuration;
      }
      problems_.push_back(
          {file.string(), "is not in " + o_.manifest, "add {\"path\": \"" + relative + "\", ...}"});
      return std::nullopt;
    }
    for (fs::path part = fs::path(relative); !part.empty(); part = part.parent_path()) {
      if (const auto found = configuration_in_name(part.stem().string())) return found;
    }
    if (const auto found = configuration_in_name(folder.filename().string())) return found;
    problems_.push_back({file.string(), "does not tell ranks and batch (as UNET3D_8g_4b does)",
                         "give --ranks and --batch, or a --manifest"});
    return std::nullopt;
  }

  Metrics& metrics_of(const Configuration& configuration) {
    const auto [place, added] = data_.by_configuration.try_emplace(configuration);
    if (added) place->second = empty_metrics(o_.source);
    return place->second;
  }

  void read_folder(const fs::path& folder) {
    if (o_.source == StepSource::Own) return read_own(folder);
    std::vector<fs::path> files;
    std::error_code error;
    const bool events = o_.source == StepSource::Unet3d || o_.source == StepSource::Dlrm;
    const fs::path below = events                          ? folder / "raw_data"
                           : o_.source == StepSource::Bert ? folder / "data"
                                                           : folder;
    auto walk = fs::recursive_directory_iterator(below, error);
    for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
      const std::string name = walk->path().filename().string();
      const bool wanted = events ? name.ends_with(".json")
                          : o_.source == StepSource::Bert
                              ? name.starts_with("timeline-") && name.ends_with(".json")
                              : name == "dlio.log";
      if (wanted && walk->is_regular_file(error)) files.push_back(walk->path());
    }
    std::sort(files.begin(), files.end(), in_order);
    for (const fs::path& file : files) {
      const std::optional<Configuration> configuration = configuration_of(folder, file);
      if (!configuration) continue;
      const Result<std::string> text = read_file(file, kLargestStepFile);
      if (!text) {
        append(problems_, text.problems());
        continue;
      }
      ++data_.files;
      if (events) {
        read_events(*text, file.string(), *configuration);
      } else if (o_.source == StepSource::Bert) {
        read_profile(*text, file.string(), *configuration);
      } else {
        read_dlio(*text, file.string(), *configuration);
      }
    }
  }

  /// Orders by folder, then timeline-9 before timeline-10.
  static bool in_order(const fs::path& a, const fs::path& b) {
    const auto key = [](const fs::path& path) {
      const std::string name = path.stem().string();
      const std::size_t digits = name.find_last_not_of("0123456789") + 1;
      const std::int64_t number = number_of<std::int64_t>(std::string_view(name).substr(digits)).value_or(-1);
      return std::tuple(path.parent_path(), name.substr(0, digits), number, path);
    };
    return key(a) < key(b);
  }

  // ---- mllog events (UNET3D, DLRM)

  void read_events(const std::string& text, const std::string& name, const Configuration& configuration) {
    StepCollector collector(o_.source, o_.keep_warm_up, data_, metrics_of(configuration));
    const char* const border = o_.source == StepSource::Unet3d ? "epoch_start" : "training_start";
    const bool is_unet3d = o_.source == StepSource::Unet3d;
    const std::set<std::string>& own = marks_of(o_.source);
    const std::set<std::string>& others = marks_of(is_unet3d ? StepSource::Dlrm : StepSource::Unet3d);
    bool has_own = false;
    std::set<std::string> foreign;
    std::int64_t events = 0;
    JsonObjects objects(text);
    while (const std::optional<std::string_view> object = objects.next()) {
      const Result<Json> event = parse_json(*object, name);
      const Json* key = event ? event->find("key") : nullptr;
      if (!key || !key->is_string()) {
        ++data_.dropped["damaged events"];
        continue;
      }
      ++events;
      has_own = has_own || own.count(key->as_string()) != 0;
      if (others.count(key->as_string()) != 0) foreign.insert(key->as_string());
      if (key->as_string() == border) {
        collector.new_stretch();
      } else if (key->as_string() == "world_size") {
        check_ranks(*event, configuration, name);
      } else if (const Json* duration = member(*event, "value", "duration");
                 duration && duration->is_number()) {
        const Json* rank = member(*event, "metadata", "rank");
        collector.take(key->as_string(), duration->as_double(),
                       rank && rank->kind() == Json::Kind::Int ? rank->as_int() : 0);
      }
    }
    if (objects.cut_off()) ++data_.dropped["a last event that is cut off"];
    if (events == 0)
      problems_.push_back(
          {name, "holds no event", "make it with `millrace trace preprocess --app-log-only`"});
    if (!has_own && !foreign.empty())
      problems_.push_back({name,
                           std::string("is a log of ") + (is_unet3d ? "dlrm" : "unet3d") + ": it has " +
                               listed(foreign) + ", and none of " + listed(own),
                           std::string("--workload ") + (is_unet3d ? "dlrm" : "unet3d")});
  }

  void check_ranks(const Json& event, const Configuration& configuration, const std::string& name) {
    const Json* value = event.find("value");
    if (!value || value->kind() != Json::Kind::Int || value->as_int() == configuration.ranks) return;
    problems_.push_back({name,
                         "was run on " + std::to_string(value->as_int()) + " ranks (world_size), not on " +
                             std::to_string(configuration.ranks),
                         "is the name, flag or manifest wrong?"});
  }

  // ---- TensorFlow's profiles (BERT)

  struct ProfiledStep {
    std::optional<double> load_start, load_end, copy_start, first, last;
  };

  void read_profile(const std::string& text, const std::string& name, const Configuration& configuration) {
    ProfiledStep step;
    std::string_view events = text;
    events.remove_prefix(std::min(events.find("\"traceEvents\""), events.size()));
    JsonObjects objects(events);
    while (const std::optional<std::string_view> object = objects.next()) {
      const Result<Json> event = parse_json(*object, name);
      const Json* category = event ? event->find("cat") : nullptr;
      if (!category || !category->is_string() || category->as_string() != "Op") continue;
      take_op(*event, step);
    }
    if (objects.cut_off()) ++data_.dropped["profiles that are cut off"];
    if (!step.load_start || !step.load_end || !step.copy_start || !step.first) {
      ++data_.dropped["profiles without the operations of a step"];
      return;
    }
    data_.events += 3;
    Metrics& metrics = metrics_of(configuration);
    const auto add = [&](const char* metric, double microseconds) {
      const double seconds = kit_seconds(microseconds * 1e3);
      if (seconds > 0) {
        metric_in(metrics, metric).push_back(seconds);
      } else {
        ++data_.dropped["durations of zero"];
      }
    };
    add("all_compute", *step.last - *step.copy_start);
    add("load_batch_mem", *step.load_end - *step.load_start);
    add("step_end", *step.last - *step.first);
  }

  static void take_op(const Json& event, ProfiledStep& step) {
    const Json* name = event.find("name");
    const Json* start = event.find("ts");
    const Json* duration = event.find("dur");
    if (!name || !name->is_string() || !start || !start->is_number()) return;
    const double ts = start->as_double();
    step.first = std::min(step.first.value_or(ts), ts);
    step.last = std::max(step.last.value_or(ts), ts);
    if (name->as_string() == "IteratorV2") step.load_start = ts;
    if (name->as_string() == "IteratorGetNext" && duration && duration->is_number())
      step.load_end = ts + duration->as_double();
    const Json* copied = member(event, "args", "name");
    if (copied && copied->is_string() &&
        copied->as_string().find("IteratorGetNext@@MemcpyHtoD") != std::string::npos)
      step.copy_start = ts;
  }

  // ---- DLIO

  void read_dlio(std::string_view text, const std::string& name, const Configuration& configuration) {
    StepCollector collector(o_.source, o_.keep_warm_up, data_, metrics_of(configuration));
    bool whole = true, samples = false, batches = false;
    while (!text.empty()) {
      std::vector<std::string_view> words = words_of(next_line(text, whole));
      if (!words.empty() && words[0].front() == '[') words.erase(words.begin());
      if (words.size() >= 3 && words[1] == "Starting" && words[2] == "epoch") collector.new_stretch();
      if (words.size() != 2) continue;
      const std::optional<double> nanoseconds = whole ? number_of<double>(words[1]) : std::nullopt;
      if (!nanoseconds || !std::isfinite(*nanoseconds)) continue;
      samples = samples || words[0] == "sample_load";
      batches = batches || words[0] == "batch_load";
      collector.take(std::string(words[0]), *nanoseconds);
    }
    if (samples != batches && samples != o_.by_sample)
      problems_.push_back({name,
                           samples ? "is the log of a workload that loads samples (sample_load), not batches"
                                   : "is the log of a workload that loads batches (batch_load), not samples",
                           samples ? "--workload dlio-unet3d" : "--workload dlio-bert or dlio-dlrm"});
  }

  // ---- our own runs

  void read_own(const fs::path& folder) {
    const Result<RunData> run = read_run(folder.string());
    if (!run) return append(problems_, run.problems());
    if (run->ranks.empty()) return;
    const std::optional<Configuration> configuration = own_configuration(*run);
    if (!configuration) {
      problems_.push_back({folder.string(), "does not tell its batch (no rank has losses and steps)",
                           "give --ranks and --batch"});
      return;
    }
    for (const std::string& note : run->notes) data_.notes.push_back(folder.string() + ": " + note);
    note_missing_ranks(folder, *run);
    Metrics& pooled = metrics_of(*configuration);
    for (const RankRun& rank : run->ranks) {
      ++data_.files;
      RankSteps steps{folder.filename().string(), rank.rank, rank.stage, empty_metrics(StepSource::Own)};
      const std::size_t first = o_.keep_warm_up ? 0 : 1;
      if (first == 1 && !rank.steps.empty()) ++data_.dropped["first steps of a rank (warm-up)"];
      for (std::size_t s = first; s < rank.steps.size(); ++s) take_own(rank.steps[s], steps.metrics, pooled);
      data_.ranks.push_back(std::move(steps));
    }
  }

  std::optional<Configuration> own_configuration(const RunData& run) const {
    if (o_.ranks && o_.batch) return Configuration{*o_.ranks, *o_.batch};
    const RankRun* loss = loss_rank(run);
    if (!loss || loss->steps.empty()) return std::nullopt;
    std::vector<double> samples;
    for (const StepLine& step : loss->steps) samples.push_back(step.samples_per_s * step.step_s);
    std::sort(samples.begin(), samples.end());
    const auto batch = static_cast<int>(std::llround(samples[samples.size() / 2]));
    if (batch < 1) return std::nullopt;
    return Configuration{static_cast<int>(ranks_of(run)), batch};
  }

  static std::size_t ranks_of(const RunData& run) {
    return run.plan ? static_cast<std::size_t>(run.plan->num_ranks())
                    : static_cast<std::size_t>(run.ranks.back().rank) + 1;
  }

  void note_missing_ranks(const fs::path& folder, const RunData& run) {
    std::set<int> have;
    for (const RankRun& rank : run.ranks) {
      if (!rank.steps.empty()) have.insert(rank.rank);
    }
    for (int rank = 0; rank < static_cast<int>(ranks_of(run)); ++rank) {
      if (have.count(rank) != 0) continue;
      ++data_.dropped["ranks without steps"];
      data_.notes.push_back(folder.string() + ": steps.rank" + std::to_string(rank) +
                            ".jsonl is missing or has no steps");
    }
  }

  void take_own(const StepLine& step, Metrics& rank, Metrics& pooled) {
    const std::pair<const char*, double> values[] = {{"step_end", step.step_s},
                                                     {"load_batch_mem", step.data_s},
                                                     {"all_compute", step.step_s - step.data_s},
                                                     {"forward", step.forward_s},
                                                     {"backward", step.backward_s},
                                                     {"update", step.update_s},
                                                     {"all_reduce", step.all_reduce_s},
                                                     {"send", step.send_s},
                                                     {"receive", step.receive_s},
                                                     {"wait", step.wait_s}};
    ++data_.events;
    for (const auto& [name, seconds] : values) {
      metric_in(rank, name).push_back(seconds);
      if (seconds > 0) metric_in(pooled, name).push_back(seconds);
    }
  }

  // ---- throughputs

  void finish(const Configuration& configuration, Metrics& metrics) {
    const std::vector<double>* steps = find_metric(metrics, "step_end");
    if (!steps || steps->empty()) {
      problems_.push_back(
          {std::to_string(configuration.ranks) + " ranks, batch " + std::to_string(configuration.batch),
           "has no step after the warm-up", "longer runs, or --keep-warm-up"});
      return;
    }
    const auto rate = [&](const char* name, const char* of, double samples) {
      const std::vector<double>* times = find_metric(metrics, of);
      if (!times || times->empty()) return;
      std::vector<double> rates;
      for (double seconds : *times) rates.push_back(samples / seconds);
      metrics.emplace_back(name, std::move(rates));
    };
    const double batch = configuration.batch;
    const bool bert = o_.source == StepSource::Bert;
    rate("data_loading_throughput", o_.source == StepSource::Dlio ? "load_batch_inner" : "load_batch_mem",
         batch);
    // The kit divides by the whole step here for BERT.
    rate("data_proc_throughput", bert ? "step_end" : "all_compute", batch);
    const std::vector<double>* samples = find_metric(metrics, "sample_load");
    if (samples && !samples->empty() && o_.by_sample) {
      rate("from_disk_throughput", "sample_load", 1);
    } else {
      rate("from_disk_throughput", "batch_load", batch);
    }
    if (!bert) rate("step_throughput", "step_end", batch);
    std::erase_if(metrics, [](const auto& metric) { return metric.second.empty(); });
  }

  const StepDataOptions& o_;
  std::map<std::string, Configuration> manifest_;
  StepData data_;
  Problems problems_;
};

}  // namespace

const std::vector<double>* find_metric(const Metrics& metrics, const std::string& name) {
  for (const auto& [known, values] : metrics) {
    if (known == name) return &values;
  }
  return nullptr;
}

std::optional<Configuration> configuration_in_name(const std::string& name) {
  std::optional<int> ranks, batch;
  for (std::size_t at = 0; at < name.size();) {
    if (!is_digit(name[at])) {
      ++at;
      continue;
    }
    const std::size_t start = at;
    while (at < name.size() && is_digit(name[at])) ++at;
    const bool inside_word = start > 0 && std::isalpha(static_cast<unsigned char>(name[start - 1])) != 0;
    std::optional<int> value = number_of<int>(std::string_view(name).substr(start, at - start));
    std::string unit;
    while (at < name.size() && std::isalpha(static_cast<unsigned char>(name[at])) != 0)
      unit += static_cast<char>(std::tolower(static_cast<unsigned char>(name[at++])));
    if (inside_word || !value || *value < 1) continue;
    int scale = 1;
    if (unit.size() > 1 && (unit[0] == 'k' || unit[0] == 'm') && unit[1] == 'b') {
      scale = unit[0] == 'k' ? 1024 : 1 << 20;
      unit.erase(0, 1);
    }
    if (*value > INT32_MAX / scale) continue;
    if (unit == "g" || unit == "gpu" || unit == "gpus") {
      if (ranks) return std::nullopt;
      ranks = *value;
    } else if (unit == "b" || unit == "batch") {
      if (batch) return std::nullopt;
      batch = *value * scale;
    }
  }
  if (!ranks || !batch) return std::nullopt;
  return Configuration{*ranks, *batch};
}

Result<StepData> read_step_data(const StepDataOptions& options) {
  return Reader(options).run();
}

}  // namespace millrace
