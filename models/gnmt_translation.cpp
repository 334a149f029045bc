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

/// Row r is a hypothesis of sentence `sentence_[r]`; its states are rows of the LSTMs' h and c.
class GnmtTranslator::Decoder final : public NextWords {
 public:
  Decoder(const GnmtTranslator& of, const at::Tensor& source, std::int64_t words)
      : memory_(of.encode(source), source, of.parameters_of("decoder.att_rnn.attn")),
        sentence_(at::arange(source.size(1), at::kLong)),
        table_(of.parameters_of("decoder.embedder")[0]),
        classifier_(of.parameters_of("decoder.classifier.classifier")) {
    lstms_.push_back({of.parameters_of("decoder.att_rnn.rnn"), {}});
    for (at::Tensor& parameter : classifier_) parameter = parameter.narrow(0, 0, words);
    for (std::int64_t j = 0; j + 1 < of.layers_; ++j)
      lstms_.push_back({of.parameters_of("decoder.rnn_layers." + std::to_string(j)), {}});
  }

  Step step(const at::Tensor& words) override {
    at::Tensor y = advance(lstms_[0], at::embedding(table_, words));
    const BahdanauMemory::Look look = memory_.look(y, sentence_);
    for (std::size_t j = 1; j < lstms_.size(); ++j) {
      const at::Tensor out = advance(lstms_[j], at::cat({y, look.context}, 1));
      y = j > 1 ? at::add(out, y) : out;
    }
    return {at::addmm(classifier_[1], y, classifier_[0].t()), look.probabilities};
  }

  void reorder(const at::Tensor& from) override {
    sentence_ = sentence_.index_select(0, from);
    for (Lstm& lstm : lstms_) {
      lstm.state.h = lstm.state.h.index_select(0, from);
      lstm.state.c = lstm.state.c.index_select(0, from);
    }
  }

 private:
  struct Lstm {
    std::vector<at::Tensor> parameters;
    LstmState state;
  };
  static at::Tensor advance(Lstm& lstm, const at::Tensor& x) {
    lstm.state = lstm_step(x, lstm.state, lstm.parameters);
    return lstm.state.h;
  }

  BahdanauMemory memory_;
  at::Tensor sentence_;  // int64 [R]
  at::Tensor table_;
  std::vector<at::Tensor> classifier_;  // weight, bias
  std::vector<Lstm> lstms_;             // the one that asks, then the others
};

/// One of the given weights, not yet read.
struct GnmtTranslator::Weight {
  std::string where;
  Shape shape;
  std::function<at::Tensor()> read;
};

Result<GnmtTranslator> GnmtTranslator::from(const WeightFiles& files) {
  const auto find = [&](const std::string& name) -> std::optional<Weight> {
    const auto found = std::ranges::find_if(files, [&](const auto* file) { return file->contains(name); });
    if (found == files.end()) return std::nullopt;
    return Weight{(*found)->path(), (*found)->shape(name),
                  [file = *found, name] { return file->tensor(name); }};
  };
  return from(find, files.empty() ? "" : files.front()->path());
}

Result<GnmtTranslator> GnmtTranslator::from(const NamedTensors& weights, const std::string& whose) {
  const auto find = [&](const std::string& name) -> std::optional<Weight> {
    const auto found = std::ranges::find(weights, name, &NamedTensors::value_type::first);
    if (found == weights.end()) return std::nullopt;
    return Weight{whose, found->second.sizes().vec(), [tensor = found->second] { return tensor; }};
  };
  return from(find, whose);
}

Result<GnmtTranslator> GnmtTranslator::from(const FindWeight& find, const std::string& first) {
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
  for (const NamedLayer& layer : made.model_.layers) {
    const std::vector<std::string> names = names_of(layer);
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
      } else if (!made.weights_.contains(names[i])) {
        made.weights_[names[i]] = found->read().to(at::kFloat);
      }
    }
  }
  if (!problems.empty()) return problems;
  return made;
}

std::vector<at::Tensor> GnmtTranslator::parameters_of(const NamedLayer& layer) const {
  std::vector<at::Tensor> tensors;
  for (const std::string& name : names_of(layer)) tensors.push_back(weights_.at(name));
  return tensors;
}

std::vector<at::Tensor> GnmtTranslator::parameters_of(const std::string& name) const {
  return parameters_of(*std::ranges::find(model_.layers, name, &NamedLayer::name));
}

/// source int64 [S, B] -> [S, B, H]: the model's own layers, up to the decoder's.
at::Tensor GnmtTranslator::encode(const at::Tensor& source) const {
  std::map<std::string, at::Tensor> values{{"source", source}};
  at::Tensor last;
  for (const NamedLayer& layer : model_.layers) {
    if (layer.name.starts_with("decoder.")) break;
    std::vector<at::Tensor> inputs;
    for (const std::string& input : layer.inputs) inputs.push_back(values.at(input));
    const std::vector<at::Tensor> parameters = parameters_of(layer);
    last = values[layer.name] =
        layer.layer->forward(inputs, parameters, {}, CallContext{.training = false}, nullptr);
  }
  return last;
}

std::unique_ptr<NextWords> GnmtTranslator::begin(const std::vector<std::vector<std::uint32_t>>& sentences,
                                                 std::int64_t limit) const {
  const at::NoGradGuard no_grad;
  std::size_t longest = 0;
  for (const auto& sentence : sentences) longest = std::max(longest, sentence.size());
  const auto batch = static_cast<std::int64_t>(sentences.size());
  const at::Tensor source = at::zeros({static_cast<std::int64_t>(longest), batch}, at::kLong);
  auto* values = source.mutable_data_ptr<std::int64_t>();
  for (std::size_t b = 0; b < sentences.size(); ++b) {
    for (std::size_t i = 0; i < sentences[b].size(); ++i) values[i * sentences.size() + b] = sentences[b][i];
  }
  return std::make_unique<Decoder>(*this, source, limit > 0 ? std::min(limit, vocabulary_) : vocabulary_);
}

}  // namespace millrace
