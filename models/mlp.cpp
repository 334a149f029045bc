// The small model of tests and benchmarks: `depth` pairs of (Linear, GELU), then a Linear to the classes.
#include "models/model.h"

namespace millrace {
namespace {

Result<LayeredModel> make_mlp(const ModelOptions& options) {
  const std::int64_t width = options.integer("width"), depth = options.integer("depth");
  const int classes = or_else(options, "classes", 10);
  const double p = options.number("dropout");
  LayeredModel model = classifier("mlp", {width}, classes);
  Chain chain(model);
  for (int i = 0; i < depth; ++i) {
    chain.then("layers." + std::to_string(i) + ".linear", linear(width, width));
    chain.then("layers." + std::to_string(i) + ".gelu", gelu());
    if (p > 0) chain.then("layers." + std::to_string(i) + ".dropout", dropout(p));
  }
  chain.then("head", linear(width, classes));
  end_in_cross_entropy(model);
  return model;
}

}  // namespace

std::vector<Model> mlp_models() {
  return {{{.name = "mlp",
            .summary = "Pairs of Linear and GELU, then a Linear to the classes: for tests and benchmarks.",
            .options = {classes_option(), dropout_option(),
                        integer_option("width", 256, {1, 1 << 20}, "Width of the layers."),
                        integer_option("depth", 8, {1, 10'000}, "Number of (Linear, GELU) pairs.")}},
           make_mlp}};
}

}  // namespace millrace
