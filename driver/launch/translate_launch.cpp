#include "driver/launch/translate_launch.h"

#include <unistd.h>

#include "driver/cli/command_support.h"
#include "driver/cli/translate_spec.h"
#include "driver/launch/local_ranks.h"
#include "driver/launch/program_paths.h"

namespace millrace {
bool starts_translate_ranks(const std::vector<std::string>& args) {
  TranslateFlags flags;
  const Result<Arguments> arguments = parse_arguments(translate_spec(flags), args);
  return arguments && !arguments->wants_help() && flags.ranks > 1 && !is_rank_of_a_job();
}

int launch_translate(const std::vector<std::string>& args) {
  TranslateFlags flags;
  const Result<Arguments> arguments = parse_arguments(translate_spec(flags), args);
  Problems problems = arguments ? arguments->problems() : arguments.problems();
  if (flags.input == "-")
    problems.push_back(
        {"--input", "stdin cannot be read by several ranks", "give a file, or leave out --ranks"});
  const std::string worker = worker_path(ComputeDevice::Cpu);
  if (::access(worker.c_str(), X_OK) != 0)
    problems.push_back(
        {worker, "is missing: it is the program that translates", worker_hint(ComputeDevice::Cpu)});
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  return run_command_ranks(worker, "translate", args, flags.ranks, 1);
}

}  // namespace millrace
