// Data sets, the order of samples, and the loader that makes microbatches of them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/choices.h"
#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"
#include "runtime/train/batch_source.h"
#include "runtime/train/trainer.h"

namespace millrace {

/// A field of one sample: a number if the field holds integers and has no dimensions, else a tensor.
struct FieldValue {
  at::Tensor tensor;  // contiguous, with the field's dtype; named dimensions have this sample's lengths
  std::int64_t number = 0;
};

/// The values of a sample, indexed as the model's fields. A field that was not wanted is empty.
using Sample = std::vector<FieldValue>;

/// The fields to load (non-zero), indexed as the model's fields. The choice never changes a field's value.
using Wanted = std::span<const char>;

struct EpochOrder {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t per_step = 1;  ///< samples of a step
  bool shuffle = true;
};

/// The samples of one split. Implementations are thread-safe. The `augment_seed` of get() is a function of
/// (seed, epoch, index).
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual Sample get(std::int64_t index, std::uint64_t augment_seed, Wanted wanted) const = 0;
  virtual std::string describe() const = 0;
  virtual int num_classes() const { return 0; }  ///< returns the number of different labels; 0: none
  /// Measures a sample without loading it: its length in each of the model's dimensions, and the numbers that
  /// it adds to the model's counts. Both spans are zero before. A set of samples of one size leaves them
  /// zero.
  virtual void measure(std::int64_t /*index*/, std::span<std::int64_t> /*lengths*/,
                       std::span<std::int64_t> /*counts*/) const {}
  /// Returns the set's own order of an epoch: a permutation of all samples; each `per_step` of them are a
  /// step. If samples differ from epoch to epoch, the indices of epoch e begin at e * size(); `get` and
  /// `measure` must accept them. Returns an empty list if the loader makes the order. Pure.
  virtual std::vector<std::int64_t> order(const EpochOrder& /*epoch*/) const { return {}; }
  /// Returns the number of samples that are read of an epoch's order; the later ones are left out.
  virtual std::int64_t samples_in_epoch(std::int64_t /*per_step*/) const { return size(); }
  /// Returns the distance between samples that continue each other: sample i begins where sample i - stride()
  /// ended. So it is in running text, which is never shuffled. 0: samples are independent.
  virtual std::int64_t stride() const { return 0; }
  /// Returns a text that is the same for the same files in the same order, whatever their path.
  virtual std::string fingerprint() const = 0;
  /// Returns the set's other settings for checkpoints, by name: the vocabulary of its tokens.
  virtual std::vector<std::pair<std::string, std::string>> recorded() const { return {}; }
  /// Returns notes for the user about the set, one sentence each.
  virtual std::vector<std::string> notes() const { return {}; }

  /// The samples that were read so far from a modelled storage or the cache before it. Each counts once,
  /// because a run reads parts of epochs too, with more hits or fewer.
  struct StorageReads {
    bool is_modelled = false;  ///< else nothing is counted
    std::int64_t samples = 0;
    double hits = 0;  ///< sum over the samples: the share of its reads that the cache served
  };
  virtual StorageReads storage_reads() const { return {}; }

  // -- the policy for odd files --
  /// Returns the samples whose files were odd, as far as files were read: index -> bits of OddSample.
  virtual std::map<std::int64_t, unsigned> odd_samples() const { return {}; }
  /// Returns the number of skipped files and records. notes() has their names and the reasons.
  virtual std::int64_t left_out() const { return 0; }
  /// Returns the name of the sample's file. Empty for a set without files.
  virtual std::string name_of(std::int64_t) const { return {}; }
};

enum OddSample : unsigned { kGreySample = 1, kCmykSample = 2, kDamagedSample = 4 };

/// The part of a data set. Test also finds val/. Train augments images, test crops their centre.
enum class DataSplit { Train, Test };
constexpr auto names_of(DataSplit) {
  return std::to_array<std::string_view>({"train", "test"});
}

