#include "models/gnmt_translation.h"

#include <algorithm>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>

#include "models/gnmt_stages.h"
#include "models/language_models.h"
#include "runtime/layers/attention_layers.h"
#include "runtime/layers/recurrent_layers.h"

namespace millrace {
namespace {

const std::string kSourceTable = "encoder.embedder.weight", kTargetTable = "decoder.embedder.weight";

/// The names of a layer's parameters in the state_dict; a tied one's is its owner's.
std::vector<std::string> names_of(const NamedLayer& layer) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : layer.layer->parameters()) {
    const auto tie = std::ranges::find(layer.tied, spec.name, [](const auto& t) { return t.first; });
    names.push_back(tie == layer.tied.end() ? layer.parameter_name(spec) : tie->second);
  }
  return names;
}

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

namespace {

at::Tensor forward_of(const NamedLayer& layer, const std::vector<at::Tensor>& parameters,
                      const TensorsByName& values) {
  std::vector<at::Tensor> inputs;
  for (const std::string& input : layer.inputs) inputs.push_back(values.at(input));
  return layer.layer->forward(inputs, parameters, {}, CallContext{.training = false}, nullptr);
}

}  // namespace

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
    } else if (layer.layer->kind() == "lstm") {
      LstmState& state = states_[layer.name];
      state = lstm_step(values.at(layer.inputs[0]), state, parameters);
      made = state.h;
    } else {
      made = forward_of(layer, layer.name == kGnmtClassifier ? classifier_ : parameters, values);
    }
  }
}

void GnmtDecoder::reorder(const at::Tensor& from) {
  sentence_ = sentence_.index_select(0, from);
  for (auto& [layer, state] : states_) {
    state.h = state.h.index_select(0, from);
    state.c = state.c.index_select(0, from);
  }
}

/// All layers in one process.
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

/// One of the given weights, not yet read.
struct GnmtTranslator::Weight {
  std::string where;
  Shape shape;
  std::function<at::Tensor()> read;
};

GnmtTranslator::FindWeight GnmtTranslator::finder(const WeightFiles& files) {
  return [files](const std::string& name) -> std::optional<Weight> {
    const auto found = std::ranges::find_if(files, [&](const auto* file) { return file->contains(name); });
    if (found == files.end()) return std::nullopt;
    return Weight{(*found)->path(), (*found)->shape(name),
                  [file = *found, name] { return file->tensor(name); }};
  };
}

namespace {

std::string first_of(const WeightFiles& files) {
  return files.empty() ? "" : files.front()->path();
}

bool every_layer(const std::string&) {
  return true;
}

}  // namespace

Result<GnmtTranslator> GnmtTranslator::from(const WeightFiles& files) {
  return from(finder(files), first_of(files), every_layer);
}

Result<GnmtTranslator> GnmtTranslator::from(const WeightFiles& files,
                                            const std::vector<std::string>& layers) {
  return from(finder(files), first_of(files),
              [&](const std::string& layer) { return std::ranges::find(layers, layer) != layers.end(); });
}

Result<LayeredModel> GnmtTranslator::model_of(const WeightFiles& files) {
  Result<GnmtTranslator> none = from(files, {});
  if (!none) return none.problems();
  return std::move(none->model_);
}

Result<GnmtTranslator> GnmtTranslator::from(const NamedTensors& weights, const std::string& whose) {
  const auto find = [&](const std::string& name) -> std::optional<Weight> {
    const auto found = std::ranges::find(weights, name, &NamedTensors::value_type::first);
    if (found == weights.end()) return std::nullopt;
    return Weight{whose, found->second.sizes().vec(), [tensor = found->second] { return tensor; }};
  };
  return from(find, whose, every_layer);
}

Result<GnmtTranslator> GnmtTranslator::from(const FindWeight& find, const std::string& first,
                                            const Holds& holds) {
  const std::optional<Weight> table = find(kSourceTable);
  if (!table || table->shape.size() != 2)
    return Problem{first, "has no tensor " + kSourceTable + " of two dimensions",
                   "translating takes weights of gnmt"};
  GnmtTranslator made;
  made.vocabulary_ = table->shape[0];
  made.hidden_ = table->shape[1];
  while (find(encoder_layer(made.layers_) + ".weight_ih_l0")) ++made.layers_;
  if (made.vocabulary_ < 1 || made.hidden_ < 1 || made.layers_ < 2)
    return Problem{first, "has " + std::to_string(made.layers_) + " LSTMs of an encoder, GNMT at least 2",
                   "translating takes weights of gnmt"};
  made.model_ = gnmt_model({.layers = made.layers_,
                            .hidden = made.hidden_,
                            .vocabulary = made.vocabulary_,
                            .dropout = 0,
                            .embeddings = find(kTargetTable) ? Embeddings::Separate : Embeddings::Shared});
  Problems problems;
  std::map<std::string, at::Tensor> read;  // a tied one once
  for (const NamedLayer& layer : made.model_.layers) {
    const std::vector<std::string> names = names_of(layer);
    Held held{.layer = layer, .parameters = {}};
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::optional<Weight> found = find(names[i]);
      const Shape shape = layer.layer->parameters()[i].shape;
      if (!found) {
        problems.push_back({first, "has no tensor " + names[i], "GNMT of as many layers has it"});
      } else if (found->shape != shape) {
        std::ostringstream text;
        text << names[i] << " has shape " << c10::IntArrayRef(found->shape) << ", GNMT of " << made.hidden_
             << " units and " << made.vocabulary_ << " tokens " << c10::IntArrayRef(shape);
        problems.push_back({found->where, text.str(), "the weights are not of one model"});
      } else if (holds(layer.name)) {
        at::Tensor& tensor = read[names[i]];
        if (!tensor.defined()) tensor = found->read().to(at::kFloat);
        held.parameters.push_back(tensor);
      }
    }
    if (holds(layer.name))
      (layer.name.starts_with(kGnmtDecoder) ? made.decoder_ : made.encoder_).push_back(std::move(held));
  }
  if (!problems.empty()) return problems;
  return made;
}

std::int64_t GnmtTranslator::bytes() const {
  std::map<const void*, std::int64_t> blocks;  // a tied one once
  for (const auto* half : {&encoder_, &decoder_}) {
    for (const Held& held : *half)
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
