#include "experiments/sweep/swept_command.h"

namespace millrace {

std::vector<Flag> swept_flags(SweptFlags& f, const std::string& what, const char* dry_run_help,
                              const char* format_help) {
  return {{.name = "output-dir",
           .short_name = 'o',
           .value = "DIR",
           .help = "Results go here (default: the file's output_dir, or runs/NAME). A folder of the same " +
                   what + " goes on where it was stopped or killed.",
           .target = into::text(f.output_dir)},
          {.name = "overwrite",
           .help = "Delete what the folder holds of a " + what + ", and begin again.",
           .target = into::on(f.overwrite)},
          {.name = "retry-failed",
           .help = "Run again what failed; without it a failure stays on record.",
           .target = into::on(f.retry_failed)},
          {.name = "dry-run", .help = dry_run_help, .target = into::on(f.dry_run)},
          {.name = "format",
           .value = "text|json",
           .help = format_help,
           .target = into::choice(f.format, "format")}};
}

}  // namespace millrace
