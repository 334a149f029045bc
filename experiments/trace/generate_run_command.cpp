#include "experiments/trace/generate_run_command.h"

#include <cstdio>

#include "driver/command_support.h"
#include "experiments/trace/civil_time.h"
#include "experiments/trace/generate_run.h"
#include "experiments/trace/time_zone.h"

namespace millrace {

CommandSpec generate_run_spec() {
  CommandSpec spec;
  spec.command = "trace generate";
  spec.summary = "A raw run in the kit's layouts, from a seed: to try and to measure the tools.";
  spec.positionals = {"DIR"};
  spec.flags = {
      {.name = "workload",
       .short_name = 'w',
       .value = "unet3d|dlrm",
       .help = "What the run looks like.",
       .fallback = "unet3d"},
      {.name = "rows", .value = "N", .help = "Rows of the four traces together, about.", .fallback = "20000"},
      {.name = "gpus", .value = "N", .help = "Workers.", .fallback = "2"},
      {.name = "epochs", .value = "N", .help = "Epochs of training.", .fallback = "3"},
      {.name = "seconds",
       .value = "S",
       .help = "Seconds of training; 0: 60, more from 1.2 million rows on.",
       .fallback = "0"},
      {.name = "variant",
       .value = "plain|foreign|emulated",
       .help = "foreign: another process reads beside the run. emulated: steps of constant length, as a "
               "benchmark makes them.",
       .fallback = "plain"},
      {.name = "seed", .value = "N", .help = "Same seed, same bytes.", .fallback = "1"},
      {.name = "start",
       .value = "TIME",
       .help = "When the tracers start, UTC.",
       .fallback = "2023-02-11T13:11:18"},
      {.name = "clock",
       .value = "ZONE",
       .help = "Zone of the traced machine's clock at the start.",
       .fallback = "America/Montreal"},
  };
  spec.examples = {"millrace trace generate run --workload unet3d --rows 1000000 --gpus 4 --seed 7"};
  return spec;
}

int generate_run_command(const std::vector<std::string>& args) {
  const CommandSpec spec = generate_run_spec();
  Result<Arguments> arguments = parse_arguments(spec, args);
  if (!arguments) return exit_with(ExitCode::Usage, arguments.problems());
  if (arguments->wants_help()) return std::fputs(help_text(spec).c_str(), stdout), 0;
  Problems problems;
  GenerateRunOptions options;
  options.folder = arguments->positionals()[0];
  options.rows = arguments->integer("rows", 100, 10'000'000'000);
  options.gpus = static_cast<int>(arguments->integer("gpus", 1, 64));
  options.epochs = static_cast<int>(arguments->integer("epochs", 1, 10'000));
  options.seconds = arguments->number("seconds", 0, 1e7);
  options.seed = static_cast<std::uint64_t>(arguments->integer("seed", 0, INT64_MAX));
  if (const Result<TracedWorkload> workload = parse_workload(arguments->string("workload"))) {
    options.workload = *workload;
  } else {
    append(problems, workload.problems());
  }
  const std::string variant = arguments->string("variant");
  if (variant == "foreign") {
    options.variant = RunVariant::Foreign;
  } else if (variant == "emulated") {
    options.variant = RunVariant::Emulated;
  } else if (variant != "plain") {
    problems.push_back({"--variant", "unknown variant '" + variant + "'", "plain, foreign or emulated"});
  }
  if (const std::optional<std::int64_t> start = parse_iso(arguments->string("start"))) {
    options.start_utc_s = *start / kSecond;
  } else {
    problems.push_back({"--start", "'" + arguments->string("start") + "' is no time", "2023-02-11T13:11:18"});
  }
  if (const Result<TimeZone> zone = TimeZone::parse(arguments->string("clock"))) {
    options.zone_offset_s = zone->offset_at(options.start_utc_s);
  } else {
    append(problems, zone.problems());
  }
  append(problems, arguments->problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const Result<GeneratedRun> run = generate_run(options);
  if (!run) return exit_with(ExitCode::Usage, run.problems());
  std::printf("%lld rows, %.1f MB in %s\n", static_cast<long long>(run->rows),
              static_cast<double>(run->bytes) / 1e6, options.folder.c_str());
  return 0;
}

}  // namespace millrace
