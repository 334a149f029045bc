#include "experiments/sweep/swept_command.h"

#include "runtime/base/json.h"

namespace millrace {

bool is_job_file(const std::string& path) {
  const Result<Json> root = read_yaml(path);
  return root && root->find("model") != nullptr;
}

std::vector<Flag> swept_flags(SweptFlags& f, const std::string& what, const char* dry_run_help,
                              const char* format_help) {
  return {flag("", "output-dir", "DIR",
               "Results go here (default: the file's output_dir, or runs/NAME). A folder of the same " +
                   what + " goes on where it was stopped or killed.",
               into::text(f.output_dir), 'o'),
          flag("", "overwrite", "Delete what the folder holds of a " + what + ", and begin again.",
               into::on(f.overwrite)),
          flag("", "retry-failed", "Run again what failed; without it a failure stays on record.",
               into::on(f.retry_failed)),
          flag("", "dry-run", dry_run_help, into::on(f.dry_run)),
          flag("", "format", "text|json", format_help, into::choice(f.format, "format"))};
}

}  // namespace millrace
