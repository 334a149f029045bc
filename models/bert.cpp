// BERT for pre-training: a post-norm encoder, a head for masked tokens and one for the next sentence.

#include "models/chain.h"
#include "models/language_models.h"
#include "models/model.h"
#include "runtime/layers/attention_layers.h"
#include "runtime/layers/sequence_layers.h"

namespace millrace {
namespace {

constexpr double kBertDeviation = 0.02, kBertEpsilon = 1e-12;

class BertBuilder : Chain {
 public:
  BertBuilder(LayeredModel& model, const BertOptions& options) : Chain(model), o_(options) {}

  void embeddings() {
    const std::string name = "bert.embeddings.";
    const std::string words = then(name + "word_embeddings", embed(o_.vocabulary, 0), "input_ids");
    const std::string types = then(name + "token_type_embeddings", embed(2, -1), "token_type_ids");
    join(name + "add", add(), {words, types});
    then(name + "position_embeddings", learned_positions(o_.positions, o_.hidden, kBertDeviation));
    then(name + "LayerNorm", norm());
    drop(name + "dropout", o_.dropout);
  }

  void encoder_layer(std::int64_t i) {
    const std::string name = "bert.encoder.layer." + std::to_string(i) + ".", input = last();
    const std::string self = name + "attention.self.";
    for (const char* part : {"query", "key", "value"}) then(self + part, dense(o_.hidden, o_.hidden), input);
    join(self + "attention", self_attention({.heads = o_.heads, .dropout = o_.dropout, .masked = true}),
         {self + "query", self + "key", self + "value", "input_ids"});
    output(name + "attention.output.", o_.hidden, input);
    const std::string middle = last();
    then(name + "intermediate.dense", dense(o_.hidden, o_.feed_forward));
    then(name + "intermediate.gelu", gelu(o_.gelu));
    output(name + "output.", o_.feed_forward, middle);
  }

  /// Returns the scores of masked tokens [B, P, V], and of the next sentence [B, 2].
  std::pair<std::string, std::string> heads() {
    const std::string encoded = last(), transform = "cls.predictions.transform.";
    then("bert.pooler.first_token", first_token());
    then("bert.pooler.dense", dense(o_.hidden, o_.hidden));
    then("bert.pooler.tanh", tanh_layer());
    const std::string next = then("cls.seq_relationship", dense(o_.hidden, 2));
    join("cls.predictions.gather", gather_positions(), {encoded, "masked_positions"});
    then(transform + "dense", dense(o_.hidden, o_.hidden));
    then(transform + "gelu", gelu(o_.gelu));
    then(transform + "LayerNorm", norm());
    // The decoder's bias is cls.predictions.bias, and its weight is the word embedding.
    const std::string tokens = then("cls.predictions", dense(o_.hidden, o_.vocabulary));
    tie("weight", "bert.embeddings.word_embeddings.weight");
    return {tokens, next};
  }

 private:
  /// Appends LayerNorm(residual + dropout(dense(x))).
  void output(const std::string& name, std::int64_t in, const std::string& residual) {
    then(name + "dense", dense(in, o_.hidden));
    drop(name + "dropout", o_.dropout);
    join(name + "add", add(), {last(), residual});
    then(name + "LayerNorm", norm());
  }
  LayerPtr embed(std::int64_t vocabulary, std::int64_t padding) const {
    return embedding(
        {.vocabulary = vocabulary, .features = o_.hidden, .deviation = kBertDeviation, .padding = padding});
  }
  LayerPtr dense(std::int64_t in, std::int64_t out) const {
    return linear(in, out, {.weight = Init::Normal, .weight_a = kBertDeviation});
  }
  LayerPtr norm() const { return layer_norm(o_.hidden, kBertEpsilon); }

  const BertOptions& o_;
};

/// Returns the masked positions of a sequence of `length`: 15 %, as in the instances of pre-training.
std::int64_t nominal_masked(std::int64_t length) {
  return std::max<std::int64_t>(1, (15 * length + 50) / 100);
}

Result<LayeredModel> make_bert(const std::string& name, const ModelOptions& options) {
  const BertOptions o{.name = name,
                      .layers = options.integer("layers"),
                      .hidden = options.integer("hidden"),
                      .heads = options.integer("heads"),
                      .feed_forward = options.integer("feed-forward"),
                      .vocabulary = options.integer("vocabulary"),
                      .positions = options.integer("positions"),
                      .dropout = probability_or_else(options, "dropout", BertOptions().dropout),
                      .gelu = options.text("gelu") == "tanh" ? GeluForm::Tanh : GeluForm::Erf,
                      .nominal_length = options.integer("length")};
  Problems problems;
  if (o.hidden % o.heads != 0) problems.push_back(heads_problem(o.hidden, o.heads));
  if (o.nominal_length > o.positions)
    problems.push_back(
        {"--length",
         std::to_string(o.nominal_length) + " is above --positions " + std::to_string(o.positions),
         {}});
  if (!problems.empty()) return problems;
  return bert_model(o);
}

std::vector<ModelOption> bert_options(const BertOptions& o) {
  return {
      integer_option("layers", o.layers, {1, 1000}, "Of the encoder."),
      integer_option("hidden", o.hidden, {1, 1 << 16}, "Features of a token."),
      heads_option(o.heads),
      feed_forward_option(o.feed_forward),
      vocabulary_option(o.vocabulary),
      integer_option("positions", o.positions, {2, 1 << 20}, "Longest sequence that has embeddings."),
      dropout_option(),
      recorded(choice_option("gelu", "erf", {"erf", "tanh"}, "Hugging Face's, or MLPerf's and NVIDIA's.")),
      length_option(o.nominal_length, "a pair of segments")};
}

}  // namespace

std::vector<Model> bert_models() {
  const std::string summary =
      "Pre-training of a bidirectional transformer on masked tokens and next sentences "
      "(arXiv 1810.04805)";
  std::vector<Model> models;
  for (const BertOptions& form :
       {BertOptions{},
        BertOptions{.name = "bert_large", .layers = 24, .hidden = 1024, .heads = 16, .feed_forward = 4096}}) {
    models.push_back({{.name = form.name,
                       .summary = summary + ", " + std::to_string(form.layers) + " layers.",
                       .options = bert_options(form)},
                      [name = form.name](const ModelOptions& options) { return make_bert(name, options); }});
  }
  return models;
}

LayeredModel bert_model(const BertOptions& o) {
  const auto integers = [](const char* name, Shape shape, std::int64_t limit) {
    return FieldSpec{.name = name,
                     .shape = std::move(shape),
                     .dtype = at::kLong,
                     .limit = limit,
                     .form = SampleForm::BertPairs};
  };
  LayeredModel model{
      .name = o.name,
      .fields = {integers("input_ids", {dimension(0)}, o.vocabulary),
                 integers("token_type_ids", {dimension(0)}, 2),
                 integers("masked_positions", {dimension(1)}, 0),
                 integers("masked_labels", {dimension(1)}, o.vocabulary), integers("next_sentence", {}, 2)},
      .dimensions = {{"length", o.nominal_length}, {"masked", nominal_masked(o.nominal_length)}},
      .counts = {"masked"}};
  BertBuilder builder(model, o);
  builder.embeddings();
  for (std::int64_t i = 0; i < o.layers; ++i) builder.encoder_layer(i);
  const auto [tokens, next] = builder.heads();
  model.heads = {
      {"mlm", token_cross_entropy_head({.ignored = 0, .weight = "masked"}), {tokens, "masked_labels"}},
      {"nsp", cross_entropy_head(), {next, "next_sentence"}}};
  return model;
}

}  // namespace millrace
