#include "models/model.h"

namespace millrace {

ModelOption classes_option() {
  return integer_option("classes", 0, {0, 1'000'000}, "Number of classes; 0: as in the paper.");
}

ModelOption image_size_option() {
  return integer_option("image-size", 0, {0, 4096},
                        "Height and width of images; 0: as in the paper; 32 for CIFAR.", "PIXELS");
}

ModelOption dropout_option() {
  return recorded(
      number_option("dropout", -1, {-1, 0.999}, "Dropout probability; -1: as in the paper.", "P"));
}

std::vector<ModelOption> image_options() {
  return {classes_option(), image_size_option(), dropout_option()};
}

int or_else(const ModelOptions& options, const char* option, int fallback) {
  const auto value = static_cast<int>(options.integer(option));
  return value != 0 ? value : fallback;
}

double probability_or_else(const ModelOptions& options, const char* option, double fallback) {
  const double value = options.number(option);
  return value >= 0 ? value : fallback;
}

Problem too_small(const std::string& model, int size, int smallest) {
  return {"--image-size",
          model + " needs at least " + std::to_string(smallest) + " pixels, got " + std::to_string(size),
          {}};
}

}  // namespace millrace
