// AWD-LSTM: LSTMs over running text with many kinds of regularisation.
#include "models/chain.h"
#include "models/language_models.h"
#include "models/model.h"
#include "runtime/layers/adaptive_softmax.h"
#include "runtime/layers/recurrent_layers.h"
#include "runtime/layers/sequence_layers.h"

namespace millrace {
namespace {

constexpr double kEmbeddingRange = 0.1;
constexpr std::int64_t kIgnoredLabel = -100;

class AwdLstmBuilder : Chain {
 public:
  AwdLstmBuilder(LayeredModel& model, const AwdLstmOptions& options)
      : Chain(model), model_(model), o_(options) {}

  void embed() {
    then("encoder",
         embedding({.vocabulary = o_.vocabulary,
                    .features = o_.features,
                    .range = kEmbeddingRange,
                    .max_norm = o_.max_norm}),
         "tokens");
    if (o_.embedding_dropout > 0)
      join("encoder.dropout", row_dropout(o_.vocabulary, o_.embedding_dropout), {last(), "tokens"});
    lock("encoder.locked_dropout", o_.input_dropout);
  }

  void lstms() {
    for (std::int64_t i = 0; i < o_.layers; ++i) {
      const bool is_last = i + 1 == o_.layers;
      const std::string name = "rnns." + std::to_string(i);
      then(name + ".module", carried_lstm({.sizes = {.in = i == 0 ? o_.features : o_.hidden,
                                                     .hidden = is_last ? read_by_decoder() : o_.hidden},
                                           .weight_drop = o_.weight_drop}));
      made_ = last();
      lock(name + ".locked_dropout", is_last ? o_.dropout : o_.hidden_dropout);
    }
  }

  void decode() {
    const std::string read = last();
    if (!o_.softmax.cutoffs.empty()) {
      join("decoder",
           adaptive_log_softmax({.in = read_by_decoder(),
                                 .classes = o_.vocabulary,
                                 .cutoffs = o_.softmax.cutoffs,
                                 .divisor = o_.softmax.divisor,
                                 .ignored = kIgnoredLabel}),
           {read, "labels"});
      model_.heads = {{"tokens", label_likelihood_head({.ignored = kIgnoredLabel}), {last(), "labels"}}};
    } else {
      then("decoder",
           linear(read_by_decoder(), o_.vocabulary, {.weight = Init::Uniform, .weight_a = kEmbeddingRange}));
      if (o_.embeddings == Embeddings::Shared) tie("weight", "encoder.weight");
      model_.heads = {{"tokens", token_cross_entropy_head({.ignored = kIgnoredLabel}), {last(), "labels"}}};
    }
    if (o_.activation_penalty == 0 && o_.change_penalty == 0) return;
    model_.heads.push_back(
        {"activations",
         activation_penalty_head({.activation = o_.activation_penalty, .change = o_.change_penalty}),
         read == made_ ? std::vector{made_} : std::vector{read, made_}});
  }

 private:
  void lock(const std::string& name, double p) {
    if (p > 0) then(name, locked_dropout(p));
  }
  std::int64_t read_by_decoder() const {
    return o_.embeddings == Embeddings::Shared ? o_.features : o_.hidden;
  }

  LayeredModel& model_;
  const AwdLstmOptions& o_;
  std::string made_;  ///< name of the last LSTM's output
};

Result<LayeredModel> make_awd_lstm(const ModelOptions& options) {
  const Result<AdaptiveSoftmax> softmax = adaptive_softmax(options, options.integer("hidden"));
  if (!softmax) return softmax.problems();
  if (options.number("max-norm") > 0 && options.text("embeddings") == "shared") return max_norm_problem();
  return awd_lstm_model(
      {.layers = options.integer("layers"),
       .features = options.integer("embedding-features"),
       .hidden = options.integer("hidden"),
       .vocabulary = options.integer("vocabulary"),
       .dropout = probability_or_else(options, "dropout", AwdLstmOptions().dropout),
       .hidden_dropout = options.number("hidden-dropout"),
       .input_dropout = options.number("input-dropout"),
       .embedding_dropout = options.number("embedding-dropout"),
       .weight_drop = options.number("weight-drop"),
       .activation_penalty = options.number("activation-penalty"),
       .change_penalty = options.number("change-penalty"),
       .embeddings = options.text("embeddings") == "shared" ? Embeddings::Shared : Embeddings::Separate,
       .max_norm = options.number("max-norm"),
       .softmax = *softmax,
       .nominal_length = options.integer("length")});
}

}  // namespace

std::vector<Model> awd_lstm_models() {
  const AwdLstmOptions o;
  const auto probability = [](const char* name, double fallback, const std::string& help) {
    return recorded(number_option(name, fallback, {0, 0.999}, help, "P"));
  };
  const auto penalty = [](const char* name, double fallback, const std::string& help) {
    return recorded(number_option(name, fallback, {0, 1e3}, help));
  };
  std::vector<Model> models{
      {{.name = "awd_lstm",
        .summary = "LSTMs over running text (arXiv 1708.02182), as salesforce/awd-lstm-lm has them; "
                   "states go on from window to window.",
        .options = {integer_option("layers", o.layers, {1, 1000}, "LSTMs."),
                    integer_option("embedding-features", o.features, {1, 1 << 16},
                                   "Features of a token, and, with one matrix, units of the last LSTM."),
                    integer_option("hidden", o.hidden, {1, 1 << 16}, "Units of the other LSTMs."),
                    vocabulary_option(o.vocabulary), dropout_option(),
                    probability("hidden-dropout", o.hidden_dropout, "Dropout between LSTMs."),
                    probability("input-dropout", o.input_dropout, "Dropout of what the first LSTM reads."),
                    probability("embedding-dropout", o.embedding_dropout,
                                "Dropout of whole rows of the embedding."),
                    probability("weight-drop", o.weight_drop,
                                "Dropout of the weights from hidden units to hidden units."),
                    penalty("activation-penalty", o.activation_penalty,
                            "Times the mean square of what the decoder reads (AR)."),
                    penalty("change-penalty", o.change_penalty,
                            "Times the mean square of what the last LSTM changes by in a step (TAR)."),
                    choice_option("embeddings", "shared", {"separate", "shared"},
                                  "Of input and output: a matrix each, or one."),
                    max_norm_option(), length_option(o.nominal_length, "a window")}},
       make_awd_lstm}};
  for (ModelOption& option : softmax_options()) models[0].description.options.push_back(std::move(option));
  return models;
}

LayeredModel awd_lstm_model(const AwdLstmOptions& o) {
  const auto field = [&](const char* name, std::int64_t padding) {
    return FieldSpec{.name = name,
                     .shape = {dimension(0)},
                     .dtype = at::kLong,
                     .limit = o.vocabulary,
                     .padding = padding,
                     .batch_dimension = 1,
                     .form = SampleForm::RunningText};
  };
  LayeredModel model{.name = o.name,
                     .fields = {field("tokens", 0), field("labels", kIgnoredLabel)},
                     .dimensions = {{"length", o.nominal_length}},
                     .counts = {"tokens"}};
  AwdLstmBuilder builder(model, o);
  builder.embed();
  builder.lstms();
  builder.decode();
  return model;
}

}  // namespace millrace
