#include <charconv>

#include "data/dataset.h"
#include "data/readers/image_folder.h"
#include "data/synthetic/synthetic.h"

namespace millrace {

Result<std::shared_ptr<const Dataset>> make_dataset(const DatasetOptions& options) {
  constexpr std::string_view kSynthetic = "synthetic";
  constexpr std::int64_t kTrain = 8192, kTest = 1024;
  if (options.path == kSynthetic) return make_synthetic(options, options.split == "train" ? kTrain : kTest);
  if (options.path.starts_with("synthetic:")) {
    const std::string_view text = std::string_view(options.path).substr(kSynthetic.size() + 1);
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || end != text.data() + text.size() || size < 1) {
      return Problem{"--data", "'" + options.path + "' has no valid size", "for example synthetic:4096"};
    }
    return make_synthetic(options, options.split == "train" ? size : std::max<std::int64_t>(1, size / 8));
  }
  return make_image_folder(options);
}

}  // namespace millrace
