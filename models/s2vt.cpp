// S2VT: two LSTMs that first read a video's frames and then write its caption.
#include <cmath>

#include "models/chain.h"
#include "models/language_models.h"
#include "models/model.h"
#include "runtime/layers/recurrent_layers.h"
#include "runtime/layers/sequence_layers.h"

namespace millrace {
namespace {

// Constants of the initial values in the authors' network.
constexpr double kS2vtRange = 0.08, kFrameBias = 0.2;

class S2vtBuilder : Chain {
 public:
  S2vtBuilder(LayeredModel& model, const S2vtOptions& options) : Chain(model), o_(options) {}

  /// Adds all layers. Returns the name of the scores' tensor.
  std::string build() {
    go_back_to("frames");
    drop("dropFc7", o_.dropout);
    const double xavier = std::sqrt(3.0 / double(o_.frame_features));
    then("embed_encoder",
         linear(o_.frame_features, o_.features,
                {.weight = Init::Uniform, .weight_a = xavier, .bias = Init::Constant, .bias_a = kFrameBias}));
    then("lstm1", lstm(sizes(o_.features)));
    drop("drop_lstm1", o_.dropout);
    const std::string seen = last();
    then("embedding", embedding({.vocabulary = o_.vocabulary, .features = o_.features, .range = kS2vtRange}),
         "tokens");
    drop("drop_input_en", o_.dropout);
    join("concat", concat_features(), {seen, last()});
    join("stage_indicator", token_flag(), {last(), "tokens"});
    then("lstm2", lstm(sizes(o_.hidden + o_.features + 1)));
    drop("drop_lstm2", o_.dropout);
    return then("predict",
                linear(o_.hidden, o_.vocabulary, {.weight = Init::Uniform, .weight_a = kS2vtRange}));
  }

 private:
  LstmOptions sizes(std::int64_t in) const {
    return {.in = in,
            .hidden = o_.hidden,
            .range = kS2vtRange,
            .zero_hidden_bias = true,
            .zero_input_bias = true};
  }

  const S2vtOptions& o_;
};

Result<LayeredModel> make_s2vt(const ModelOptions& options) {
  return s2vt_model({.frame_features = options.integer("frame-features"),
                     .features = options.integer("embedding-features"),
                     .hidden = options.integer("hidden"),
                     .vocabulary = options.integer("vocabulary"),
                     .dropout = probability_or_else(options, "dropout", S2vtOptions().dropout),
                     .nominal_length = options.integer("length")});
}

}  // namespace

std::vector<Model> s2vt_models() {
  const S2vtOptions o;
  return {{{.name = "s2vt",
            .summary = "Captions of videos by two LSTMs (arXiv 1505.00487), over features of their frames.",
            .options = {integer_option("frame-features", o.frame_features, {1, 1 << 20},
                                       "Features of a frame in the data."),
                        integer_option("embedding-features", o.features, {1, 1 << 16},
                                       "Features of frames and words as the LSTMs read them."),
                        integer_option("hidden", o.hidden, {1, 1 << 16}, "Units of an LSTM."),
                        vocabulary_option(o.vocabulary), dropout_option(),
                        integer_option("length", o.nominal_length, {4, 1 << 20},
                                       "Most steps: frames, words and an end. What a profile takes.")}},
           make_s2vt}};
}

LayeredModel s2vt_model(const S2vtOptions& o) {
  const auto tokens = [&](const char* name) {
    return FieldSpec{.name = name,
                     .shape = {dimension(0)},
                     .dtype = at::kLong,
                     .limit = o.vocabulary,
                     .batch_dimension = 1,
                     .form = SampleForm::Captions};
  };
  LayeredModel model{.name = o.name,
                     .fields = {{.name = "frames",
                                 .shape = {dimension(0), o.frame_features},
                                 .batch_dimension = 1,
                                 .form = SampleForm::Captions},
                                tokens("tokens"),
                                tokens("labels")},
                     .dimensions = {{"length", o.nominal_length}},
                     .counts = {"tokens"}};
  const std::string scores = S2vtBuilder(model, o).build();
  model.heads = {{"loss", token_cross_entropy_head({.ignored = 0}), {scores, "labels"}}};
  return model;
}

}  // namespace millrace
