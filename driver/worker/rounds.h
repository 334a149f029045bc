// Jobs that are trained in rounds, as a plan divides them (PlanRound): each round is a run by itself, in a
// folder of its own; what is written of all of them together is made of what they wrote.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// "OUT/round1"; empty without an output folder.
std::string round_folder(const std::string& output_dir, std::size_t round);

/// Returns the rounds that `plan`, read from `file`, has for `jobs` jobs: none if it is for any number of
/// jobs. Problem: it is for another number.
Result<std::vector<PlanRound>> rounds_of_plan(const std::string& file, const Plan& plan, std::size_t jobs);

/// The state of a round when a run resumes.
enum class RoundState {
  Untouched,  ///< it begins, and overwrites files from before its first checkpoint
  Begun,      ///< it resumes from its checkpoint
  Done,
};

/// The results that a round is expected to have.
struct RoundGoal {
  int first_job = 0;
  std::int64_t steps = 0;
  std::vector<Json> settings;        ///< by job: the flags in which jobs differ
  std::vector<std::string> weights;  ///< files of the jobs; empty: none requested
};

/// Returns the state of the round in `folder`. Problem: it was trained with other settings, or of other
/// jobs.
Result<RoundState> state_of_round(const std::string& folder, const RoundGoal& goal);

/// Whether a run in `folder` was divided as `plan` divides its jobs. Problem: it was not.
Status same_rounds(const std::string& folder, const Plan& plan);

/// Returns the folder of a round in the output folder `run` that trained so many jobs in so many arrays: the
/// one that began with `first_job`, else the first. It is `run` itself where that had no rounds. Problem:
/// there is no such round.
Result<std::string> round_like(const std::string& run, int jobs, int arrays, int first_job);

/// The summary of all rounds: jobs in their order; seconds and steps of every job added up, memory the most.
/// "rounds" lists the rounds. `summaries`: of the rounds, as they were written.
Json joined_summary(const std::vector<Json>& summaries, const std::vector<PlanRound>& rounds);

/// jobs.csv of all rounds, one after the other. Problem: one cannot be read, or the file not written.
Status join_job_tables(const std::string& output_dir, const std::vector<std::string>& folders);

}  // namespace millrace
