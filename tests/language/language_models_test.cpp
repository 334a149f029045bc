#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "models/language_models.h"
#include "models/registry.h"
#include "runtime/model/stage_layout.h"
#include "runtime/plan/plan.h"

namespace millrace {
namespace {

std::map<std::string, Shape> own_parameters(const LayeredModel& model) {
  std::map<std::string, Shape> shapes;
  for (const NamedLayer& layer : model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      if (!layer.is_tied(spec)) shapes[layer.parameter_name(spec)] = spec.shape;
    }
  }
  return shapes;
}

TEST(LanguageModels, HaveTheKnownParameterCounts) {
  const std::tuple<const char*, GivenOptions, std::int64_t> counts[] = {
      {"gnmt", {}, 193'766'977},
      {"gnmt", {{"embeddings", "shared"}}, 160'671'297},
      {"gnmt_large", {}, 277'718'593},
      {"gnmt_large", {{"embeddings", "shared"}}, 244'622'913},
      {"gnmt",
       {{"layers", "2"}, {"hidden", "256"}, {"vocabulary", "7976"}, {"embeddings", "shared"}},
       7'379'241},
      {"bert_base", {}, 110'106'428},
      {"bert_large", {}, 336'226'108},
      {"transformer_lm", {}, 8'751'614},
      // Without the decoder's 33,278 x 129; the frequent ones and two clusters read 128, 32 and 8 features.
      {"transformer_lm",
       {{"softmax", "adaptive"}},
       8'751'614 - 33'278 * 129 + 128 * 2002 + 32 * (128 + 8000) + 8 * (128 + 23'278)},
      {"awd_lstm", {}, 33'556'078},
      {"awd_lstm", {{"vocabulary", "10000"}}, 24'221'600},
      // The authors' 87,358,668, and a second bias for each gate, as PyTorch has.
      {"s2vt", {}, 87'366'668},
      // Six layers of 1600, as PipeDream's is thought to be (0.408 GB).
      {"awd_lstm",
       {{"vocabulary", "10000"}, {"layers", "6"}, {"hidden", "1600"}},
       10'000 * 401 + 4 * (1600 * 2000 + 3200) + 4 * 4 * (1600 * 3200 + 3200) + 4 * (400 * 2000 + 800)},
  };
  for (const auto& [name, options, count] : counts) {
    const auto model = make_model(name, options);
    ASSERT_TRUE(model) << to_string(model.problems());
    EXPECT_EQ(model->num_parameters(), count) << name;
  }
}

TEST(LanguageModels, GnmtHasMlperfsNamesAndShapes) {
  const auto found = own_parameters(gnmt_model({.layers = 3, .hidden = 5, .vocabulary = 11}));
  std::map<std::string, Shape> expected{{"encoder.embedder.weight", {11, 5}},
                                        {"decoder.embedder.weight", {11, 5}},
                                        {"decoder.att_rnn.attn.linear_q.weight", {5, 5}},
                                        {"decoder.att_rnn.attn.linear_k.weight", {5, 5}},
                                        {"decoder.att_rnn.attn.linear_att", {5}},
                                        {"decoder.att_rnn.attn.normalize_scalar", {1}},
                                        {"decoder.att_rnn.attn.normalize_bias", {5}},
                                        {"decoder.classifier.classifier.weight", {11, 5}},
                                        {"decoder.classifier.classifier.bias", {11}}};
  const auto lstm = [&](const std::string& name, std::int64_t in, const std::string& suffix = "") {
    expected[name + ".weight_ih_l0" + suffix] = {20, in};
    expected[name + ".weight_hh_l0" + suffix] = {20, 5};
    expected[name + ".bias_ih_l0" + suffix] = expected[name + ".bias_hh_l0" + suffix] = {20};
  };
  lstm("encoder.rnn_layers.0", 5);
  lstm("encoder.rnn_layers.0", 5, "_reverse");
  lstm("encoder.rnn_layers.1", 10);
  lstm("encoder.rnn_layers.2", 5);
  lstm("decoder.att_rnn.rnn", 5);
  lstm("decoder.rnn_layers.0", 10);
  lstm("decoder.rnn_layers.1", 10);
  EXPECT_EQ(found, expected);
}

TEST(LanguageModels, AwdLstmHasTheReferencesNamesAndShapes) {
  const LayeredModel model = awd_lstm_model({.features = 5, .hidden = 7, .vocabulary = 11});
  std::map<std::string, Shape> expected{{"encoder.weight", {11, 5}}, {"decoder.bias", {11}}};
  const auto lstm = [&](const std::string& name, std::int64_t in, std::int64_t hidden) {
    expected[name + ".module.weight_ih_l0"] = {4 * hidden, in};
    expected[name + ".module.weight_hh_l0_raw"] = {4 * hidden, hidden};
    expected[name + ".module.bias_ih_l0"] = expected[name + ".module.bias_hh_l0"] = {4 * hidden};
  };
  lstm("rnns.0", 5, 7);
  lstm("rnns.1", 7, 7);
  lstm("rnns.2", 7, 5);
  EXPECT_EQ(own_parameters(model), expected);
  EXPECT_EQ(model.layers.back().tied.front().second, "encoder.weight");
  for (const NamedLayer& layer : model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      if (layer.name == "encoder") {
        EXPECT_EQ(spec.a, 0.1);
      } else if (layer.name == "rnns.2.module") {
        EXPECT_EQ(spec.a, 1 / std::sqrt(5.0));
      } else if (layer.name == "decoder" && spec.name == "bias") {
        EXPECT_EQ(spec.init, Init::Zeros);
      }
    }
  }
}

