#include "runtime/rules/nonfinite.h"

namespace millrace {

Problems validate(const NonfiniteOptions& options, const NonfiniteRun& run) {
  Problems problems;
  const bool rolls_back = options.on == OnNonfinite::Rollback;
  if (options.on != OnNonfinite::Stop && run.asynchronous)
    problems.push_back({"--on-nonfinite",
                        "without a flush the stages update at different times and cannot " +
                            std::string("agree on a step to ") + (rolls_back ? "go back from" : "skip"),
                        "use stop, then --resume; or a schedule that flushes"});
  if (rolls_back && run.scales_loss)
    problems.push_back({"--on-nonfinite",
                        "rollback does not go with a scaled loss, whose overflows are no fault",
                        "leave it out: such steps are skipped"});
  if (rolls_back && run.several_jobs)
    problems.push_back({"--on-nonfinite", "rollback would take the other jobs back as well",
                        "use skip, which each job does by itself"});
  if (rolls_back && !run.saves)
    problems.push_back({"--on-nonfinite", "rollback needs checkpoints to go back to",
                        "give --output-dir DIR and --checkpoint-every N"});
  if (options.check == FiniteCheckOf::Activations && run.several_jobs)
    problems.push_back({"--check-finite", "activations are those of all jobs of an array together",
                        "use gradients, which are judged by job"});
  return problems;
}

}  // namespace millrace
