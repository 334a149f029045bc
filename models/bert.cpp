// BERT for pre-training: a post-norm encoder, a head for masked tokens and one for the next sentence.

#include "models/language_models.h"
#include "runtime/layers/attention_layers.h"
#include "runtime/layers/sequence_layers.h"

namespace millrace {
namespace {

constexpr double kDeviation = 0.02, kEpsilon = 1e-12;

class Builder {
 public:
  Builder(LayeredModel& model, const BertOptions& options) : model_(model), o_(options) {}

  void embeddings() {
    const std::string name = "bert.embeddings.";
    const std::string words = then(name + "word_embeddings", embed(o_.vocabulary, 0), {"input_ids"});
    const std::string types = then(name + "token_type_embeddings", embed(2, -1), {"token_type_ids"});
    then(name + "add", add(), {words, types});
    then(name + "position_embeddings", learned_positions(o_.positions, o_.hidden, kDeviation));
    then(name + "LayerNorm", norm());
    drop(name + "dropout");
  }

  void encoder_layer(std::int64_t i) {
    const std::string name = "bert.encoder.layer." + std::to_string(i) + ".", input = last_;
    const std::string self = name + "attention.self.";
    for (const char* part : {"query", "key", "value"})
      then(self + part, dense(o_.hidden, o_.hidden), {input});
    then(self + "attention", self_attention({.heads = o_.heads, .dropout = o_.dropout, .masked = true}),
         {self + "query", self + "key", self + "value", "input_ids"});
    output(name + "attention.output.", o_.hidden, input);
    const std::string middle = last_;
    then(name + "intermediate.dense", dense(o_.hidden, o_.feed_forward));
    then(name + "intermediate.gelu", gelu(o_.gelu));
    output(name + "output.", o_.feed_forward, middle);
  }

  /// Returns the scores of masked tokens [B, P, V], and of the next sentence [B, 2].
  std::pair<std::string, std::string> heads() {
    const std::string encoded = last_, transform = "cls.predictions.transform.";
    then("bert.pooler.first_token", first_token());
    then("bert.pooler.dense", dense(o_.hidden, o_.hidden));
    then("bert.pooler.tanh", tanh_layer());
    const std::string next = then("cls.seq_relationship", dense(o_.hidden, 2));
    then("cls.predictions.gather", gather_positions(), {encoded, "masked_positions"});
    then(transform + "dense", dense(o_.hidden, o_.hidden));
    then(transform + "gelu", gelu(o_.gelu));
    then(transform + "LayerNorm", norm());
    // Its bias is cls.predictions.bias; its weight is the word embedding.
    const std::string tokens = then("cls.predictions", dense(o_.hidden, o_.vocabulary));
    model_.layers.back().tied = {{"weight", "bert.embeddings.word_embeddings.weight"}};
    return {tokens, next};
  }

 private:
  std::string then(const std::string& name, LayerPtr layer, std::vector<std::string> inputs = {}) {
    if (inputs.empty()) inputs = {last_};
    model_.layers.push_back({name, std::move(layer), std::move(inputs)});
    return last_ = name;
  }
  void drop(const std::string& name) {
    if (o_.dropout > 0) then(name, dropout(o_.dropout));
  }
  /// LayerNorm(residual + dropout(dense(x))).
  void output(const std::string& name, std::int64_t in, const std::string& residual) {
    then(name + "dense", dense(in, o_.hidden));
    drop(name + "dropout");
    then(name + "add", add(), {last_, residual});
    then(name + "LayerNorm", norm());
  }
  LayerPtr embed(std::int64_t vocabulary, std::int64_t padding) const {
    return embedding(
        {.vocabulary = vocabulary, .features = o_.hidden, .deviation = kDeviation, .padding = padding});
  }
  LayerPtr dense(std::int64_t in, std::int64_t out) const {
    return linear(in, out, {.weight = Init::Normal, .weight_a = kDeviation});
  }
  LayerPtr norm() const { return layer_norm(o_.hidden, kEpsilon); }

  LayeredModel& model_;
  const BertOptions& o_;
  std::string last_;
};

/// Masked positions of a sequence of `length`: 15 %, as the instances of pre-training have them.
std::int64_t nominal_masked(std::int64_t length) {
  return std::max<std::int64_t>(1, (15 * length + 50) / 100);
}

}  // namespace

LayeredModel bert_model(const BertOptions& o) {
  const auto integers = [](const char* name, Shape shape, std::int64_t limit) {
    return FieldSpec{.name = name, .shape = std::move(shape), .dtype = at::kLong, .limit = limit};
  };
  LayeredModel model{
      .name = o.name,
      .fields = {integers("input_ids", {dimension(0)}, o.vocabulary),
                 integers("token_type_ids", {dimension(0)}, 2),
                 integers("masked_positions", {dimension(1)}, 0),
                 integers("masked_labels", {dimension(1)}, o.vocabulary), integers("next_sentence", {}, 2)},
      .dimensions = {{"length", o.nominal_length}, {"masked", nominal_masked(o.nominal_length)}},
      .counts = {"masked"}};
  Builder builder(model, o);
  builder.embeddings();
  for (std::int64_t i = 0; i < o.layers; ++i) builder.encoder_layer(i);
  const auto [tokens, next] = builder.heads();
  model.heads = {
      {"mlm", token_cross_entropy_head({.ignored = 0, .weight = "masked"}), {tokens, "masked_labels"}},
      {"nsp", cross_entropy_head(), {next, "next_sentence"}}};
  return model;
}

}  // namespace millrace