/// Names and shapes of torch.nn.AdaptiveLogSoftmaxWithLoss(7, 30, [4, 9, 20], div_value=1.5).
TEST(LanguageModels, AdaptiveSoftmaxHasTorchsNamesAndShapes) {
  const auto found = own_parameters(awd_lstm_model({.layers = 1,
                                                    .features = 5,
                                                    .hidden = 7,
                                                    .vocabulary = 30,
                                                    .embeddings = Embeddings::Separate,
                                                    .softmax = {.cutoffs = {4, 9, 20}, .divisor = 1.5}}));
  std::map<std::string, Shape> decoder;
  for (const auto& [name, shape] : found) {
    if (name.starts_with("decoder.")) decoder[name] = shape;
  }
  EXPECT_EQ(decoder, (std::map<std::string, Shape>{{"decoder.head.weight", {7, 7}},
                                                   {"decoder.tail.0.0.weight", {4, 7}},
                                                   {"decoder.tail.0.1.weight", {5, 4}},
                                                   {"decoder.tail.1.0.weight", {3, 7}},
                                                   {"decoder.tail.1.1.weight", {11, 3}},
                                                   {"decoder.tail.2.0.weight", {2, 7}},
                                                   {"decoder.tail.2.1.weight", {10, 2}}}));
}

TEST(LanguageModels, S2vtHasItsAuthorsLayersAndInitialValues) {
  const LayeredModel model =
      s2vt_model({.frame_features = 12, .features = 5, .hidden = 7, .vocabulary = 11, .dropout = 0.5});
  EXPECT_EQ(own_parameters(model), (std::map<std::string, Shape>{{"embed_encoder.weight", {5, 12}},
                                                                 {"embed_encoder.bias", {5}},
                                                                 {"embedding.weight", {11, 5}},
                                                                 {"lstm1.weight_ih_l0", {28, 5}},
                                                                 {"lstm1.weight_hh_l0", {28, 7}},
                                                                 {"lstm1.bias_ih_l0", {28}},
                                                                 {"lstm1.bias_hh_l0", {28}},
                                                                 {"lstm2.weight_ih_l0", {28, 13}},
                                                                 {"lstm2.weight_hh_l0", {28, 7}},
                                                                 {"lstm2.bias_ih_l0", {28}},
                                                                 {"lstm2.bias_hh_l0", {28}},
                                                                 {"predict.weight", {11, 7}},
                                                                 {"predict.bias", {11}}}));
  EXPECT_EQ(model.layer_names(),
            (std::vector<std::string>{"dropFc7", "embed_encoder", "lstm1", "drop_lstm1", "embedding",
                                      "drop_input_en", "concat", "stage_indicator", "lstm2", "drop_lstm2",
                                      "predict"}));
  for (const NamedLayer& layer : model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      const std::string name = layer.parameter_name(spec);
      if (name == "embed_encoder.weight") {
        EXPECT_EQ(spec.a, 0.5);
      } else if (name == "embed_encoder.bias") {
        EXPECT_TRUE(spec.init == Init::Constant && spec.a == 0.2);
      } else if (name.find("bias") != std::string::npos) {
        EXPECT_EQ(spec.init, Init::Zeros) << name;
      } else {
        EXPECT_TRUE(spec.init == Init::Uniform && spec.a == 0.08) << name;
      }
    }
  }
}

