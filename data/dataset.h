// Data sets, the order of samples, and the loader that makes microbatches of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/result.h"
#include "runtime/train/batch_source.h"

namespace millrace {

struct Sample {
  at::Tensor input;
  std::int64_t target = -1;
};

/// const and thread-safe. `augment_seed` is a function of (seed, epoch, index); `want_input` false: the label
/// only (no decoding), for the last stage.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual int num_classes() const = 0;
  virtual Sample get(std::int64_t index, std::uint64_t augment_seed, bool want_input) const = 0;
  virtual std::string describe() const = 0;
  /// What the samples are, whatever the path: the same text for the same files in the same order.
  virtual std::string fingerprint() const = 0;
  /// Counters of the damaged-image policy: name -> count ("grey", "cmyk", "damaged", ...). May be empty.
  virtual std::map<std::string, std::int64_t> counters() const { return {}; }
};

struct DatasetOptions {
  std::string path =
      "synthetic";  ///< "synthetic", "synthetic:SIZE", or an image folder (has train/CLASS or CLASS)
  std::string split = "train";  ///< "train" | "test" (also finds val/); train augments, test centre-crops
  std::vector<std::int64_t> sample_shape;  ///< of the model: {3, 224, 224} or {features}
  int num_classes = 10;
  std::uint64_t seed = 0;
};
/// Problem: unreadable folder, class folder without images, more classes than the model has, ...
Result<std::shared_ptr<const Dataset>> make_dataset(const DatasetOptions& options);

/// Order of an epoch: a seeded permutation, or 0..n-1 if not shuffled. Pure.
std::vector<std::int64_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch,
                                      bool shuffle);

struct LoaderOptions {
  int microbatch = 1;  ///< samples
  int microbatches_per_step = 1;
  bool shuffle = true;
  std::uint64_t seed = 0;
  int workers = 1;               ///< 0: load in get()
  int prefetch = 8;              ///< microbatches ahead, at most; refilled when half of them are used
  bool keep_incomplete = false;  ///< an epoch ends with what is left, even if it is no whole microbatch;
                                 ///< needs one microbatch per step (evaluation)
  bool want_input = true;
  bool want_target = true;
  bool page_locked = false;  ///< batches are made where a GPU copies from without waiting; needs a GPU
  /// Which positions this rank will ask for (prefetched); empty: all.
  std::function<bool(std::int64_t position)> mine;
};
/// Epochs follow each other without end; an epoch's incomplete last step (of microbatch *
/// microbatches_per_step samples) is dropped. If the data set is smaller than one step, Problem.
Result<std::unique_ptr<BatchSource>> make_loader(std::shared_ptr<const Dataset> dataset,
                                                 const LoaderOptions& options);
std::int64_t steps_per_epoch(const Dataset& dataset, const LoaderOptions& options);

}  // namespace millrace
