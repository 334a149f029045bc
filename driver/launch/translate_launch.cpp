#include "driver/launch/translate_launch.h"

#include <unistd.h>

#include "driver/cli/command_support.h"
#include "driver/flags/translate_spec.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/local_ranks.h"

namespace millrace {

Result<TranslateRanks> translate_ranks(const TranslateFlags& f) {
  TranslateRanks who;
  if (!f.plan.empty()) {
    if (f.stages > 1) return Problem{"--stages", "does not go with --plan", "leave one of them out"};
    Result<Plan> plan = Plan::load(f.plan);
    if (!plan) return plan.problems();
    if (Problems problems = validate(*plan); !problems.empty()) return problems;
    who.plan = *std::move(plan);
  }
  who.stages = who.plan ? who.plan->num_stages() : f.stages;
  who.ranks = f.ranks.value_or(who.stages);
  if (who.ranks % who.stages != 0)
    return Problem{"--ranks",
                   std::to_string(who.ranks) + " cannot share out " + std::to_string(who.stages) + " stages",
                   "give a multiple of the stages"};
  return who;
}

bool starts_translate_ranks(const std::vector<std::string>& args) {
  TranslateFlags flags;
  const Result<Arguments> arguments = parse_arguments(translate_spec(flags), args);
  if (!arguments || arguments->wants_help() || is_rank_of_a_job()) return false;
  const Result<TranslateRanks> who = translate_ranks(flags);
  return !who || who->ranks > 1;
}

int launch_translate(const std::vector<std::string>& args) {
  TranslateFlags flags;
  const Result<Arguments> arguments = parse_arguments(translate_spec(flags), args);
  Problems problems = arguments ? arguments->problems() : arguments.problems();
  const Result<TranslateRanks> who = translate_ranks(flags);
  if (!who) append(problems, who.problems());
  if (flags.input == "-")
    problems.push_back({"--input", "stdin cannot be read by several ranks", "give a file"});
  const std::string worker = worker_path(ComputeDevice::Cpu);
  if (::access(worker.c_str(), X_OK) != 0)
    problems.push_back(
        {worker, "is missing: it is the program that translates", worker_hint(ComputeDevice::Cpu)});
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  return run_command_ranks(worker, "translate", args, who->ranks, 1);
}

}  // namespace millrace
