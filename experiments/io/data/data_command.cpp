#include "experiments/io/data/data_command.h"

#include <algorithm>
#include <cstdio>

#include "driver/cli/command_group.h"
#include "driver/cli/command_support.h"
#include "experiments/io/generate/workloads.h"
#include "experiments/io/io_commands.h"
#include "runtime/base/clock.h"
#include "runtime/base/progress_line.h"

namespace millrace {
namespace {

void print_report(const GenerateReport& report, const std::string& folder, double seconds,
                  OutputFormat format, const char* verb) {
  const double rate =
      static_cast<double>(report.bytes - report.kept + report.extra) / 1e6 / std::max(seconds, 1e-9);
  if (format == OutputFormat::Json) {
    Json json = Json::object({{"folder", folder},
                              {"files", report.files},
                              {"records", report.records},
                              {"bytes", report.bytes},
                              {"kept_bytes", report.kept},
                              {"extra_bytes", report.extra},
                              {"seconds", seconds},
                              {"mb_per_s", rate}});
    if (report.entropy_per_word) json["entropy_bits_per_word"] = *report.entropy_per_word;
    if (report.auc_ceiling) json["auc_ceiling"] = *report.auc_ceiling;
    std::printf("%s\n", json.dump(1).c_str());
    return;
  }
  std::printf("%s: %lld files, %lld records, %.3f MB", folder.c_str(), static_cast<long long>(report.files),
              static_cast<long long>(report.records), static_cast<double>(report.bytes) / 1e6);
  if (report.extra > 0) std::printf(" and %.3f MB beside them", static_cast<double>(report.extra) / 1e6);
  if (report.kept > 0) std::printf(", %.3f MB were there", static_cast<double>(report.kept) / 1e6);
  std::printf("; %s in %.2f s, %.0f MB/s\n", verb, seconds, rate);
  if (report.entropy_per_word) std::printf("entropy: %.3f bits a word\n", *report.entropy_per_word);
  if (report.auc_ceiling) std::printf("AUC of the test file: at most %.4f\n", *report.auc_ceiling);
}

struct GenerateFlags {
  GenerateOptions options;
  std::string out;
  std::optional<int> threads;
  OutputFormat format = OutputFormat::Text;
};

Result<Workload> workload_from(const std::string& name) {
  if (const std::optional<Workload> workload = workload_named(name)) return *workload;
  return Problem{"", "unknown workload '" + name + "'",
                 "imseg (unet3d), kidneys, bert, dlrm, clicks, images or text"};
}

int generate(const GenerateFlags& flags) {
  GenerateOptions options = flags.options;
  options.out = flags.out;
  options.threads = thread_count(flags.threads);
  SteadyClock clock;
  const TimePoint start = clock.now();
  ProgressLine line(clock, "", options.size);
  const Result<GenerateReport> report =
      generate_workload(options, [&](Bytes done) { line.show_bytes(done); });
  line.clear();
  if (!report) return exit_with(ExitCode::Usage, report.problems());
  print_report(*report, options.out.string(), Seconds(clock.now() - start).count(), flags.format,
               "generated");
  return 0;
}

struct CheckFlags {
  std::optional<int> threads;
  OutputFormat format = OutputFormat::Text;
};

int check(const CheckFlags& flags, const std::string& folder) {
  const Result<GenerateOptions> manifest = read_manifest(folder);
  if (!manifest) return exit_with(ExitCode::InputData, manifest.problems());
  SteadyClock clock;
  const TimePoint start = clock.now();
  ProgressLine line(clock, "", manifest->size);
  const Result<GenerateReport> report =
      check_workload(folder, thread_count(flags.threads), [&](Bytes done) { line.show_bytes(done); });
  line.clear();
  if (!report) return exit_with(ExitCode::InputData, report.problems());
  print_report(*report, folder, Seconds(clock.now() - start).count(), flags.format,
               "every byte as generated, checked");
  return 0;
}

CommandSpec spec_of(GenerateFlags& f) {
  GenerateOptions& o = f.options;
  CommandSpec spec = listed(kIoDataGenerate);
  spec.flags = {
      {.name = "workload",
       .short_name = 'w',
       .value = "NAME",
       .help =
           "imseg (or unet3d: NPY volumes and labels), kidneys (the same, but a network can learn them), "
           "bert (TFRecord of tf.Examples), dlrm (rows of 40 integers), clicks (the same, but a network can "
           "learn them), "
           "images (JPEG, a folder for each class), text (lines of words).",
       .required = true,
       .target = into::parsed(o.workload, workload_from)},
      {.name = "out",
       .short_name = 'o',
       .value = "DIR",
       .help = "A new or empty folder, or one that an interrupted run left: it is completed.",
       .required = true,
       .target = into::text(f.out)},
      {.name = "size",
       .short_name = 's',
       .value = "BYTES",
       .help = "How much, reached with the last record (dlrm, clicks: of the training file, the test file "
               "comes on top).",
       .required = true,
       .target = into::bytes(o.size)},
      flag("", "seed", "N", "Of everything that is random.", into::integer(o.seed, 0)),
      threads_flag(f.threads),
      flag("", "entropy", "BITS",
           "Bits of information in a byte: fewer occurring values (images: less noise), so that packers find "
           "about BITS/8 of the size.",
           into::number(o.randomness.entropy, 0.01, 8)),
      flag("", "correlation", "R",
           "Chance that a value repeats its neighbour's, a word is followed by its usual one, a volume's "
           "depth "
           "and side share a factor.",
           into::number(o.randomness.correlation, 0, 0.999)),
      flag("", "classes", "N", "Classes of images.", into::integer(o.classes, 1, 10000)),
      flag("", "image-side", "PIXELS",
           "Mean side of images, or of kidneys' planes; each differs by up to a quarter.",
           into::integer(o.image_side, 8, 16384)),
      flag("", "table-rows-cap", "N", "Most values of a categorical feature of clicks; 0: as the kit's.",
           into::integer(o.table_rows_cap, 0, std::int64_t{1} << 31)),
      flag("", "format", "text|json", "How to print the result.", into::choice(f.format, "format")),
  };
  spec.interrupted = "files that are finished stay";
  for (const char* example :
       {"millrace data generate -w clicks -o data/clicks -s 160MB --table-rows-cap 1000",
        "millrace data generate -w bert -o data/bert -s 391434146993B",
        "millrace data generate -w text -o data/text -s 100MB --correlation 0.5 --format json"})
    spec.examples.emplace_back(example);
  return spec;
}

CommandSpec spec_of(CheckFlags& f) {
  CommandSpec spec = listed(kIoDataCheck);
  spec.positionals = {"DIR"};
  spec.flags = {threads_flag(f.threads), flag("", "format", "text|json", "How to print the result.",
                                              into::choice(f.format, "format"))};
  return spec;
}

int generate_command(const std::vector<std::string>& args) {
  GenerateFlags flags;
  return run_command(spec_of(flags), args, [&](const Arguments&, Problems problems) {
    if (problems.empty() && flags.options.size <= 0)
      problems.push_back({"--size", "is 0: there is nothing to generate", "for example --size 16GB"});
    return problems.empty() ? generate(flags) : exit_with(ExitCode::Usage, problems);
  });
}

int check_command(const std::vector<std::string>& args) {
  CheckFlags flags;
  return run_command(spec_of(flags), args, [&](const Arguments& given, const Problems& problems) {
    return problems.empty() ? check(flags, given.positionals().front())
                            : exit_with(ExitCode::Usage, problems);
  });
}

}  // namespace

CommandSpec data_generate_spec() {
  return without_targets<GenerateFlags>(spec_of);
}

CommandSpec data_check_spec() {
  return without_targets<CheckFlags>(spec_of);
}

std::span<const Subcommand> data_subcommands() {
  static constexpr Subcommand kTable[] = {{"generate", data_generate_spec, generate_command},
                                          {"check", data_check_spec, check_command}};
  return kTable;
}

}  // namespace millrace
