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

struct GenerateRunFlags {
  GenerateRunOptions options;
  std::optional<TimeZone> clock;
};

CommandSpec spec_of(GenerateRunFlags& f) {
  GenerateRunOptions& options = f.options;
  CommandSpec spec;
  spec.command = "trace generate";
  spec.summary = "A raw run in the kit's layouts, from a seed: to try and to measure the tools.";
  spec.positionals = {"DIR"};
  spec.flags = {
      {.name = "workload",
       .short_name = 'w',
       .value = "unet3d|dlrm",
       .help = "What the run looks like.",
       .target = into::choice(options.workload, "workload")},
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
       .target = into::parsed(f.clock, time_zone_from, kClock)},
  };
  spec.examples = {"millrace trace generate run --workload unet3d --rows 1000000 --gpus 4 --seed 7"};
  return spec;
}

}  // namespace

CommandSpec generate_run_spec() {
  return without_targets<GenerateRunFlags>(spec_of);
}

int generate_run_command(const std::vector<std::string>& args) {
  GenerateRunFlags flags;
  return run_command(spec_of(flags), args, [&](const Arguments& given, const Problems& problems) {
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    GenerateRunOptions& options = flags.options;
    options.folder = given.positionals()[0];
    const Result<TimeZone> clock = flags.clock ? *flags.clock : TimeZone::parse(kClock);
    if (!clock) return exit_with(ExitCode::Usage, clock.problems());
    options.zone_offset_s = clock->offset_at(options.start_utc_s);
    const Result<GeneratedRun> run = generate_run(options);
    if (!run) return exit_with(ExitCode::Usage, run.problems());
    std::printf("%lld rows, %.1f MB in %s\n", static_cast<long long>(run->rows),
                static_cast<double>(run->bytes) / 1e6, options.folder.c_str());
    return 0;
  });
}

}  // namespace millrace
