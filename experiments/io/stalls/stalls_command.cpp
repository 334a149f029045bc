#include "experiments/io/stalls/stalls_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>

#include "data/files/images.h"
#include "data/files/storage_names.h"
#include "driver/cli/command_support.h"
#include "experiments/io/dlio/dlio_data.h"
#include "experiments/io/stalls/data_state.h"
#include "experiments/io/stalls/stall_figures.h"
#include "experiments/io/stalls/stall_files.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/text.h"
#include "runtime/plan/device_table.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// ---- analyze
// ---------------------------------------------------------------------------------------------------

struct AnalyzeFlags {
  StorageSpec storage = *storage_from("hdd");
  CachePolicy policy = CachePolicy::MinIo;
  double cache = 0.35;
  std::vector<double> measure;
  std::optional<std::string> images;
  std::optional<int> decode_threads;
  int fetch_threads = 4, repeats = 3;
  std::chrono::milliseconds timeout{300'000};
  std::string out = "stalls";
  OutputFormat format = OutputFormat::Text;
};

Problems check_fractions(const std::vector<double>& fractions, const char* flag) {
  for (const double fraction : fractions)
    if (!(fraction >= 0 && fraction <= 1))
      return {{flag, printed("%g is not a share of the data", fraction), "numbers from 0 to 1, as 0.35"}};
  return {};
}

/// All images below a folder, by path.
std::vector<std::string> images_of(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (is_image_name(at->path()) && at->is_regular_file(error)) files.push_back(at->path().string());
  }
  if (error) throw DataError(folder + ": cannot be listed: " + error.message());
  if (files.empty())
    throw DataError(folder + ": has no " + kImageNames + " file", "give the folder of the training images");
  std::sort(files.begin(), files.end());
  return files;
}

StallJob job_of(const AnalyzeFlags& flags, const DlioConfig& config) {
  const WorkingLine working("looks for the files of the data");
  StallJob job{.computation = config.train.computation_time,
               .batch = config.reader.batch_size,
               .decode_threads = flags.decode_threads.value_or(static_cast<int>(config.reader.read_threads)),
               .prefetch = config.reader.prefetch_size,
               .fetch_threads = flags.fetch_threads,
               .storage = flags.storage,
               .policy = flags.policy,
               .cache_fraction = flags.cache,
               .repeats = flags.repeats,
               .seed = static_cast<std::uint64_t>(config.train.seed),
               .timeout = flags.timeout};
  if (flags.images) {
    job.source = {.format = SampleFormat::Jpeg,
                  .files = images_of(*flags.images),
                  .preprocess = config.reader.preprocess_time,
                  .seed = job.seed};
  } else {
    job.source = dlio_source(config, Split::Train);
  }
  for (const std::string& file : job.source.files)
    job.sizes.push_back(static_cast<Bytes>(fs::file_size(file)));
  return job;
}

/// Finds what keeps the files of a workload from being read.
Problems check_readable(const DlioConfig& config, const AnalyzeFlags& flags) {
  Problems problems;
  if (!flags.images && config.dataset.num_samples_per_file != 1)
    problems.push_back({"workload.dataset.num_samples_per_file",
                        std::to_string(config.dataset.num_samples_per_file) +
                            " samples in a file; the analysis reads whole files",
                        "++workload.dataset.num_samples_per_file=1"});
  if (config.reader.synthetic)
    problems.push_back(
        {"workload.reader.data_loader", "synthetic: no files are read", "pytorch or tensorflow"});
  return problems;
}

