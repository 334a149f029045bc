// GNMT: an encoder of LSTMs, the first in both directions, and a decoder of LSTMs that attends to the
// encoder.
#include "models/chain.h"
#include "models/language_models.h"
#include "models/model.h"
#include "runtime/layers/attention_layers.h"
#include "runtime/layers/recurrent_layers.h"
#include "runtime/layers/sequence_layers.h"

namespace millrace {
namespace {

constexpr double kMlperfRange = 0.1;

class GnmtBuilder : Chain {
 public:
  GnmtBuilder(LayeredModel& model, const GnmtOptions& options)
      : Chain(model), o_(options), mlperf_(options.form == GnmtForm::MLPerf) {}

  /// Returns the encoder's output.
  std::string encoder() {
    embedder("encoder", "source");
    if (mlperf_) drop("encoder.embedder.dropout", o_.dropout);
    join("encoder.rnn_layers.0", bidirectional_lstm(sizes(o_.hidden)), {last(), "source"});
    for (std::int64_t i = 1; i < o_.layers; ++i) {
      const std::string name = "encoder.rnn_layers." + std::to_string(i), residual = last();
      drop(name + ".dropout", o_.dropout);
      then(name, lstm(sizes(i == 1 ? 2 * o_.hidden : o_.hidden)));
      if (i > 1) join(name + ".add", add(), {last(), residual});
    }
    return last();
  }

  void decoder(const std::string& encoded) {
    embedder("decoder", "target");
    if (o_.embeddings == Embeddings::Shared) tie("weight", "encoder.embedder.weight");
    if (mlperf_) drop("decoder.embedder.dropout", o_.dropout);
    then("decoder.att_rnn.rnn", lstm(sizes(o_.hidden)));
    const std::string query = last();
    const std::string context =
        join("decoder.att_rnn.attn",
             bahdanau_attention({.features = o_.hidden, .range = mlperf_ ? kMlperfRange : 0}),
             {query, encoded, "source"});
    go_back_to(query);
    for (std::int64_t j = 0; j + 1 < o_.layers; ++j) {
      const std::string name = "decoder.rnn_layers." + std::to_string(j), residual = last();
      if (!mlperf_) drop(name + ".dropout", o_.dropout);
      join(name + ".concatenate", concat_features(), {last(), context});
      if (mlperf_) drop(name + ".dropout", o_.dropout);
      then(name, lstm(sizes(2 * o_.hidden)));
      if (j > 0) join(name + ".add", add(), {last(), residual});
    }
    then("decoder.classifier.classifier",
         mlperf_
             ? linear(o_.hidden, o_.vocabulary, {Init::Uniform, kMlperfRange, Init::Uniform, kMlperfRange})
             : linear(o_.hidden, o_.vocabulary));
  }

  using Chain::last;

 private:
  void embedder(const std::string& side, const std::string& field) {
    then(side + ".embedder",
         embedding({.vocabulary = o_.vocabulary,
                    .features = o_.hidden,
                    .range = mlperf_ ? kMlperfRange : 0,
                    .padding = 0,
                    .zero_padding = !mlperf_}),
         field);
  }
  LstmOptions sizes(std::int64_t in) const {
    return {.in = in, .hidden = o_.hidden, .range = mlperf_ ? kMlperfRange : 0, .zero_hidden_bias = mlperf_};
  }

  const GnmtOptions& o_;
  bool mlperf_;
};

Result<LayeredModel> make_gnmt(const std::string& name, const ModelOptions& options) {
  const GnmtOptions defaults;
  return gnmt_model(
      {.name = name,
       .layers = options.integer("layers"),
       .hidden = options.integer("hidden"),
       .vocabulary = options.integer("vocabulary"),
       .dropout = probability_or_else(options, "dropout", defaults.dropout),
       .smoothing = options.number("label-smoothing"),
       .embeddings = options.text("embeddings") == "shared" ? Embeddings::Shared : Embeddings::Separate,
       .form = options.text("form") == "mlperf" ? GnmtForm::MLPerf : GnmtForm::PipeDream,
       .nominal_length = options.integer("length")});
}

}  // namespace

std::vector<Model> gnmt_models() {
  const GnmtOptions defaults;
  std::vector<Model> models;
  for (const auto& [name, layers] : {std::pair<std::string, int>{"gnmt", 4}, {"gnmt_large", 8}}) {
    models.push_back(
        {{.name = name,
          .summary = "Translation by LSTMs with attention, " + std::to_string(layers) + " + " +
                     std::to_string(layers) + " layers (arXiv 1609.08144), as PipeDream and MLPerf have it.",
          .options = {integer_option("layers", layers, {2, 1000}, "Of the encoder, and of the decoder."),
                      integer_option("hidden", defaults.hidden, {1, 1 << 16}, "Units of an LSTM."),
                      vocabulary_option(defaults.vocabulary), dropout_option(),
                      recorded(number_option("label-smoothing", defaults.smoothing, {0, 0.999},
                                             "Share of the loss that all labels have alike.")),
                      embeddings_option("Of source and target: a matrix each (PipeDream), or one (MLPerf)."),
                      choice_option("form", "pipedream", {"pipedream", "mlperf"},
                                    "Initial values and places of dropout."),
                      length_option(defaults.nominal_length, "a sentence, begin and end counted,")}},
         [name = name](const ModelOptions& options) { return make_gnmt(name, options); }});
  }
  return models;
}

LayeredModel gnmt_model(const GnmtOptions& o) {
  const auto tokens = [&](const char* name, int d) {
    return FieldSpec{.name = name,
                     .shape = {dimension(d)},
                     .dtype = at::kLong,
                     .limit = o.vocabulary,
                     .batch_dimension = 1,
                     .form = SampleForm::Translation};
  };
  LayeredModel model{.name = o.name,
                     .fields = {tokens("source", 0), tokens("target", 1), tokens("labels", 1)},
                     .dimensions = {{"source_length", o.nominal_length}, {"target_length", o.nominal_length}},
                     .counts = {"tokens"}};
  GnmtBuilder builder(model, o);
  builder.decoder(builder.encoder());
  model.heads = {{"loss",
                  token_cross_entropy_head({.ignored = 0, .smoothing = o.smoothing}),
                  {builder.last(), "labels"}}};
  return model;
}

}  // namespace millrace
