#include "models/model.h"

#include <numeric>

#include "runtime/layers/adaptive_softmax.h"
#include "runtime/layers/soft_cross_entropy.h"

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

ModelOption norm_option() {
  return choice_option("norm", "batch", {"batch", "group", "instance"},
                       "Normalisation after convolutions: over the microbatch, or over up to 32 groups of a "
                       "sample's channels (arXiv 1803.08494), or each channel by itself (arXiv 1607.08022).");
}

ModelOption stem_option() {
  return recorded(choice_option("stem", "auto", {"auto", "imagenet", "cifar"},
                                "imagenet: a 7x7 convolution of stride 2, then pooling, as torchvision's "
                                "weights have it; cifar: a 3x3 convolution; auto: cifar up to 64 pixels."));
}

std::string stem_of(const ModelOptions& options) {
  const std::string stem = options.text("stem");
  if (stem != "auto") return stem;
  return or_else(options, "image-size", 224) <= kMostCifarPixels ? "cifar" : "imagenet";
}

LayerPtr norm_of(const ModelOptions& options, std::int64_t channels) {
  constexpr std::int64_t kGroups = 32;
  const std::string norm = options.text("norm");
  if (norm == "instance") return instance_norm(channels);
  if (norm == "batch") return batch_norm2d(channels);
  const std::int64_t groups = std::gcd(kGroups, channels);
  return group_norm(groups == channels && channels > 1 ? groups / 2 : groups, channels);
}

ModelOption heads_option(std::int64_t fallback) {
  return recorded(integer_option("heads", fallback, {1, 1 << 12}, "Of attention; they divide --hidden."));
}

ModelOption feed_forward_option(std::int64_t fallback) {
  return integer_option("feed-forward", fallback, {1, 1 << 18}, "Features inside of a feed-forward layer.");
}

Problem heads_problem(std::int64_t features, std::int64_t heads) {
  return {"--heads", std::to_string(heads) + " do not divide --hidden " + std::to_string(features), {}};
}

ModelOption vocabulary_option(std::int64_t fallback) {
  return integer_option("vocabulary", fallback, {8, 1 << 24}, "Tokens of the vocabulary.");
}

ModelOption length_option(std::int64_t fallback, const std::string& of) {
  return integer_option("length", fallback, {2, 1 << 20},
                        "Most tokens of " + of + " in training, and what a profile takes.");
}

ModelOption embeddings_option(const std::string& help) {
  return choice_option("embeddings", "separate", {"separate", "shared"}, help);
}

ModelOption max_norm_option() {
  return recorded(number_option("max-norm", 0, {0, 1e6},
                                "Rows of the embedding that are longer are scaled to this norm before they "
                                "are read, and stay so; 0: none are. Needs --embeddings separate."));
}
Problem max_norm_problem() {
  return {"--max-norm", "scales rows of the embedding, and the decoder shares its matrix",
          "give --embeddings separate"};
}

std::vector<ModelOption> softmax_options() {
  const AdaptiveSoftmaxOptions o;
  return {
      choice_option("softmax", "full", {"full", "adaptive"},
                    "Over all tokens, or over frequent ones and clusters of rare ones (arXiv 1609.04309), "
                    "for tokens numbered by frequency."),
      integers_option("cutoffs", {2000, 10'000}, {1, 1 << 24},
                      "With --softmax adaptive: the first token of each cluster.", "LIST"),
      number_option("divisor", o.divisor, {1, 1024},
                    "With --softmax adaptive: each cluster reads so many times fewer features than the "
                    "one before it.")};
}

Result<AdaptiveSoftmax> adaptive_softmax(const ModelOptions& options, std::int64_t features) {
  if (options.text("softmax") == "full") return AdaptiveSoftmax{};
  const AdaptiveSoftmax adaptive{options.integers("cutoffs"), options.number("divisor")};
  const std::int64_t vocabulary = options.integer("vocabulary");
  Problems problems;
  if (options.text("embeddings") == "shared")
    problems.push_back({"--softmax", "adaptive has no matrix of all tokens that the embedding could share",
                        "give --embeddings separate"});
  if (adaptive.cutoffs.back() >= vocabulary)
    problems.push_back({"--cutoffs",
                        std::to_string(adaptive.cutoffs.back()) + " is beyond the vocabulary of " +
                            std::to_string(vocabulary) + " tokens",
                        "give smaller ones"});
  if (cluster_features({.in = features, .cutoffs = adaptive.cutoffs, .divisor = adaptive.divisor},
                       adaptive.cutoffs.size() - 1) < 1)
    problems.push_back({"--divisor",
                        "leaves the last of " + std::to_string(adaptive.cutoffs.size()) +
                            " clusters no feature of " + std::to_string(features),
                        "give a smaller one, or fewer --cutoffs"});
  if (!problems.empty()) return problems;
  return adaptive;
}

std::vector<ModelOption> image_options() {
  return {classes_option(), image_size_option(), dropout_option(),
          recorded(number_option("label-smoothing", 0, {0, 0.999},
                                 "Share of the loss that all labels have alike.", "F"))};
}

void end_in_cross_entropy(LayeredModel& model, const ModelOptions& options) {
  model.heads.push_back({"loss",
                         smoothed_cross_entropy_head(options.number("label-smoothing")),
                         {model.layers.back().output_names().front(), "target"}});
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
