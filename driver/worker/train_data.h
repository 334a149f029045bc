// The data of `millrace train`: data sets, batches by array, texts to score.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/loading/dataset.h"
#include "driver/worker/train_spec.h"
#include "runtime/base/json.h"
#include "runtime/comm/communicator.h"
#include "runtime/train/trainer.h"

namespace millrace {

/// The data sets by reader. There is one reader for all jobs of an array, or one for each job.
struct Datasets {
  std::vector<std::shared_ptr<const Dataset>> trains, tests;
  std::shared_ptr<const Dataset> train, test;  ///< the first
};

/// The data sets of a run that are open: rounds and readers of one seed share theirs.
using OpenDatasets = std::map<std::pair<DataSplit, std::uint64_t>, std::shared_ptr<const Dataset>>;

/// Opens the data sets that the readers of `spec` need. They join `open`.
Result<Datasets> open_datasets(const TrainSpec& spec, OpenDatasets& open);

/// Returns the Problem that `evaluate` reports if the data have no test set.
Problem nothing_to_judge_on(const TrainSpec& spec);

/// Once for a job.
void log_notes(const TrainSpec& spec, const Datasets& sets);

/// Returns the loader's options of reader `reader` (TrainSpec::readers).
LoaderOptions loader_options(const TrainSpec& spec, std::size_t reader = 0);

/// Compares the lengths of the data's microbatches, over some hundred steps, with those of the plan. Returns
/// a note for each difference.
std::vector<std::string> compare_lengths(const TrainSpec& spec, const Datasets& sets);

/// Returns `network` with the data of its jobs, which are those from `first` on.
TrainedArray array_for(const TrainSpec& spec, const Datasets& sets, const LayeredModel& network,
                       std::size_t first);

/// Returns a description of the data sets' files, or null for data sets without files. Collective.
Json data_files(const Datasets& sets, Communicator& communicator);

/// Opens the text of --bleu-every, and sets the steps at which it is translated.
Status open_bleu_text(TrainSpec& spec, const Datasets& sets);

}  // namespace millrace
