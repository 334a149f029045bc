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

/// A field of one sample: a tensor, or a number where the field has no dimensions and holds integers.
struct FieldValue {
  at::Tensor tensor;  // contiguous, of the field's dtype; its lengths where the field's shape has dimensions
  std::int64_t number = 0;
};

/// The values of a sample, by index in the model's fields. A field that was not wanted is empty.
using Sample = std::vector<FieldValue>;

/// The fields to load, by index in the model's fields. Reading fewer never changes the others.
using Wanted = std::span<const char>;

struct EpochOrder {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t per_step = 1;  ///< samples
  bool shuffle = true;
};

/// const and thread-safe. `augment_seed` is a function of (seed, epoch, index).
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual Sample get(std::int64_t index, std::uint64_t augment_seed, Wanted wanted) const = 0;
  virtual std::string describe() const = 0;
  virtual int num_classes() const { return 0; }  ///< different labels; 0: it has none
  /// Lengths of a sample by the model's dimensions, and what it adds to the model's counts, without loading
  /// it. Both spans are zero before. Data sets of samples of one size leave them so.
  virtual void measure(std::int64_t /*index*/, std::span<std::int64_t> /*lengths*/,
                       std::span<std::int64_t> /*counts*/) const {}
  /// An order of its own for an epoch: a permutation of all samples, of which each `per_step` are a step.
  /// Where samples differ from epoch to epoch, e * size() is added to the indices of epoch e, and `get` and
  /// `measure` are asked for those. Empty: the loader shuffles, or not. Pure.
  virtual std::vector<std::int64_t> order(const EpochOrder& /*epoch*/) const { return {}; }
  /// How many samples of an epoch's order, from its first on, are read: what comes after them is left out.
  virtual std::int64_t samples_in_epoch(std::int64_t /*per_step*/) const { return size(); }
  /// Sample i goes on where sample i - stride() ended, in an order that is never shuffled: rows of running
  /// text. 0: each stands by itself.
  virtual std::int64_t stride() const { return 0; }
  /// Returns a text that is the same for the same files in the same order, whatever their path.
  virtual std::string fingerprint() const = 0;
  /// Returns what else a checkpoint records of the set, by name: the vocabulary of its tokens.
  virtual std::vector<std::pair<std::string, std::string>> recorded() const { return {}; }
  /// Returns what a user should know of the set before it is used, one sentence each.
  virtual std::vector<std::string> notes() const { return {}; }

  // -- the policy for odd files --
  /// Samples whose own file was odd when it was read, so far: index -> bits of OddSample.
  virtual std::map<std::int64_t, unsigned> odd_samples() const { return {}; }
  /// Files that look like samples and cannot be any (a FIFO, a link that leads nowhere).
  virtual std::int64_t left_out() const { return 0; }
  /// Returns the name of the sample's file. Empty for a set without files.
  virtual std::string name_of(std::int64_t) const { return {}; }
};

enum OddSample : unsigned { kGreySample = 1, kCmykSample = 2, kDamagedSample = 4 };

/// Test also finds val/. Train augments, test centre-crops.
enum class DataSplit { Train, Test };
constexpr auto names_of(DataSplit) {
  return std::to_array<std::string_view>({"train", "test"});
}

struct DatasetOptions {
  std::string path = "synthetic";  ///< "synthetic", "synthetic:SIZE", "arrays:TRAIN.npz[,TEST.npz]", or an
                                   ///< image folder (has train/CLASS or CLASS)
  DataSplit split = DataSplit::Train;
  std::vector<FieldSpec> fields;  ///< of the model: what a sample has to have
  std::uint64_t seed = 0;
  std::vector<Dimension>
      dimensions;  ///< of the model: the nominal length is the longest of text and that of synthetic samples
  std::int64_t per_step = 1;  ///< samples; text that runs on is cut into as many rows
  int length_buckets = 0;     ///< of parallel text: MLPerf v0.6's sampler; 0: PipeDream's
  bool random_bptt = false;   ///< of running text in training: windows of drawn lengths
};
/// Null: the data set has no such split. Problem: unreadable folder, class folder without images, a class
/// that the training set does not have, more classes than the model has, ...
Result<std::shared_ptr<const Dataset>> make_dataset(const DatasetOptions& options);

/// A data set that a program adds: `--data NAME`, or NAME:ANYTHING, which `make` finds in options.path.
struct NamedDataset {
  std::string name;
  std::function<Result<std::shared_ptr<const Dataset>>(const DatasetOptions& options)> make;
};
/// The one of `own` that options.path names, else as above.
Result<std::shared_ptr<const Dataset>> make_dataset(const DatasetOptions& options,
                                                    const std::vector<NamedDataset>& own);

/// Order of an epoch: a seeded permutation, or 0..n-1 if not shuffled. Pure.
std::vector<std::int64_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch,
                                      bool shuffle);

struct LoaderOptions {
  int microbatch = 1;  ///< samples
  int microbatches_per_step = 1;
  bool shuffle = true;
  std::uint64_t seed = 0;
  int workers = 1;   ///< 0: load in get()
  int prefetch = 8;  ///< microbatches ahead, at most; refilled when half of them are used
  /// An epoch ends with what is left: its last step has fewer samples, spread over its microbatches as evenly
  /// as can be (dropped if there are fewer samples than microbatches).
  bool keep_incomplete = false;
  std::vector<FieldSpec> fields;   ///< of the model
  std::size_t num_dimensions = 0;  ///< of the model
  std::size_t num_counts = 0;      ///< of the model
  std::vector<char> wanted;        ///< by field; empty: all
  bool page_locked = false;        ///< batches are made where a GPU copies from without waiting; needs a GPU
  /// Says which positions this rank will ask for; they are prefetched. Empty: all.
  std::function<bool(std::int64_t position)> mine;

  /// Takes over what a loader must know of the model: its fields, and the numbers of its dimensions and
  /// counts.
  void read_for(const LayeredModel& model) {
    fields = model.fields;
    num_dimensions = model.dimensions.size();
    num_counts = model.counts.size();
  }
};
/// Epochs follow each other without end; an epoch's incomplete last step (of microbatch *
/// microbatches_per_step samples) is dropped, or kept as LoaderOptions says. Problem if no step is left.
Result<std::unique_ptr<BatchSource>> make_loader(std::shared_ptr<const Dataset> dataset,
                                                 const LoaderOptions& options);
/// Returns the steps of an epoch. With shuffle false an epoch has all samples.
std::int64_t steps_per_epoch(const Dataset& dataset, const LoaderOptions& options);

/// Returns the batches that a Trainer asks for: of `train`, and unless it is null of `test`, whose samples
/// come once each and in order. `options` are without `wanted` and `mine`, which the Trainer knows. Throws
/// DataError.
MakeBatches batches_of(std::shared_ptr<const Dataset> train, std::shared_ptr<const Dataset> test,
                       const LoaderOptions& options);

}  // namespace millrace
