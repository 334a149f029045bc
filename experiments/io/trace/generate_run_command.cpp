#include "experiments/io/trace/generate_run_command.h"

#include <cstdio>
#include <optional>

#include "driver/cli/command_support.h"
#include "experiments/io/trace/civil_time.h"
#include "experiments/io/trace/generate_run.h"
#include "experiments/io/trace/time_zone.h"
#include "runtime/base/progress_line.h"

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
      flag("", "workload", "unet3d|dlrm", "What the run looks like.",
           into::choice(options.workload, "workload"), 'w'),
      flag("", "rows", "N", "Rows of the four traces together, about.",
           into::integer(options.rows, 100, 10'000'000'000)),
      flag("", "gpus", "N", "Workers.", into::integer(options.gpus, 1, 64)),
      flag("", "epochs", "N", "Epochs of training.", into::integer(options.epochs, 1, 10'000)),
      flag("", "seconds", "S", "Seconds of training; 0: 60, more from 1.2 million rows on.",
           into::number(options.seconds, 0, 1e7)),
      flag("", "variant", "plain|foreign|emulated",
           "foreign: another process reads beside the run. emulated: steps of constant length, as a "
           "benchmark makes them.",
           into::choice(options.variant, "variant")),
      flag("", "seed", "N", "Same seed, same bytes.", into::integer(options.seed, 0)),
      flag("", "start", "TIME", "When the tracers start, UTC.",
           into::parsed(options.start_utc_s, start_from, "2023-02-11T13:11:18")),
      flag("", "clock", "ZONE", "Zone of the traced machine's clock at the start.",
           into::parsed(f.clock, time_zone_from, kClock)),
  };
  spec.interrupted = "files that are finished stay";
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
    const Result<GeneratedRun> run = while_working("writes rows", [&] { return generate_run(options); });
    if (!run) return exit_with(ExitCode::Usage, run.problems());
    std::printf("%lld rows, %.1f MB in %s\n", static_cast<long long>(run->rows),
                static_cast<double>(run->bytes) / 1e6, options.folder.c_str());
    return 0;
  });
}

}  // namespace millrace