struct DatasetOptions {
  std::string path = "synthetic";  ///< as `--data` has it: a folder, or PREFIX:REST (data/files/data_kinds.h)
  DataSplit split = DataSplit::Train;
  std::vector<FieldSpec> fields;  ///< the model's fields, which a sample must have
  std::uint64_t seed = 0;
  /// The model's dimensions. A nominal length is the longest one of text, and the usual one of synthetic
  /// samples.
  std::vector<Dimension> dimensions;
  std::int64_t per_step = 1;  ///< samples of a step; running text is cut into as many rows
  int length_buckets = 0;     ///< parallel text: buckets of MLPerf v0.6's sampler; 0: PipeDream's sampler
  bool random_bptt = false;   ///< running text in training: windows have random lengths
  double holdout = 0;         ///< labelled images without a test split: the share of each class that is one
  std::uint64_t holdout_seed = 0;  ///< draws the images that are held out
  std::string augment;  ///< labelled images: steps of training (data/files/augmentation.h); empty: the usual
};
/// Makes the data set that options.path names. Returns null if it has no such split. Problem: unreadable
/// folder, class folder without images, a class that the training set does not have, more classes than the
/// model has, and others.
Result<std::shared_ptr<const Dataset>> make_dataset(const DatasetOptions& options);

/// A data set that a program adds. It is chosen by `--data NAME` or `--data NAME:ANYTHING`. `make` finds the
/// whole text in options.path.
struct NamedDataset {
  std::string name;
  std::function<Result<std::shared_ptr<const Dataset>>(const DatasetOptions& options)> make;
};
/// Makes the data set of `own` that options.path names, else one of millrace's.
Result<std::shared_ptr<const Dataset>> make_dataset(const DatasetOptions& options,
                                                    const std::vector<NamedDataset>& own);

/// Returns the order of an epoch: a seeded permutation, or 0..n-1 if not shuffled. Pure.
std::vector<std::int64_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch,
                                      bool shuffle);

struct LoaderOptions {
  int microbatch = 1;  ///< samples of a microbatch
  int microbatches_per_step = 1;
  bool shuffle = true;
  std::uint64_t seed = 0;
  int workers = 1;   ///< threads that load; 0: get() loads
  int prefetch = 8;  ///< the most microbatches loaded ahead; refilled when half of them are used
  /// Keeps the samples at an epoch's end that fill no step. The last step then has fewer samples, spread over
  /// its microbatches as evenly as possible. It is dropped if there are fewer samples than microbatches.
  bool keep_incomplete = false;
  std::vector<FieldSpec> fields;   ///< the model's fields
  std::size_t num_dimensions = 0;  ///< number of the model's dimensions
  std::size_t num_counts = 0;      ///< number of the model's counts
  std::vector<char> wanted;        ///< for each field, whether it is loaded; empty: all are
  bool page_locked = false;  ///< puts batches into memory that a GPU can copy asynchronously; needs a GPU
  /// Returns whether this rank reads a position; such positions are prefetched. Empty: all are.
  std::function<bool(std::int64_t position)> mine;
  std::shared_ptr<SpanList> spans{};  ///< gets a Load and a Preprocess of each microbatch; null: not recorded

  /// Copies the model's fields and the numbers of its dimensions and counts.
  void read_for(const LayeredModel& model) {
    fields = model.fields;
    num_dimensions = model.dimensions.size();
    num_counts = model.counts.size();
  }
};
/// Makes a source of batches whose epochs follow each other without end. A step has microbatch *
/// microbatches_per_step samples. An incomplete last step is dropped or kept, as LoaderOptions specifies.
/// Returns a Problem if an epoch has no step.
Result<std::unique_ptr<BatchSource>> make_loader(std::shared_ptr<const Dataset> dataset,
                                                 const LoaderOptions& options);
/// Returns the steps of an epoch. With shuffle false an epoch has all samples.
std::int64_t steps_per_epoch(const Dataset& dataset, const LoaderOptions& options);
/// Is a problem if an epoch has fewer samples than a step.
Status check_steps(const Dataset& dataset, const LoaderOptions& options);

/// Returns the function with which a Trainer makes batches of `train` and, unless it is null, of `test`. The
/// samples of `test` come once each and in order. A `train` that is null is for a Trainer of no steps: `test`
/// takes its place. `options` need no `wanted` and `mine`: the Trainer sets
/// them. Throws DataError.
MakeBatches batches_of(std::shared_ptr<const Dataset> train, std::shared_ptr<const Dataset> test,
                       const LoaderOptions& options);

}  // namespace millrace