TEST(LanguageModels, AreWholeInEveryForm) {
  std::vector<LayeredModel> models;
  for (const Embeddings embeddings : {Embeddings::Separate, Embeddings::Shared}) {
    for (const GnmtForm form : {GnmtForm::PipeDream, GnmtForm::MLPerf})
      models.push_back(gnmt_model({.hidden = 8, .vocabulary = 30, .embeddings = embeddings, .form = form}));
    models.push_back(transformer_lm_model({.embeddings = embeddings}));
    const LayeredModel scaled = transformer_lm_model({.embeddings = embeddings, .max_norm = 1});
    EXPECT_EQ(validate(scaled).empty(), embeddings == Embeddings::Separate)
        << "scaled rows of a shared matrix are not seen by its other use";
    models.push_back(awd_lstm_model({.layers = 2, .features = 6, .hidden = 9, .embeddings = embeddings}));
    models.push_back(awd_lstm_model({.layers = 1,
                                     .features = 6,
                                     .dropout = 0,
                                     .hidden_dropout = 0,
                                     .input_dropout = 0,
                                     .embedding_dropout = 0,
                                     .weight_drop = 0,
                                     .activation_penalty = 0,
                                     .change_penalty = 0,
                                     .embeddings = embeddings}));
  }
  for (const double dropout : {0.0, 0.5})
    models.push_back(s2vt_model({.frame_features = 6, .features = 4, .hidden = 8, .dropout = dropout}));
  models.push_back(bert_model({.layers = 2, .hidden = 16, .heads = 4, .gelu = GeluForm::Tanh}));
  for (const LayeredModel& model : models) {
    EXPECT_TRUE(validate(model).empty()) << to_string(validate(model));
    const auto layout =
        make_layout(model, uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::GPipe), 2);
    ASSERT_TRUE(layout) << to_string(layout.problems());
  }
}

TEST(LanguageModels, RefuseSizesThatDoNotFit) {
  EXPECT_NE(to_string(make_model("bert_base", {{"heads", "7"}}).problems()).find("--heads"),
            std::string::npos);
  EXPECT_NE(to_string(make_model("bert_base", {{"length", "600"}}).problems()).find("--positions"),
            std::string::npos);
  EXPECT_FALSE(make_model("transformer_lm", {{"hidden", "7"}, {"heads", "1"}}));
  for (const char* model : {"transformer_lm", "awd_lstm"})
    EXPECT_NE(to_string(make_model(model, {{"embeddings", "shared"}, {"max-norm", "1"}}).problems())
                  .find("give --embeddings separate"),
              std::string::npos);
  EXPECT_FALSE(make_model("gnmt", {{"layers", "1"}}));
  const auto refused = [](const char* model, GivenOptions options, const char* part) {
    options.push_back({"softmax", "adaptive"});
    const auto made = make_model(model, options);
    ASSERT_FALSE(made) << part;
    EXPECT_NE(to_string(made.problems()).find(part), std::string::npos) << to_string(made.problems());
  };
  refused("awd_lstm", {}, "--embeddings separate");  // embeddings are shared by default
  refused("transformer_lm", {{"embeddings", "shared"}}, "--embeddings separate");
  refused("transformer_lm", {{"vocabulary", "10000"}}, "--cutoffs");
  refused("transformer_lm", {{"cutoffs", "200,100"}}, "rising");
  refused("transformer_lm", {{"cutoffs", "0,100"}}, "out of range");
  refused("transformer_lm", {{"cutoffs", "100,"}}, "rising");
  refused("transformer_lm", {{"divisor", "12"}}, "--divisor");
  EXPECT_TRUE(make_model("transformer_lm", {{"softmax", "adaptive"}, {"cutoffs", "1"}}));
}

}  // namespace
}  // namespace millrace
