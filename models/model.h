// A file of models/ gives a Model to the registry. Helpers describe the options of models.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/chain.h"
#include "models/language_models.h"
#include "runtime/base/result.h"
#include "runtime/plan/model_options.h"

namespace millrace {

/// A model by name, with its options and the function that makes it. `make` returns a Problem for options
/// that do not go together.
struct Model {
  ModelDescription description;
  std::function<Result<LayeredModel>(const ModelOptions& options)> make;
};

/// Options that many models have, with the same help in all of them.
ModelOption classes_option();              ///< --classes: 0 leaves it to the model
ModelOption image_size_option();           ///< --image-size: 0 leaves it to the model
ModelOption dropout_option();              ///< --dropout: -1 leaves it to the model
std::vector<ModelOption> image_options();  ///< all three, and --label-smoothing
/// Ends a classifier of images with softmax cross-entropy on the last layer's output, smoothed as
/// --label-smoothing says.
void end_in_cross_entropy(LayeredModel& model, const ModelOptions& options);
ModelOption norm_option();  ///< --norm batch|group|instance
ModelOption stem_option();  ///< --stem auto|imagenet|cifar
/// Returns the stem that --stem and --image-size select: "imagenet" or "cifar".
std::string stem_of(const ModelOptions& options);
constexpr int kMostCifarPixels = 64;  ///< image models take CIFAR's form up to this size
/// Makes the layer that --norm names, for [B, channels, H, W]. Group normalisation has 32 groups, or the
/// most of its powers of two that divide the channels and leave several in a group.
LayerPtr norm_of(const ModelOptions& options, std::int64_t channels);

ModelOption heads_option(std::int64_t fallback);         ///< --heads
ModelOption feed_forward_option(std::int64_t fallback);  ///< --feed-forward
/// Returns a Problem about heads that do not divide the features.
Problem heads_problem(std::int64_t features, std::int64_t heads);
ModelOption vocabulary_option(std::int64_t fallback);                     ///< --vocabulary
ModelOption length_option(std::int64_t fallback, const std::string& of);  ///< --length
ModelOption embeddings_option(const std::string& help);                   ///< --embeddings separate|shared
ModelOption max_norm_option();                                            ///< --max-norm
/// Returns a Problem about a largest norm of rows of a shared matrix.
Problem max_norm_problem();

/// Returns the options --softmax full|adaptive, --cutoffs and --divisor.
std::vector<ModelOption> softmax_options();
/// Returns the softmax that these options select, in a model whose decoder reads `features`. A full
/// softmax has no cutoffs. Problems: cutoffs beyond the vocabulary, a cluster without features, shared
/// embeddings.
Result<AdaptiveSoftmax> adaptive_softmax(const ModelOptions& options, std::int64_t features);

/// Return the value of `option`, or `fallback` if the value is 0 (a probability: negative).
int or_else(const ModelOptions& options, const char* option, int fallback);
double probability_or_else(const ModelOptions& options, const char* option, double fallback);

/// Returns a Problem about an image that is too small for `model`, with the smallest size.
Problem too_small(const std::string& model, int size, int smallest);

}  // namespace millrace
