// The part that a file of models/ gives to the registry, and helpers to describe a model.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/chain.h"
#include "models/language_models.h"
#include "runtime/base/result.h"
#include "runtime/plan/model_options.h"

namespace millrace {

/// A name, what users can tell it, and how it is made of that. `make` may refuse what does not go together.
struct Model {
  ModelDescription description;
  std::function<Result<LayeredModel>(const ModelOptions& options)> make;
};

/// Options that many models have: the same words in all of them.
ModelOption classes_option();              ///< --classes: 0 leaves it to the model
ModelOption image_size_option();           ///< --image-size: 0 leaves it to the model
ModelOption dropout_option();              ///< --dropout: -1 leaves it to the model
std::vector<ModelOption> image_options();  ///< all three
ModelOption norm_option();                 ///< --norm batch|group|instance
/// Makes the layer that --norm names, for [B, channels, H, W]. Group normalisation has 32 groups, or the
/// most of its powers of two that divide the channels and leave several in a group.
LayerPtr norm_of(const ModelOptions& options, std::int64_t channels);

ModelOption heads_option(std::int64_t fallback);         ///< --heads
ModelOption feed_forward_option(std::int64_t fallback);  ///< --feed-forward
/// A Problem for heads that do not divide the features.
Problem heads_problem(std::int64_t features, std::int64_t heads);
ModelOption vocabulary_option(std::int64_t fallback);                     ///< --vocabulary
ModelOption length_option(std::int64_t fallback, const std::string& of);  ///< --length
ModelOption embeddings_option(const std::string& help);                   ///< --embeddings separate|shared
ModelOption max_norm_option();                                            ///< --max-norm
/// A Problem for a norm of rows of a matrix that is shared.
Problem max_norm_problem();

/// --softmax full|adaptive, --cutoffs, --divisor.
std::vector<ModelOption> softmax_options();
/// Returns the softmax that these options ask for, in a model whose decoder reads `features`. A full
/// softmax has no cutoffs. Problems: cutoffs beyond the vocabulary, a cluster without features, a matrix
/// that is to be shared.
Result<AdaptiveSoftmax> adaptive_softmax(const ModelOptions& options, std::int64_t features);

/// The value of `option` if it is not 0 (of a probability: not negative), else `fallback`.
int or_else(const ModelOptions& options, const char* option, int fallback);
double probability_or_else(const ModelOptions& options, const char* option, double fallback);

/// A Problem for an image that is too small for `model`, with the size that is not.
Problem too_small(const std::string& model, int size, int smallest);

}  // namespace millrace
