#include "driver/worker/train_data.h"

#include <algorithm>

#include <ATen/ops/zeros.h>

#include "data/loading/weighed_dataset.h"
#include "driver/worker/class_weights.h"
#include "driver/worker/emulation.h"
#include "driver/worker/stored_dataset.h"
#include "driver/worker/worker_data_report.h"
#include "models/registry.h"
#include "runtime/base/log.h"
#include "runtime/plan/spread_tables.h"

namespace millrace {

namespace {

DatasetOptions dataset_options(const TrainSpec& spec, DataSplit split, std::size_t reader) {
  return {.path = spec.data,
          .split = split,
          .fields = spec.alone.fields,
          .seed = spec.data_seed_of(reader),
          .dimensions = spec.alone.dimensions,
          .per_step = split == DataSplit::Train
                          ? std::int64_t{spec.options.microbatch} * microbatches_per_step(spec.pipeline)
                          : spec.options.microbatch,
          .length_buckets = spec.length_buckets,
          .random_bptt = spec.random_bptt,
          .holdout = spec.holdout.value_or(Holdout{}).share,
          .holdout_seed = spec.holdout.value_or(Holdout{}).seed,
          .augment = spec.augment};
}

/// A Problem where training and evaluation have tokens of other vocabularies. What a data set records of
/// itself under a name must be the same in both.
Status same_vocabularies(const Dataset& train, const Dataset& test) {
  const auto of_train = train.recorded();
  for (const auto& [name, value] : test.recorded()) {
    const auto found = std::ranges::find(of_train, name, &std::pair<std::string, std::string>::first);
    if (found == of_train.end() || found->second == value) continue;
    return Problem{"--data",
                   "the " + name + " of training (" + train.describe() + ") is " + found->second +
                       ", that of evaluation (" + test.describe() + ") is " + value,
                   "encode all splits with one vocabulary (millrace data text encode)"};
  }
  return Ok{};
}

/// Whether a layer that reads `target` has a parameter of one that reads `source`.
bool shares_embeddings(const LayeredModel& model) {
  const auto reads = [](const NamedLayer& layer, const char* field) {
    return std::ranges::find(layer.inputs, field) != layer.inputs.end();
  };
  for (const NamedLayer& layer : model.layers) {
    if (!reads(layer, "target")) continue;
    for (const NamedLayer& owner : model.layers) {
      if (reads(owner, "source") && std::ranges::any_of(layer.tied, [&](const auto& tie) {
            return tie.second.starts_with(owner.name + ".");
          }))
        return true;
    }
  }
  return false;
}

Status one_vocabulary(const LayeredModel& model, const Dataset& train) {
  if (!shares_embeddings(model)) return Ok{};
  std::map<std::string, std::string> of;
  for (const auto& [name, value] : train.recorded()) of[name] = value;
  if (of["source-vocabulary"] == of["target-vocabulary"]) return Ok{};
  return Problem{"--data",
                 train.describe() + ": source and target have the vocabularies " + of["source-vocabulary"] +
                     " and " + of["target-vocabulary"] + ", but the model has one embedding for both",
                 "encode both with one vocabulary, or train with --embeddings separate"};
}

/// "no plan: stages of equal numbers of layers: stage 0: features.0 to features.4; ...".
std::string cut_text(const Plan& plan) {
  std::string text = "no plan: stages of equal numbers of layers";
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<std::string>& layers = plan.stages[s].layers;
    text += (s ? "; stage " : ": stage ") + std::to_string(s) + ": " + layers.front();
    if (layers.size() > 1) text += " to " + layers.back();
  }
  return text;
}

/// Says that the data have no test set.
std::string without_tests(const TrainSpec& spec) {
  const bool listed = rest_of(spec.data, kTableData) || rest_of(spec.data, kTarData);
  return spec.data + (listed ? " names no test set" : " has no test or val folder");
}

}  // namespace

