#include <charconv>

#include "data/dataset.h"
#include "data/language/language_datasets.h"
#include "data/readers/image_folder.h"
#include "data/synthetic/synthetic.h"

namespace millrace {

namespace {
/// "input", floating, and one integer label: what classifiers read.
bool reads_labelled_tensors(const std::vector<FieldSpec>& fields) {
  return fields.size() == 2 && at::isFloatingType(fields[0].dtype) && fields[1].shape.empty() &&
         fields[1].dtype == at::kLong;
}
}  // namespace

Result<std::shared_ptr<const Dataset>> make_dataset(const DatasetOptions& options) {
  if (reads_text(options.fields)) return make_language_dataset(options);
  if (!reads_labelled_tensors(options.fields)) {
    std::string names;
    for (const FieldSpec& field : options.fields) names += (names.empty() ? "" : ", ") + field.name;
    return Problem{"--data", "the model reads " + names + "; " + options.path + " has inputs and labels",
                   "give a data set made for this model"};
  }
  constexpr std::string_view kSynthetic = "synthetic";
  constexpr std::int64_t kTrain = 8192, kTest = 1024;
  if (options.path == kSynthetic)
    return make_synthetic(options, options.split == DataSplit::Train ? kTrain : kTest);
  if (options.path.starts_with("synthetic:")) {
    const std::string_view text = std::string_view(options.path).substr(kSynthetic.size() + 1);
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || end != text.data() + text.size() || size < 1) {
      return Problem{"--data", "'" + options.path + "' has no valid size", "for example synthetic:4096"};
    }
    return make_synthetic(options,
                          options.split == DataSplit::Train ? size : std::max<std::int64_t>(1, size / 8));
  }
  return make_image_folder(options);
}

}  // namespace millrace
