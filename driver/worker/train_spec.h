// `millrace train`: its flags, with the files that they name loaded.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/flags/compute_specs.h"
#include "driver/worker/bleu_score.h"
#include "driver/worker/program.h"
#include "runtime/comm/channel.h"
#include "runtime/layers/job_array.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/plan.h"
#include "runtime/profile/array_division.h"

namespace millrace {

class Emulation;

/// All flags, with the files that they name loaded.
struct TrainSpec : TrainFlags {
  std::vector<LayeredModel> networks;  ///< by array; one, unless jobs are divided into several
  LayeredModel alone{};                ///< one job's, for reading data sets
  /// The flags of each job of a job array, and the lists that they were given in.
  std::vector<TrainFlags> of_jobs{};
  std::vector<std::pair<std::string, std::vector<std::string>>> lists{};
  /// The kernels that layers choose, by the number of jobs of an array.
  std::map<std::size_t, std::shared_ptr<KernelChoices>> choices{};
  ArrayDivision division{};  ///< if no flag or plan sets the number of arrays
  std::string apart{};       ///< why each job has its own array by default; else empty
  bool own_data = false;     ///< jobs read different batches
  /// The microbatches that each job has consumed, if jobs resume at different steps; else empty.
  std::vector<std::int64_t> positions{};

  std::uint64_t data_seed_of(std::size_t job) const {
    const TrainFlags& flags = of_jobs.empty() ? *this : of_jobs[job];
    return flags.data_seed.value_or(flags.options.seed);
  }
  std::size_t readers() const { return own_data ? of_jobs.size() : 1; }
  Plan pipeline;
  std::vector<std::string> plan_notes{};        ///< differences between run and plan
  std::vector<ChannelDecorator> decorators{};   ///< for the channels between ranks
  std::shared_ptr<const Emulation> emulated{};  ///< with --device emulated, else null
  std::shared_ptr<const BleuText> bleu_text{};
  std::int64_t steps_per_epoch = 0, train_samples = 0, test_samples = 0;  ///< of the data sets
  std::string archive{}, trained_archive{};  ///< the model's, and a copy to write with trained weights
  Additions own{};
};

/// A round of several in which the jobs are trained.
struct RoundPlace {
  std::size_t round = 0;
  int first_job = 0;
};

/// Turns --batch into microbatches. A Problem: they do not divide it, or are given too.
std::optional<Problem> settle_batch(TrainFlags& flags);

/// Removes the plan's predicted times, because the run is not the one that they are for. So no report
/// compares them.
void predicts_nothing(Plan& plan);

/// The plan that `--plan` names, or its file's problems; empty without the flag.
using PlanFile = std::optional<Result<Plan>>;

/// Returns the specification for training `jobs` (one, if the run is no array) with their `models`. Problems:
/// `flag_problems` (values that do not fit their flags) and those found here. `place` is the round and the
/// first job, if these are only a part of all jobs.
Result<TrainSpec> spec_from(const std::vector<TrainFlags>& jobs, const std::vector<LayeredModel>& models,
                            const PlanFile& plan_file, const Additions& own, const Problems& flag_problems,
                            const std::optional<RoundPlace>& place);

}  // namespace millrace
