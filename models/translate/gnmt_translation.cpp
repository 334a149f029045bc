#include "models/translate/gnmt_translation.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "models/language_models.h"
#include "models/translate/gnmt_stages.h"

namespace millrace {
namespace {

const std::string kSourceTable = "encoder.embedder.weight", kTargetTable = "decoder.embedder.weight";

std::string encoder_layer(std::int64_t i) {
  return "encoder.rnn_layers." + std::to_string(i);
}

}  // namespace

GnmtDecoder::GnmtDecoder(const GnmtTranslator& of, at::Tensor source, std::int64_t limit)
    : of_(of), source_(std::move(source)), sentence_(at::arange(source_.size(1), at::kLong)) {
  const std::int64_t words = limit > 0 ? std::min(limit, of.vocabulary()) : of.vocabulary();
  for (const auto& [layer, parameters] : of.decoder_) {
    if (layer.name != kGnmtClassifier) continue;
    for (const at::Tensor& parameter : parameters) classifier_.push_back(parameter.narrow(0, 0, words));
  }
}

void GnmtDecoder::encode(TensorsByName& values) {
  values["source"] = source_;
  for (const auto& [layer, parameters] : of_.encoder_)
    values[layer.name] = forward_of(layer, parameters, values);
  for (const auto& [layer, parameters] : of_.decoder_) {
    if (layer.name == kGnmtAttention) memory_.emplace(values.at(layer.inputs[1]), source_, parameters);
  }
}

void GnmtDecoder::step(const at::Tensor& words, TensorsByName& values) {
  values["target"] = words;
  for (const auto& [layer, parameters] : of_.decoder_) {
    at::Tensor& made = values[layer.name];
    if (layer.name == kGnmtAttention) {
      BahdanauMemory::Look look = memory_->look(values.at(layer.inputs[0]), sentence_);
      made = std::move(look.context);
      values[kGnmtLooks] = std::move(look.probabilities);
    } else {
      made = step_of(layer, layer.name == kGnmtClassifier ? classifier_ : parameters, values, states_);
    }
  }
}

void GnmtDecoder::reorder(const at::Tensor& from) {
  sentence_ = sentence_.index_select(0, from);
  millrace::reorder(states_, from);
}

/// Decodes with all layers in one process.
class GnmtTranslator::Whole final : public NextWords {
 public:
  Whole(const GnmtTranslator& of, at::Tensor source, std::int64_t limit)
      : decoder_(of, std::move(source), limit) {
    TensorsByName values;
    decoder_.encode(values);
  }
  Step step(const at::Tensor& words) override {
    TensorsByName values;
    decoder_.step(words, values);
    return {values.at(kGnmtClassifier), values.at(kGnmtLooks)};
  }
  void reorder(const at::Tensor& from) override { decoder_.reorder(from); }

 private:
  GnmtDecoder decoder_;
};

namespace {

std::string first_of(const WeightFiles& files) {
  return files.empty() ? "" : files.front()->path();
}

bool every_layer(const std::string&) {
  return true;
}

}  // namespace

Result<GnmtTranslator> GnmtTranslator::from(const WeightFiles& files) {
  return from(finder_of(files), first_of(files), every_layer);
}

Result<GnmtTranslator> GnmtTranslator::from(const WeightFiles& files,
                                            const std::vector<std::string>& layers) {
  return from(finder_of(files), first_of(files),
              [&](const std::string& layer) { return std::ranges::find(layers, layer) != layers.end(); });
}

Result<LayeredModel> GnmtTranslator::model_of(const WeightFiles& files) {
  Result<GnmtTranslator> none = from(files, {});
  if (!none) return none.problems();
  return std::move(none->model_);
}

Result<GnmtTranslator> GnmtTranslator::from(const NamedTensors& weights, const std::string& whose) {
  return from(finder_of(weights, whose), whose, every_layer);
}

Result<GnmtTranslator> GnmtTranslator::from(const FindWeight& find, const std::string& first,
                                            const Holds& holds) {
  const std::optional<FoundWeight> table = find({kSourceTable});
  if (!table || table->shape.size() != 2)
    return Problem{first, "has no tensor " + kSourceTable + " of two dimensions",
                   "translating takes weights of gnmt, captions (--features) of s2vt"};
  GnmtTranslator made;
  made.vocabulary_ = table->shape[0];
  made.hidden_ = table->shape[1];
  // Counts from the second layer on: the first has two directions and may have other names.
  for (made.layers_ = 1; find({encoder_layer(made.layers_) + ".weight_ih_l0"});) ++made.layers_;
  if (made.vocabulary_ < 1 || made.hidden_ < 1 || made.layers_ < 2)
    return Problem{
        first,
        "has no tensor " + encoder_layer(1) + ".weight_ih_l0: the encoder of GNMT has at least 2 LSTMs",
        "translating takes weights of gnmt"};
  made.model_ = gnmt_model({.layers = made.layers_,
                            .hidden = made.hidden_,
                            .vocabulary = made.vocabulary_,
                            .dropout = 0,
                            .embeddings = find({kTargetTable}) ? Embeddings::Separate : Embeddings::Shared});
  Result<std::vector<HeldLayer>> layers =
      hold_layers(made.model_, find, first,
                  "GNMT of " + std::to_string(made.layers_) + " layers, " + std::to_string(made.hidden_) +
                      " units and " + std::to_string(made.vocabulary_) + " tokens",
                  holds);
  if (!layers) return layers.problems();
  for (HeldLayer& held : *layers) {
    const bool decodes = held.layer.name.starts_with(kGnmtDecoder);
    (decodes ? made.decoder_ : made.encoder_).push_back(std::move(held));
  }
  return made;
}

std::int64_t GnmtTranslator::bytes() const {
  std::map<const void*, std::int64_t> blocks;  // so that a tied weight counts once
  for (const auto* half : {&encoder_, &decoder_}) {
    for (const HeldLayer& held : *half)
      for (const at::Tensor& t : held.parameters)
        blocks[t.const_data_ptr()] = static_cast<std::int64_t>(t.nbytes());
  }
  std::int64_t sum = 0;
  for (const auto& [block, bytes] : blocks) sum += bytes;
  return sum;
}

at::Tensor gnmt_source(const std::vector<std::vector<std::uint32_t>>& sentences) {
  std::size_t longest = 0;
  for (const auto& sentence : sentences) longest = std::max(longest, sentence.size());
  at::Tensor source =
      at::zeros({static_cast<std::int64_t>(longest), static_cast<std::int64_t>(sentences.size())}, at::kLong);
  auto* values = source.mutable_data_ptr<std::int64_t>();
  for (std::size_t b = 0; b < sentences.size(); ++b) {
    for (std::size_t i = 0; i < sentences[b].size(); ++i) values[i * sentences.size() + b] = sentences[b][i];
  }
  return source;
}

std::unique_ptr<NextWords> GnmtTranslator::begin(const std::vector<std::vector<std::uint32_t>>& sentences,
                                                 std::int64_t limit) const {
  const at::NoGradGuard no_grad;
  return std::make_unique<Whole>(*this, gnmt_source(sentences), limit);
}

}  // namespace millrace
