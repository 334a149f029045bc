// The small model of tests and benchmarks: `depth` pairs of (Linear, GELU), then a Linear to the classes.
#include "models/chain.h"
#include "models/models.h"

namespace millrace {

Result<LayeredModel> make_mlp(const ModelOptions& options) {
  const int width = options.width ? options.width : 256, depth = options.depth ? options.depth : 8;
  const int classes = options.num_classes ? options.num_classes : 10;
  LayeredModel model = classifier("mlp", {width}, classes);
  Chain chain(model);
  for (int i = 0; i < depth; ++i) {
    chain.then("layers." + std::to_string(i) + ".linear", linear(width, width));
    chain.then("layers." + std::to_string(i) + ".gelu", gelu());
    if (options.dropout > 0) chain.then("layers." + std::to_string(i) + ".dropout", dropout(options.dropout));
  }
  chain.then("head", linear(width, classes));
  end_in_cross_entropy(model);
  return model;
}

}  // namespace millrace