Problem nothing_to_judge_on(const TrainSpec& spec) {
  return {"--data", "nothing to judge on: " + without_tests(spec),
          "add test data (docs/data.md); of labelled images, give the --holdout of the training"};
}

Result<Datasets> open_datasets(const TrainSpec& spec, OpenDatasets& open) {
  Datasets sets;
  const auto set_of = [&](DataSplit split, std::size_t reader) -> Result<std::shared_ptr<const Dataset>> {
    const DatasetOptions options = dataset_options(spec, split, reader);
    const auto known = open.find({split, options.seed});
    if (known != open.end()) return known->second;
    auto made = make_dataset(options, spec.own.datasets);
    const WeighedLabels labels = weighed_labels(spec.alone);
    if (made && *made && labels.head && labels.count < std::ssize(spec.alone.counts))
      made = weighed(*made, spec.alone.fields.size(), labels);
    if (made && *made && split == DataSplit::Train && spec.storage.storage) {
      const Result<Bytes> bytes = bytes_of_data(spec.data);
      if (!bytes) return bytes.problems();
      made = stored(*made, spec.storage, *bytes, options.seed);
    }
    if (made) open.emplace(std::pair(split, options.seed), *made);
    return made;
  };
  for (std::size_t reader = 0; reader < spec.readers(); ++reader) {
    auto train = set_of(DataSplit::Train, reader);
    if (!train) return train.problems();
    if (const Status fits = one_vocabulary(spec.alone, **train); !fits) return fits.problems();
    sets.trains.push_back(*train);
    if (!spec.evaluate) continue;
    auto test = set_of(DataSplit::Test, reader);
    if (!test) return test.problems();
    if (*test) {
      if (const Status same = same_vocabularies(**train, **test); !same) return same.problems();
    }
    sets.tests.push_back(*test);
  }
  sets.train = sets.trains.front();
  if (spec.evaluate) sets.test = sets.tests.front();
  return sets;
}

void log_notes(const TrainSpec& spec, const Datasets& sets) {
  std::vector<std::string> notes = sets.train->notes();
  if (sets.test) {
    for (const std::string& note : sets.test->notes()) {
      if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
    }
  } else if (spec.evaluate) {
    notes.push_back("no evaluation: " + without_tests(spec) +
                    "; of labelled images, --holdout 0.1 keeps a part for it");
  }
  if (std::string ignored = note_on_ignored_labels(spec.alone, spec.data, spec.own, *sets.train);
      !ignored.empty())
    notes.push_back(std::move(ignored));
  if (std::string slow = slow_precision(spec.options.precision, spec.device); !slow.empty())
    notes.push_back(std::move(slow));
  for (const std::string& note : notes) log_warning(note);
  for (const std::string& note : spec.plan_notes) log_warning(note);
  if (const std::string form = chosen_form(spec.model.name, spec.model.options, spec.own.models);
      !form.empty())
    log_info(spec.alone.name + ": " + form);
  if (spec.pipeline.schedule == ScheduleKind::SpreadTables)
    log_info(text_of_spread_tables(spec.pipeline));
  else if (spec.plan.empty() && spec.pipeline.stages.size() > 1)
    log_info(cut_text(spec.pipeline));
  if (!spec.apart.empty())
    log_info(std::to_string(spec.of_jobs.size()) + " jobs in as many arrays: " + spec.apart);
}

LoaderOptions loader_options(const TrainSpec& spec, std::size_t reader) {
  LoaderOptions options{.microbatch = spec.options.microbatch,
                        .microbatches_per_step = microbatches_per_step(spec.pipeline),
                        .seed = spec.data_seed_of(reader),
                        .workers = spec.workers,
                        .keep_incomplete = spec.keep_last,
                        .page_locked = spec.device == ComputeDevice::Cuda};
  options.read_for(spec.alone);
  return options;
}

