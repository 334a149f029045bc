#include "experiments/trace/generate_run_command.h"

#include <cstdio>

#include "driver/cli/command_support.h"
#include "experiments/trace/civil_time.h"
#include "experiments/trace/generate_run.h"
#include "experiments/trace/time_zone.h"

namespace millrace {

namespace {

constexpr const char* kClock = "America/Montreal";

Result<std::int64_t> start_from(const std::string& text) {
  if (const std::optional<std::int64_t> start = parse_iso(text)) return *start / kSecond;
  return Problem{"", "'" + text + "' is no time", "2023-02-11T13:11:18"};
}

Result<TimeZone> clock_from(const std::string& text) {
  Result<TimeZone> zone = TimeZone::parse(text);
  if (zone) return zone;
  const Problem& problem = zone.problems().front();
  return Problem{"", "'" + text + "' " + problem.what, problem.hint};
}

CommandSpec spec_into(GenerateRunOptions& options, TimeZone& clock) {
  CommandSpec spec;
  spec.command = "trace generate";
  spec.summary = "A raw run in the kit's layouts, from a seed: to try and to measure the tools.";
  spec.positionals = {"DIR"};
  spec.flags = {
      {.name = "workload",
       .short_name = 'w',
       .value = "unet3d|dlrm",
       .help = "What the run looks like.",
       .target = into::parsed(options.workload, parse_workload, "unet3d")},
      {.name = "rows",
       .value = "N",
       .help = "Rows of the four traces together, about.",
       .target = into::integer(options.rows, 100, 10'000'000'000)},
      {.name = "gpus", .value = "N", .help = "Workers.", .target = into::integer(options.gpus, 1, 64)},
      {.name = "epochs",
       .value = "N",
       .help = "Epochs of training.",
       .target = into::integer(options.epochs, 1, 10'000)},
      {.name = "seconds",
       .value = "S",
       .help = "Seconds of training; 0: 60, more from 1.2 million rows on.",
       .target = into::number(options.seconds, 0, 1e7)},
      {.name = "variant",
       .value = "plain|foreign|emulated",
       .help = "foreign: another process reads beside the run. emulated: steps of constant length, as a "
               "benchmark makes them.",
       .target = into::choice(options.variant, "variant")},
      {.name = "seed",
       .value = "N",
       .help = "Same seed, same bytes.",
       .target = into::integer(options.seed, 0)},
      {.name = "start",
       .value = "TIME",
       .help = "When the tracers start, UTC.",
       .target = into::parsed(options.start_utc_s, start_from, "2023-02-11T13:11:18")},
      {.name = "clock",
       .value = "ZONE",
       .help = "Zone of the traced machine's clock at the start.",
       .target = into::parsed(clock, clock_from, kClock)},
  };
  spec.examples = {"millrace trace generate run --workload unet3d --rows 1000000 --gpus 4 --seed 7"};
  return spec;
}

}  // namespace

CommandSpec generate_run_spec() {
  GenerateRunOptions options;
  TimeZone clock;
  return without_targets(spec_into(options, clock));
}

int generate_run_command(const std::vector<std::string>& args) {
  GenerateRunOptions options;
  TimeZone clock = *TimeZone::parse(kClock);
  const CommandSpec spec = spec_into(options, clock);
  const Result<Arguments> arguments = parse_arguments(spec, args);
  if (!arguments) return exit_with(ExitCode::Usage, arguments.problems());
  if (arguments->wants_help()) return std::fputs(help_text(spec).c_str(), stdout), 0;
  if (!arguments->problems().empty()) return exit_with(ExitCode::Usage, arguments->problems());
  options.folder = arguments->positionals()[0];
  options.zone_offset_s = clock.offset_at(options.start_utc_s);
  const Result<GeneratedRun> run = generate_run(options);
  if (!run) return exit_with(ExitCode::Usage, run.problems());
  std::printf("%lld rows, %.1f MB in %s\n", static_cast<long long>(run->rows),
              static_cast<double>(run->bytes) / 1e6, options.folder.c_str());
  return 0;
}

}  // namespace millrace
