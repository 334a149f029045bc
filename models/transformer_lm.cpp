// A causal transformer over words, as in PyTorch's word_language_model example.
#include <cmath>

#include "models/chain.h"
#include "models/language_models.h"
#include "models/model.h"
#include "runtime/layers/adaptive_softmax.h"
#include "runtime/layers/attention_layers.h"
#include "runtime/layers/sequence_layers.h"

namespace millrace {
namespace {

constexpr double kTransformerRange = 0.1;
constexpr std::int64_t kNoLabel = -100;

class TransformerBuilder : Chain {
 public:
  TransformerBuilder(LayeredModel& model, const TransformerLmOptions& options) : Chain(model), o_(options) {}

  void embed() {
    then("encoder",
         embedding({.vocabulary = o_.vocabulary,
                    .features = o_.features,
                    .range = kTransformerRange,
                    .max_norm = o_.max_norm}),
         "tokens");
    then("pos_encoder", sinusoidal_positions(o_.features, std::sqrt(double(o_.features))));
    drop("pos_encoder.dropout", o_.dropout);
  }

  void layer(std::int64_t i) {
    const std::string name = "transformer_encoder.layers." + std::to_string(i) + ".",
                      self = name + "self_attn";
    const std::string input = last();
    // The values are uniform within Xavier's bound for [3F, F].
    then(self, linear(o_.features, 3 * o_.features,
                      {.weight = Init::Uniform, .weight_a = std::sqrt(6.0 / double(4 * o_.features))},
                      "in_proj_weight", "in_proj_bias"));
    then(self + ".attention",
         self_attention({.heads = o_.heads, .dropout = o_.dropout, .causal = Causal::Yes, .packed = true}));
    then(self + ".out_proj",
         linear(o_.features, o_.features,
                {.weight = Init::Uniform, .weight_a = 1 / std::sqrt(double(o_.features))}));
    close(name, "1", input);
    const std::string middle = last();
    then(name + "linear1", linear(o_.features, o_.feed_forward));
    then(name + "relu", relu());
    drop(name + "dropout", o_.dropout);
    then(name + "linear2", linear(o_.feed_forward, o_.features));
    close(name, "2", middle);
  }

  NamedHead decode() {
    if (!o_.softmax.cutoffs.empty()) {
      join("decoder",
           adaptive_log_softmax({.in = o_.features,
                                 .classes = o_.vocabulary,
                                 .cutoffs = o_.softmax.cutoffs,
                                 .divisor = o_.softmax.divisor,
                                 .ignored = kNoLabel}),
           {last(), "labels"});
      return {"loss", label_likelihood_head({.ignored = kNoLabel}), {last(), "labels"}};
    }
    then("decoder",
         linear(o_.features, o_.vocabulary, {.weight = Init::Uniform, .weight_a = kTransformerRange}));
    if (o_.embeddings == Embeddings::Shared) tie("weight", "encoder.weight");
    return {"loss", token_cross_entropy_head({.ignored = kNoLabel}), {last(), "labels"}};
  }

 private:
  /// Appends norm(residual + dropout(x)).
  void close(const std::string& name, const std::string& number, const std::string& residual) {
    drop(name + "dropout" + number, o_.dropout);
    join(name + "add" + number, add(), {last(), residual});
    then(name + "norm" + number, layer_norm(o_.features));
  }

  const TransformerLmOptions& o_;
};

Result<LayeredModel> make_transformer_lm(const ModelOptions& options) {
  const Result<AdaptiveSoftmax> softmax = adaptive_softmax(options, options.integer("hidden"));
  if (!softmax) return softmax.problems();
  const TransformerLmOptions o{
      .layers = options.integer("layers"),
      .features = options.integer("hidden"),
      .heads = options.integer("heads"),
      .feed_forward = options.integer("feed-forward"),
      .vocabulary = options.integer("vocabulary"),
      .dropout = probability_or_else(options, "dropout", TransformerLmOptions().dropout),
      .embeddings = options.text("embeddings") == "shared" ? Embeddings::Shared : Embeddings::Separate,
      .max_norm = options.number("max-norm"),
      .softmax = *softmax,
      .nominal_length = options.integer("length")};
  if (o.features % o.heads != 0) return heads_problem(o.features, o.heads);
  if (o.max_norm > 0 && o.embeddings == Embeddings::Shared) return max_norm_problem();
  if (o.features % 2 != 0) return Problem{"--hidden", "is odd: positions are pairs of sine and cosine", {}};
  return transformer_lm_model(o);
}

}  // namespace

std::vector<Model> transformer_lm_models() {
  const TransformerLmOptions o;
  std::vector<Model> models{
      {{.name = "transformer_lm",
        .summary = "Causal transformer over words, as PyTorch's word_language_model example.",
        .options = {integer_option("layers", o.layers, {1, 1000}, "Of the encoder."),
                    integer_option("hidden", o.features, {2, 1 << 16}, "Features of a token."),
                    heads_option(o.heads), feed_forward_option(o.feed_forward),
                    vocabulary_option(o.vocabulary), dropout_option(),
                    embeddings_option("Of input and output: a matrix each, or one."), max_norm_option(),
                    length_option(o.nominal_length, "a window")}},
       make_transformer_lm}};
  for (ModelOption& option : softmax_options()) models[0].description.options.push_back(std::move(option));
  return models;
}

LayeredModel transformer_lm_model(const TransformerLmOptions& o) {
  LayeredModel model{.name = o.name,
                     .fields = {{.name = "tokens",
                                 .shape = {dimension(0)},
                                 .dtype = at::kLong,
                                 .limit = o.vocabulary,
                                 .form = SampleForm::RunningText},
                                {.name = "labels",
                                 .shape = {dimension(0)},
                                 .dtype = at::kLong,
                                 .limit = o.vocabulary,
                                 .padding = kNoLabel,
                                 .form = SampleForm::RunningText}},
                     .dimensions = {{"length", o.nominal_length}},
                     .counts = {"tokens"}};
  TransformerBuilder builder(model, o);
  builder.embed();
  for (std::int64_t i = 0; i < o.layers; ++i) builder.layer(i);
  model.heads = {builder.decode()};
  return model;
}

}  // namespace millrace