std::vector<std::string> compare_lengths(const TrainSpec& spec, const Datasets& sets) {
  constexpr std::int64_t kMostSteps = 256;
  PlannedFor run = spec.pipeline.planned_for;
  if (run.lengths.empty()) return {};
  LoaderOptions options = loader_options(spec);
  options.workers = 0;
  const auto source = make_loader(sets.train, options);
  if (!source) return {};  // said where it is trained on
  LayerGraph seen;
  for (const Dimension& dimension : spec.alone.dimensions) seen.dimensions.push_back(dimension.name);
  const std::int64_t steps = std::min(kMostSteps, steps_per_epoch(*sets.train, options));
  for (std::int64_t at = 0; at < steps * options.microbatches_per_step; ++at)
    seen.microbatches.push_back({.lengths = (*source)->extent(at).lengths});
  run.lengths = seen.length_ranges();
  return compare(spec.pipeline.planned_for, run, options.microbatches_per_step).notes;
}

TrainedArray array_for(const TrainSpec& spec, const Datasets& sets, const LayeredModel& network,
                       std::size_t first) {
  const auto of_reader = [&](std::size_t reader) {
    const LoaderOptions options = loader_options(spec, reader);
    const std::shared_ptr<const Dataset> train = sets.trains[reader];
    const std::shared_ptr<const Dataset> test = sets.test ? sets.tests[reader] : nullptr;
    const bool only_judges = test && spec.options.steps == 0 && steps_per_epoch(*train, options) < 1;
    MakeBatches batches = batches_of(only_judges ? nullptr : train, test, options);
    return spec.emulated ? spec.emulated->counted(std::move(batches)) : batches;
  };
  TrainedArray array{network, {}};
  const auto choices = spec.choices.find(static_cast<std::size_t>(network.jobs()));
  if (choices != spec.choices.end()) array.choices = choices->second;
  if (network.fields.size() == spec.alone.fields.size()) {
    array.make_batches = of_reader(spec.own_data ? first : 0);
    return array;
  }
  for (std::size_t reader = first; reader < first + static_cast<std::size_t>(network.jobs()); ++reader) {
    if (sets.trains[reader]->size() != sets.train->size())
      throw DataError("the data sets of job 0 and job " + std::to_string(reader) + " differ in size");
    array.of_jobs.push_back(of_reader(reader));
  }
  return array;
}

Json data_files(const Datasets& sets, Communicator& communicator) {
  Json result;
  for (const auto& [name, set] : {std::pair{"train", sets.train.get()}, {"test", sets.test.get()}}) {
    if (!set || set->name_of(0).empty()) continue;
    if (result.is_null()) result = Json::object({});
    result[name] = data_report(*set, communicator);
  }
  if (const Dataset::StorageReads own = sets.train->storage_reads(); own.is_modelled) {
    if (result.is_null()) result = Json::object({});
    const at::Tensor sums = at::zeros({2}, at::kDouble);
    auto* sum = sums.mutable_data_ptr<double>();
    sum[0] = own.hits, sum[1] = static_cast<double>(own.samples);
    communicator.all_reduce(sums, "reads of the storage")->wait();
    result["storage"] = Json::object({{"hit_ratio", sum[0] / std::max(1.0, sum[1])}});
  }
  return result;
}

Status open_bleu_text(TrainSpec& spec, const Datasets& sets) {
  if (spec.bleu.every == 0) return Ok{};
  Settings recorded;
  for (const auto& setting : sets.train->recorded()) recorded.push_back(setting);
  auto text = read_bleu_text(spec.bleu, spec.alone.fields.front().limit, recorded);
  if (!text) return text.problems();
  spec.bleu_text = *std::move(text);
  spec.options.score_every = spec.bleu.every * spec.steps_per_epoch;
  spec.options.target_score = spec.bleu.target;
  spec.options.rank_settings.emplace_back("bleu", spec.bleu_text->fingerprint());
  return Ok{};
}

}  // namespace millrace