void generate(const DlioConfig& config) {
  if (const Status good = check_dlio_folder(config); !good) throw ConfigError(to_string(good.problems()));
  if (const Status good = begin_dlio_folder(config); !good) throw DataError(to_string(good.problems()));
  const WorkingLine working("generates data");
  generate_dlio_files(config, 0, 1, std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
}

void print_report(const StallJob& job, const StallReport& report) {
  const auto line = [&](const char* name, double seconds) {
    std::printf("  %-18s %9.3f s  %5.1f %%\n", name, seconds, 100 * seconds / report.split.total());
  };
  const auto data = static_cast<double>(share_of_bytes(job.sizes, 1));
  std::printf("%lld files, %.1f MB, batch %lld; %d decoding and %d fetching threads\n",
              static_cast<long long>(report.samples), data / 1e6, static_cast<long long>(job.batch),
              job.decode_threads, job.fetch_threads);
  std::printf("storage %s, cache %s of %.0f %% of the data (%.1f MB)\n\n", job.storage.name.c_str(),
              to_string(job.policy).c_str(), 100 * job.cache_fraction, job.cache_fraction * data / 1e6);
  std::printf("An epoch: %s s\n", interval(report.limited_s, "%.3f").c_str());
  line("computation", report.split.compute_s);
  line("preparation stall", report.split.preparation_s);
  line("fetch stall", report.split.fetch_s);
  std::printf("\nHit ratio %.1f %%, %.1f MB from storage in an epoch; the first epoch took %.3f s.\n",
              100 * report.hit_ratio, static_cast<double>(report.miss_bytes) / 1e6, report.first_epoch_s);
  if (job.storage.is_real && report.device_bytes >= 0)
    std::printf("The kernel read %.1f MB from devices in all epochs.\n", report.device_bytes / 1e6);
  std::printf("Samples/s, each alone: device G %.1f, preparation P %.1f, storage without a cache S %.1f\n",
              report.rates.device, report.rates.preparation, report.rates.storage);
  if (const auto smallest = smallest_cache(report.rates, job.policy))
    std::printf("The smallest %s cache with which storage does not bound: %.0f %% of the data\n",
                to_string(job.policy).c_str(), 100 * *smallest);
  if (report.measured.empty()) return;
  std::printf("\n%7s %8s %8s %12s %22s %8s  %s\n", "cached", "hits", "misses", "predicted/s", "measured/s",
              "error", "bound by");
  for (const MeasuredPoint& point : report.measured)
    std::printf("%6.0f%% %7.1f%% %7.1f%% %12.1f %22s %7.1f%%  %s\n", 100 * point.predicted.cache_fraction,
                100 * point.hit_ratio, 100 * point.predicted.miss_share, point.predicted.speed,
                interval(point.speed, "%.1f").c_str(), 100 * (point.predicted.speed / point.speed.mean - 1),
                point.predicted.bound.c_str());
}

CommandSpec analyze_flags(AnalyzeFlags& f) {
  CommandSpec spec;
  spec.command = "stalls analyze";
  spec.summary =
      "Split the epoch of a training loop into computation, preparation stall and fetch stall. The loop "
      "reads and decodes real "
      "files; its computation is a wait.";
  spec.positionals = {"workload=NAME|FILE..."};
  spec.flags = {
      flag("", "images", "DIR",
           "Read all images (JPEG, PNG, WebP) below this folder instead of the workload's files. With it "
           "workload=default may be left out.",
           into::text(f.images)),
      flag("", "storage", "NAME|LATENCY,BANDWIDTH[,DEPTH]",
           "What a miss costs. disk: this machine's, past the kernel's cache. Presets: " + storage_presets() +
               ".",
           into::parsed(f.storage, storage_from, "hdd")),
      flag("", "cache", "F", "Size of the cache, as a share of the data's bytes.",
           into::number(f.cache, 0, 1)),
      flag("", "policy", "none|random|lru|fifo|minio",
           "What the cache keeps. random is a model of the kernel's page cache; minio never evicts.",
           into::choice(f.policy, "policy")),
      flag("", "measure", "F,F,...", "Run these cache sizes too, and show prediction beside measurement.",
           into::numbers(f.measure)),
      flag("", "decode-threads", "N", "Threads that decode (default: reader.read_threads of the workload).",
           into::integer(f.decode_threads, 1, 1024)),
      flag("", "fetch-threads", "N", "Requests to storage at once.", into::integer(f.fetch_threads, 1, 1024)),
      flag("", "repeats", "N", "Measure each phase so often, in turn; more give narrower intervals.",
           into::integer(f.repeats, 1, 1000)),
      flag("", "timeout", "SECONDS", "Longest wait for a batch.", into::duration(f.timeout, 1, 1e6)),
      flag("", "out", "DIR", "Folder of stalls.json, stalls.csv and stalls.svg.", into::text(f.out), 'o'),
      flag("", "format", "text|json", "How to print the result.", into::choice(f.format, "format")),
  };
  spec.interrupted = "nothing was written but generated data";
  spec.examples = {
      "millrace stalls analyze workload=resnet50_h100 ++workload.dataset.data_folder=data --storage sata-ssd "
      "--cache 0.35",
      "millrace stalls analyze workload=default --images photos/train ++workload.reader.batch_size=32 "
      "++workload.train.computation_time=0.1 "
      "--measure 0,0.25,0.5,0.75,1"};
  return spec;
}

CommandSpec analyze_spec() {
  return without_targets<AnalyzeFlags>(analyze_flags);
}

int run_analyze(const AnalyzeFlags& flags, const Arguments& given, Problems problems) {
  append(problems, check_fractions(flags.measure, "--measure"));
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const Result<DlioConfig> config = load_dlio_config(given.positionals());
  if (!config) return exit_with(ExitCode::Usage, config.problems());
  append(problems, check_readable(*config, flags));
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  try {
    if (const Status made = make_writable_folder(flags.out); !made)
      return exit_with(ExitCode::Usage, made.problems());
    if (!flags.images && config->workflow.generate_data) generate(*config);
    const StallJob job = job_of(flags, *config);
    const DataState data = state_of(job.source.files);
    SteadyClock clock;
    ProgressLine progress(clock, "stalls", 0, "first epoch");
    const StallReport report = analyze_stalls(job, flags.measure, [&](std::int64_t done, std::int64_t total) {
      progress.show(done, total, "epochs");
    });
    progress.clear();
    require_unchanged(data, flags.images ? images_of(*flags.images) : data.files);
    if (const Status written = write_stall_files(flags.out, job, report); !written)
      return exit_with(ExitCode::RunFailed, written.problems());
    if (flags.format == OutputFormat::Json)
      std::printf("%s\n", stalls_json(job, report).dump(1).c_str());
    else
      print_report(job, report);
    return 0;
  } catch (const Error& error) {
    return exit_with(error.code(), {{"millrace stalls analyze", error.what(), error.hint()}});
  } catch (const fs::filesystem_error& error) {
    return exit_with(ExitCode::InputData, {{error.path1().string(), error.code().message(), ""}});
  }
}

/// Images need nothing of a workload but its reader and its step.
std::vector<std::string> with_workload(std::vector<std::string> args) {
  const auto begins = [&](std::string_view with) {
    return std::ranges::any_of(args, [&](const std::string& word) { return word.starts_with(with); });
  };
  if (begins("--images") && !begins("workload=")) args.emplace_back("workload=default");
  return args;
}

int analyze_command(const std::vector<std::string>& args) {
  AnalyzeFlags flags;
  return run_command(analyze_flags(flags), with_workload(args),
                     [&](const Arguments& given, Problems problems) {
                       return run_analyze(flags, given, std::move(problems));
                     });
}

// ---- figure
// ---------------------------------------------------------------------------------------------------

struct FigureFlags {
  std::string images, table, device, out = "figure";
  std::vector<std::string> models;
  std::vector<double> caches;
  std::vector<int> threads;
  std::optional<StorageSpec> storage;
  std::optional<CachePolicy> policy;
  int gpus = 1, fetch_threads = 4, repeats = 3;
  TableLeave leave;
  std::chrono::milliseconds timeout{300'000};
};

CommandSpec figure_flags(FigureFlags& f) {
  CommandSpec spec;
  spec.command = "stalls figure";
  spec.summary =
      "Measure a figure of the paper on data stalls, and draw it: 3 (fetch stall by model), 4a (an epoch by "
      "size of the cache), 4b (the same beside a cache that never evicts), 5 (speed by decoding threads), 6 "
      "(preparation stall by model). Steps take the times of a table of devices.";
  spec.positionals = {"3|4a|4b|5|6", "workload=NAME|FILE..."};
  spec.flags = {
      flag("", "images", "DIR", "Read all JPEG files below this folder instead of the workload's files.",
           into::text(f.images)),
      device_table_flag(into::text(f.table)),
      table_device_flag(into::text(f.device)),
      flag("", "gpus", "N",
           "Devices that share a batch and a loader; each has its own copy, and no time is taken to exchange "
           "gradients.",
           into::integer(f.gpus, 1, 1024)),
      flag("", "models", "NAME,...", "Models of the table (default: those of the figure that it has).",
           into::list(f.models)),
      flag("", "cache", "F,F,...", "Shares of the data's bytes (default: 0.35; of 4a and 4b six sizes).",
           into::numbers(f.caches)),
      flag("", "threads", "N,N,...",
           "Threads that decode (default: reader.read_threads of the workload; of 5: 1,2,3,6,12,24).",
           into::integers(f.threads, 1, 1024)),
      flag("", "storage", "NAME|LATENCY,BANDWIDTH[,DEPTH]",
           "What a miss costs (default: sata-ssd; of 4b: hdd). Presets: " + storage_presets() + ".",
           {.read = [&f](const std::vector<std::string>& words) -> std::optional<Problem> {
             const Result<StorageSpec> storage = storage_from(words.back());
             if (!storage) return storage.problems().front();
             f.storage = *storage;
             return std::nullopt;
           }}),
      flag("", "policy", "none|random|lru|fifo|minio",
           "What the cache keeps (default: random, the model of the kernel's page cache).",
           into::choice(f.policy, "policy")),
      flag("", "fetch-threads", "N", "Requests to storage at once.", into::integer(f.fetch_threads, 1, 1024)),
      flag("", "repeats", "N", "Measure each phase so often, in turn; error bars need two.",
           into::integer(f.repeats, 1, 1000)),
      flag("", "extrapolate", "Take times of batches outside of the table's.", into::on(f.leave.extrapolate)),
      flag("", "timeout", "SECONDS", "Longest wait for a batch.", into::duration(f.timeout, 1, 1e6)),
      flag("", "out", "DIR", "Folder of figureN.csv, figureN.svg and figureN.png.", into::text(f.out), 'o'),
  };
  spec.interrupted = "nothing was written but generated data";
  spec.examples = {
      "millrace stalls figure 4a workload=default --images photos/train ++workload.reader.batch_size=64 "
      "--table gpus.tsv --device v100"};
  return spec;
}

CommandSpec figure_spec() {
  return without_targets<FigureFlags>(figure_flags);
}

/// The models of a figure in the project that reproduced it.
std::vector<std::string> models_of(StallFigure figure) {
  switch (figure) {
    case StallFigure::FetchByModel:
      return {"shufflenet_v2_x0_5", "alexnet",      "resnet18", "squeezenet1_0",
              "squeezenet1_1",      "mobilenet_v2", "resnet50", "vgg11"};
    case StallFigure::EpochByCache:
    case StallFigure::EpochAndIdeal:
      return {"resnet18"};
    case StallFigure::SpeedByThreads:
    case StallFigure::PreparationByModel:
      return {"alexnet", "resnet18", "mobilenet_v2", "resnet50"};
  }
  return {};
}

Result<std::vector<StepTime>> step_times(const FigureFlags& flags, StallFigure figure, std::int64_t batch) {
  const Result<DeviceTable> table = DeviceTable::load(flags.table);
  if (!table) return table.problems();
  if (batch % flags.gpus != 0)
    return Problem{"--gpus",
                   printed("a batch of %lld does not divide among %d devices", static_cast<long long>(batch),
                           flags.gpus),
                   "set ++workload.reader.batch_size to a multiple"};
  const int share = static_cast<int>(batch / flags.gpus);
  TableLeave leave = flags.leave;
  leave.batch_option =
      flags.gpus > 1 ? "++workload.reader.batch_size / --gpus" : "++workload.reader.batch_size";
  std::vector<StepTime> steps;
  Problems problems;
  std::vector<std::string> models = flags.models;
  if (models.empty()) {
    models = models_of(figure);
    const std::string first = models.front();
    std::erase_if(models, [&](const std::string& model) { return !table->has(flags.device, model); });
    if (models.empty()) models = {first};  // whose problem says what there is
  }
  for (const std::string& model : models) {
    const Result<double> seconds = table->seconds(flags.device, model, share, leave);
    if (seconds)
      steps.push_back({model, *seconds, table->copy_seconds(flags.device, model, share)});
    else
      append(problems, seconds.problems());
  }
  if (!problems.empty()) return problems;
  return steps;
}

int run_figure(const FigureFlags& flags, const Arguments& given, Problems problems) {
  const std::optional<StallFigure> figure = value_named<StallFigure>(given.positionals().front());
  if (!figure) problems.push_back({given.positionals().front(), "is not a figure", "one of 3, 4a, 4b, 5, 6"});
  append(problems, check_fractions(flags.caches, "--cache"));
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const bool by_cache = *figure == StallFigure::EpochByCache || *figure == StallFigure::EpochAndIdeal;
  const std::vector<std::string> workload(given.positionals().begin() + 1, given.positionals().end());
  const Result<DlioConfig> config = load_dlio_config(workload);
  if (!config) return exit_with(ExitCode::Usage, config.problems());
  AnalyzeFlags analysis{
      .storage = flags.storage ? *flags.storage
                               : *storage_from(*figure == StallFigure::EpochAndIdeal ? "hdd" : "sata-ssd"),
      .policy = flags.policy.value_or(CachePolicy::Random),
      .fetch_threads = flags.fetch_threads,
      .repeats = flags.repeats,
      .timeout = flags.timeout};
  if (!flags.images.empty()) analysis.images = flags.images;
  append(problems, check_readable(*config, analysis));
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const Result<std::vector<StepTime>> steps = step_times(flags, *figure, config->reader.batch_size);
  if (!steps) return exit_with(ExitCode::InputData, steps.problems());
  try {
    if (const Status made = make_writable_folder(flags.out); !made)
      return exit_with(ExitCode::Usage, made.problems());
    if (!analysis.images && config->workflow.generate_data) generate(*config);
    FigurePlan plan{.figure = *figure,
                    .models = *steps,
                    .caches = flags.caches,
                    .threads = flags.threads,
                    .job = job_of(analysis, *config)};
    if (plan.caches.empty())
      plan.caches = by_cache ? std::vector{0.22, 0.4, 0.59, 0.77, 0.96, 1.0} : std::vector{0.35};
    if (plan.threads.empty())
      plan.threads = *figure == StallFigure::SpeedByThreads ? std::vector{1, 2, 3, 6, 12, 24}
                                                            : std::vector{plan.job.decode_threads};
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    if (std::ranges::max(plan.threads) > cores)
      std::fprintf(stderr, "note: up to %d decoding threads share %d cores of this machine\n",
                   std::ranges::max(plan.threads), cores);
    const DataState data = state_of(plan.job.source.files);
    SteadyClock clock;
    ProgressLine progress(clock, "stalls", 0, "first point");
    const std::vector<FigurePoint> points = measure_figure(
        plan, [&](std::int64_t done, std::int64_t total) { progress.show(done, total, "points"); });
    progress.clear();
    require_unchanged(data, analysis.images ? images_of(*analysis.images) : data.files);
    const Result<std::vector<std::string>> written = write_figure(flags.out, plan, points);
    if (!written) return exit_with(ExitCode::RunFailed, written.problems());
    std::vector<std::vector<std::string>> lines{{"MODEL", "CACHED", "POLICY", "THREADS", "SAMPLES/S",
                                                 "EPOCH S", "COMPUTE", "COPY", "PREPARATION", "FETCH",
                                                 "HITS"}};
    for (const FigurePoint& p : points)
      lines.push_back({p.model, printed("%.0f %%", 100 * p.cache), to_string(p.policy),
                       std::to_string(p.threads), interval(p.speed, "%.1f"), interval(p.epoch_s, "%.3f"),
                       printed("%.3f", p.compute_s.mean), printed("%.3f", p.copy_s.mean),
                       printed("%.1f %%", 100 * p.preparation_share.mean),
                       printed("%.1f %%", 100 * p.fetch_share.mean), printed("%.1f %%", 100 * p.hit_ratio)});
    print_columns(lines);
    for (const std::string& file : *written) std::printf("wrote %s\n", file.c_str());
    return 0;
  } catch (const Error& error) {
    return exit_with(error.code(), {{"millrace stalls figure", error.what(), error.hint()}});
  } catch (const fs::filesystem_error& error) {
    return exit_with(ExitCode::InputData, {{error.path1().string(), error.code().message(), ""}});
  }
}

int figure_command(const std::vector<std::string>& args) {
  FigureFlags flags;
  return run_command(figure_flags(flags), args, [&](const Arguments& given, Problems problems) {
    return run_figure(flags, given, std::move(problems));
  });
}

// ---- what-if
// ---------------------------------------------------------------------------------------------------

struct WhatIfFlags {
  std::vector<double> caches{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1};
  std::optional<StorageSpec> storage;
  std::optional<CachePolicy> policy;
  double cores = 1, device = 1;
  OutputFormat format = OutputFormat::Text;
};

CommandSpec what_if_flags(WhatIfFlags& f) {
  CommandSpec spec;
  spec.command = "stalls what-if";
  spec.summary =
      "Predict the speed of an analysed loop with another cache, storage, number of cores or device: the "
      "smallest of fetch, "
      "preparation and device speed.";
  spec.positionals = {"STALLS.json"};
  spec.flags = {
      flag("", "cache", "F,F,...", "Sizes of the cache, as shares of the data's bytes.",
           into::numbers(f.caches)),
      flag("", "policy", "none|random|lru|fifo|minio", "What the cache keeps (default: as analysed).",
           into::choice(f.policy, "policy")),
      flag("", "storage", "NAME|LATENCY,BANDWIDTH[,DEPTH]",
           "Another storage (default: as analysed). Presets: " + storage_presets() + ".",
           {.read = [&f](const std::vector<std::string>& words) -> std::optional<Problem> {
             const Result<StorageSpec> storage = storage_from(words.back());
             if (!storage) return storage.problems().front();
             if (storage->is_real)
               return Problem{"", "the speed of 'disk' is not known before it is measured",
                              "`millrace stalls analyze --storage disk`"};
             f.storage = *storage;
             return std::nullopt;
           }}),
      flag("", "cores", "FACTOR", "Cores for decoding, as a multiple of those analysed.",
           into::number(f.cores, 1e-3, 1e6)),
      flag("", "device-speed", "FACTOR", "Speed of the device, as a multiple.",
           into::number(f.device, 1e-3, 1e6)),
      flag("", "format", "text|json", "How to print the result.", into::choice(f.format, "format")),
  };
  spec.examples = {"millrace stalls what-if stalls/stalls.json --storage nvme --device-speed 2"};
  return spec;
}

CommandSpec what_if_spec() {
  return without_targets<WhatIfFlags>(what_if_flags);
}

int run_what_if(const WhatIfFlags& flags, const Arguments& given, Problems problems) {
  append(problems, check_fractions(flags.caches, "--cache"));
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const Result<StallSummary> summary = read_stalls(given.positionals().front());
  if (!summary) return exit_with(ExitCode::InputData, summary.problems());
  StallRates rates = summary->rates;
  rates.preparation *= flags.cores;
  rates.device *= flags.device;
  if (flags.storage) {
    const double mean =
        static_cast<double>(share_of_bytes(summary->sizes, 1)) / static_cast<double>(summary->sizes.size());
    rates.storage = storage_rate(*flags.storage, mean, summary->fetch_threads);
  }
  const CachePolicy policy = flags.policy.value_or(summary->policy);
  const std::optional<double> smallest = smallest_cache(rates, policy);
  Json list = Json::array();
  if (flags.format == OutputFormat::Text) {
    std::printf("G %.1f, P %.1f, S %.1f samples/s; %s cache, storage %s\n\n%7s %8s %12s  %s\n", rates.device,
                rates.preparation, rates.storage, to_string(policy).c_str(),
                (flags.storage ? *flags.storage : summary->storage).name.c_str(), "cached", "misses",
                "samples/s", "bound by");
  }
  for (const double cache : flags.caches) {
    const Prediction point =
        predict(rates, cache,
                simulated_miss_share(summary->sizes, policy, cache, flags.storage.value_or(summary->storage),
                                     summary->fetch_threads));
    if (flags.format == OutputFormat::Text)
      std::printf("%6.0f%% %7.1f%% %12.1f  %s\n", 100 * cache, 100 * point.miss_share, point.speed,
                  point.bound.c_str());
    list.push_back(Json::object({{"cache_fraction", cache},
                                 {"miss_share", point.miss_share},
                                 {"samples_per_s", point.speed},
                                 {"bound", point.bound}}));
  }
  if (flags.format == OutputFormat::Json) {
    Json out = Json::object({{"device", rates.device},
                             {"preparation", rates.preparation},
                             {"storage", rates.storage},
                             {"predictions", std::move(list)}});
    if (smallest) out["smallest_cache_fraction"] = *smallest;
    std::printf("%s\n", out.dump(1).c_str());
  } else if (smallest) {
    std::printf("\nThe smallest %s cache with which storage does not bound: %.0f %% of the data\n",
                to_string(policy).c_str(), 100 * *smallest);
  }
  return 0;
}

int what_if_command(const std::vector<std::string>& args) {
  WhatIfFlags flags;
  return run_command(what_if_flags(flags), args, [&](const Arguments& given, Problems problems) {
    return run_what_if(flags, given, std::move(problems));
  });
}

// ---- cache
// -----------------------------------------------------------------------------------------------------

struct CacheFlags {
  std::int64_t files = 10'000;
  Bytes size = 110'000;
  std::vector<CachePolicy> policies{CachePolicy::Random, CachePolicy::Lru, CachePolicy::Fifo,
                                    CachePolicy::MinIo};
  std::vector<double> caches{0.35, 0.5, 0.65};
  int epochs = 10, nodes = 1;
  bool partitioned = false;
  std::uint64_t seed = 1;
  OutputFormat format = OutputFormat::Text;
};

CommandSpec cache_flags(CacheFlags& f) {
  CommandSpec spec;
  spec.command = "stalls cache";
  spec.summary = "Simulate caches of a training set: each epoch reads every file once, in a new order.";
  spec.flags = {
      flag("", "files", "N", "Files of the data set.", into::integer(f.files, 1, 10'000'000)),
      flag("", "size", "BYTES", "Size of a file.", into::bytes(f.size)),
      flag("", "policy", "LIST", "Of none, random, lru, fifo, minio.", into::choices(f.policies, "policy")),
      flag("", "cache", "F,F,...", "Size of each node's cache, as shares of the data's bytes.",
           into::numbers(f.caches)),
      flag("", "epochs", "N", "Epochs; the ratio shown is the mean of the last half.",
           into::integer(f.epochs, 2, 10'000)),
      flag("", "nodes", "N", "Nodes, each with such a cache and a random share of every epoch.",
           into::integer(f.nodes, 1, 1024)),
      flag("", "partitioned", "A node asks the others before it reads from storage (minio).",
           into::on(f.partitioned)),
      flag("", "seed", "N", "Of the orders, and of random's evictions.", into::integer(f.seed, 0)),
      flag("", "format", "text|json", "How to print the result.", into::choice(f.format, "format")),
  };
  spec.examples = {"millrace stalls cache --cache 0.35,0.65",
                   "millrace stalls cache --policy minio --nodes 2 --cache 0.5 --partitioned"};
  return spec;
}

CommandSpec cache_spec() {
  return without_targets<CacheFlags>(cache_flags);
}

/// "1.50 GB", "1.50 MB", "1.50 kB".
std::string decimal_bytes(double bytes) {
  for (const auto& [unit, name] : {std::pair(1e9, "GB"), {1e6, "MB"}})
    if (bytes >= unit) return printed("%.2f %s", bytes / unit, name);
  return printed("%.2f kB", bytes / 1e3);
}

int run_cache(const CacheFlags& flags, Problems problems) {
  append(problems, check_fractions(flags.caches, "--cache"));
  if (flags.size < 1) problems.push_back({"--size", "0 bytes", "at least 1"});
  if (flags.partitioned && flags.policies != std::vector{CachePolicy::MinIo})
    problems.push_back(
        {"--partitioned", "a file must stay with its node, and these policies evict", "--policy minio"});
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  CacheStudy study{.sizes = std::vector<Bytes>(static_cast<std::size_t>(flags.files), flags.size),
                   .nodes = flags.nodes,
                   .partitioned = flags.partitioned,
                   .epochs = flags.epochs,
                   .seed = flags.seed};
  Json list = Json::array();
  if (flags.format == OutputFormat::Text)
    std::printf("%-8s %7s %10s %10s %12s %16s\n", "policy", "cached", "hits", "expected", "of peers",
                "read/epoch");
  for (const CachePolicy policy : flags.policies) {
    for (const double fraction : flags.caches) {
      study.policy = policy;
      study.capacity = share_of_bytes(study.sizes, fraction);
      const std::vector<EpochReads> epochs =
          while_working(to_string(policy) + printed(" with %.0f%% cached", 100 * fraction),
                        [&] { return simulate_cache(study); });
      const std::size_t from = epochs.size() / 2;
      double hits = 0, peers = 0, misses = 0;
      for (std::size_t i = from; i < epochs.size(); ++i) {
        const auto counted = static_cast<double>(epochs.size() - from);
        hits += epochs[i].hit_ratio() / counted;
        peers += static_cast<double>(epochs[i].peer_hits) / static_cast<double>(flags.files) / counted;
        misses += static_cast<double>(epochs[i].miss_bytes) / counted;
      }
      // Of one node; a negative number: not known.
      const double expected = flags.nodes == 1 ? expected_hit_ratio(policy, fraction).value_or(-1) : -1;
      if (flags.format == OutputFormat::Text)
        std::printf("%-8s %6.0f%% %9.2f%% %10s %11.2f%% %16s\n", to_string(policy).c_str(), 100 * fraction,
                    100 * hits, expected < 0 ? "-" : printed("%.2f%%", 100 * expected).c_str(), 100 * peers,
                    decimal_bytes(misses).c_str());
      Json row = Json::object({{"policy", to_string(policy)},
                               {"cache_fraction", fraction},
                               {"hit_ratio", hits},
                               {"peer_hit_ratio", peers},
                               {"storage_bytes_per_epoch", misses}});
      if (expected >= 0) row["expected_hit_ratio"] = expected;
      list.push_back(std::move(row));
    }
  }
  if (flags.format == OutputFormat::Json) std::printf("%s\n", list.dump(1).c_str());
  return 0;
}

int cache_command(const std::vector<std::string>& args) {
  CacheFlags flags;
  return run_command(cache_flags(flags), args, [&](const Arguments&, Problems problems) {
    return run_cache(flags, std::move(problems));
  });
}

constexpr Subcommand kStallsCommands[] = {
    {"analyze", analyze_spec, analyze_command},
    {"figure", figure_spec, figure_command},
    {"what-if", what_if_spec, what_if_command},
    {"cache", cache_spec, cache_command},
};

}  // namespace

std::span<const Subcommand> stalls_subcommands() {
  return kStallsCommands;
}

}  // namespace millrace
