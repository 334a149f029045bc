// The rounds of a training: the jobs, the data and the checkpoint of each.
#pragma once

#include <string>
#include <vector>

#include "driver/flags/job_lists.h"
#include "driver/worker/rounds.h"
#include "driver/worker/train_data.h"
#include "driver/worker/train_spec.h"
#include "driver/worker/worker_options.h"
#include "runtime/base/run_folder.h"

namespace millrace {

/// A round with its data. Most trainings have a single one.
struct Round {
  TrainSpec spec;
  Datasets sets;
  RoundState state = RoundState::Untouched;
  std::string results;  ///< the folder that its results are in, or will be
  Json summary{};       ///< set when the round is done, on the rank that wrote it
};

/// Rounds that the ranks train one after the other. Some members belong to several rounds together.
struct Rounds {
  std::vector<Round> all;
  Plan plan{};             ///< of several rounds: it divides the jobs
  TrainFlags flags{};      ///< of the whole run
  RunLock lock{};          ///< of several rounds: the output folder's, on rank 0
  std::string resumed{};   ///< the folder from which several rounds resume, or empty
  bool continues = false;  ///< `resumed` is the output folder

  bool several() const { return all.size() > 1; }
};

/// Returns the rounds that the plan has for these jobs, or a single one if the plan has none. Each
/// round has its part of the jobs' flags.
Result<Rounds> rounds_from(const std::vector<TrainFlags>& jobs, const JobLists& lists, const Additions& own,
                           const Problems& flag_problems);

/// Opens the round's data sets, and sets the values that depend on their size: steps, rates, settings.
Status open_data(Round& round, OpenDatasets& open);

/// Applies --resume to several rounds: finished ones stay, one resumes from its checkpoint, the others begin.
Status go_on(Rounds& rounds);

}  // namespace millrace
