#include "data/loading/weighed_dataset.h"

#include <utility>

#include "data/loading/forwarding_dataset.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

std::int64_t label_of(const Dataset& dataset, std::int64_t index, Wanted wanted, int field) {
  const FieldValue value = std::move(dataset.get(index, 0, wanted).at(static_cast<std::size_t>(field)));
  return value.tensor.defined() ? value.tensor.item<std::int64_t>() : value.number;
}

std::vector<char> wanted_label(std::size_t fields, int field) {
  std::vector<char> wanted(fields, 0);
  wanted[static_cast<std::size_t>(field)] = 1;
  return wanted;
}

class WeighedDataset final : public ForwardingDataset {
 public:
  WeighedDataset(std::shared_ptr<const Dataset> dataset, std::size_t fields, WeighedLabels labels)
      : ForwardingDataset(std::move(dataset)),
        wanted_(wanted_label(fields, labels.field)),
        labels_(std::move(labels)) {
    weights_ = labels_of(inner(), fields, labels_.field);
    for (std::int64_t& label : weights_) label = units_of(label);
  }
  void measure(std::int64_t index, std::span<std::int64_t> lengths,
               std::span<std::int64_t> counts) const override {
    ForwardingDataset::measure(index, lengths, counts);
    // Samples that differ from epoch to epoch have indices beyond the first one's (Dataset::order).
    counts[static_cast<std::size_t>(labels_.count)] =
        index < static_cast<std::int64_t>(weights_.size())
            ? weights_[static_cast<std::size_t>(index)]
            : units_of(label_of(inner(), index, wanted_, labels_.field));
  }

 private:
  std::int64_t units_of(std::int64_t label) const {
    const auto classes = static_cast<std::int64_t>(labels_.units.size());
    if (label >= 0 && label < classes) return labels_.units[static_cast<std::size_t>(label)];
    throw DataError(describe() + ": label " + std::to_string(label) + " is outside the model's " +
                        std::to_string(classes) + " classes",
                    "give --classes N as the data set has");
  }

  std::vector<char> wanted_;
  WeighedLabels labels_;
  std::vector<std::int64_t> weights_;  // by sample of an epoch, in units
};

}  // namespace

std::vector<std::int64_t> labels_of(const Dataset& dataset, std::size_t fields, int field) {
  const std::vector<char> wanted = wanted_label(fields, field);
  std::vector<std::int64_t> labels(static_cast<std::size_t>(dataset.size()));
  for (std::size_t i = 0; i < labels.size(); ++i)
    labels[i] = label_of(dataset, static_cast<std::int64_t>(i), wanted, field);
  return labels;
}

std::shared_ptr<const Dataset> weighed(std::shared_ptr<const Dataset> dataset, std::size_t fields,
                                       WeighedLabels labels) {
  return std::make_shared<WeighedDataset>(std::move(dataset), fields, std::move(labels));
}

}  // namespace millrace
