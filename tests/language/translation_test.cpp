// The search against golden values and against itself done plainly: a sentence at a time, the whole prefix
// again for every word of every beam.
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include "models/language_models.h"
#include "models/translate/gnmt_pipeline.h"
#include "models/translate/s2vt_captions.h"
#include "runtime/base/error.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/comm/rank_threads.h"

namespace millrace {
namespace {

constexpr std::uint32_t kBegin = 2, kEnd = 3;

/// The next word depends on the last one alone. Words: 0 a, 1 b, 3 end.
class Markov final : public NextWords {
 public:
  /// For one last word (begin, a or b): odds of end, a and b, and the attention on three source words.
  struct Row {
    double end, a, b;
    double attention[3];
  };
  explicit Markov(std::array<Row, 3> rows) : rows_(rows) {}
  Step step(const at::Tensor& words) override {
    Step result{at::zeros({words.size(0), 4}), at::zeros({words.size(0), 3})};
    for (std::int64_t r = 0; r < words.size(0); ++r) {
      const auto word = words[r].item<std::int64_t>();
      const Row& row = rows_[word == kBegin ? 0 : static_cast<std::size_t>(word) + 1];
      const double odds[] = {row.a, row.b, 0, row.end};
      const double sum = row.attention[0] + row.attention[1] + row.attention[2];
      for (int i = 0; i < 4; ++i) result.logits[r][i] = std::log(odds[i]);
      for (int i = 0; i < 3; ++i) result.attention[r][i] = row.attention[i] / sum;
    }
    return result;
  }
  void reorder(const at::Tensor&) override {}

 private:
  std::array<Row, 3> rows_;
};

constexpr std::array<Markov::Row, 3> kChain{
    {{.1, .5, .4, {.7, .2, .1}}, {.3, .2, .5, {.1, .8, .1}}, {.6, .3, .1, {.2, .2, .6}}}};

std::vector<Hypothesis> searched(const std::array<Markov::Row, 3>& chain, const BeamOptions& options) {
  Markov model(chain);
  return beam_search(model, 1, options)[0];
}

TEST(BeamSearch, ScoresOfMlperfsGenerator) {
  const auto check = [](const BeamOptions& options, std::vector<std::uint32_t> words, double best,
                        double second) {
    const auto found = searched(kChain, options);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[0].words, words);
    EXPECT_NEAR(found[0].score, best, 1e-6);
    EXPECT_NEAR(found[1].score, second, 1e-6);
    EXPECT_TRUE(found[0].finished);
  };
  check({.beam = 2, .longest = 8, .coverage = Coverage::Compat}, {1}, -1.223185, -1.625275);
  check({.beam = 2, .longest = 8}, {1}, -1.338703, -1.509756);
  check({.beam = 2, .longest = 8, .coverage_penalty = 0}, {1}, -1.200870, -1.487442);
  EXPECT_EQ(searched(kChain, {.beam = 1, .longest = 8})[0].words, (std::vector<std::uint32_t>{0, 1}));
  const auto cut = searched(kChain, {.beam = 2, .longest = 3});
  EXPECT_EQ(cut[0].words, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_NEAR(cut[0].score, -1.386294, 1e-6);
  EXPECT_FALSE(cut[0].finished);
}

TEST(BeamSearch, CoverageThatIsNotReorderedPicksAnother) {
  constexpr std::array<Markov::Row, 3> chain{
      {{4, 4, 8, {4, 6, 8}}, {6, 1, 1, {6, 6, 2}}, {5, 8, 5, {4, 2, 4}}}};
  const auto compat = searched(chain, {.beam = 2, .longest = 8, .coverage = Coverage::Compat});
  EXPECT_TRUE(compat[0].words.empty());
  EXPECT_NEAR(compat[0].score, -1.391041, 1e-6);
  const auto exact = searched(chain, {.beam = 2, .longest = 8});
  EXPECT_EQ(exact[0].words, (std::vector<std::uint32_t>{1, 0}));
  EXPECT_NEAR(exact[0].score, -1.409996, 1e-6);
}

using Weights = std::map<std::string, at::Tensor>;

Weights random_weights(const LayeredModel& model) {
  Weights weights;
  for (const NamedLayer& layer : model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      if (layer.tied.empty()) weights[layer.parameter_name(spec)] = at::randn(spec.shape).mul_(0.7);
    }
  }
  weights["decoder.classifier.classifier.bias"].narrow(0, kEnd, 1).add_(1.5);  // so that sentences end
  return weights;
}

/// The search as it is written down, over the model's own layers, which know nothing of steps.
class PlainSearch {
 public:
  PlainSearch(const LayeredModel& model, const Weights& weights, const BeamOptions& options)
      : model_(model), weights_(weights), o_(options) {}

  Hypothesis run(const std::vector<std::uint32_t>& source) {
    const auto k = static_cast<std::size_t>(o_.beam);
    std::vector<std::vector<std::uint32_t>> words(k, {kBegin});
    std::vector<double> scores(k, 0);
    std::vector<std::int64_t> lengths(k, 1);
    std::vector<std::vector<double>> coverage(k, std::vector<double>(source.size(), 0));
    const auto finished = [&](std::size_t b) { return words[b].back() == kEnd; };
    bool penalties = false;
    for (std::int64_t t = 1; t < o_.longest; ++t) {
      bool all = true;
      for (std::size_t b = 0; b < k; ++b) all = all && finished(b);
      if ((penalties = all)) break;
      struct Choice {
        double score;
        std::size_t beam;
        std::uint32_t word;
      };
      std::vector<Choice> choices;
      std::vector<std::vector<double>> attention(k, std::vector<double>(source.size(), 0));
      for (std::size_t b = 0; b < k; ++b) {
        if (finished(b)) {
          choices.push_back({scores[b], b, kEnd});
          continue;
        }
        ++lengths[b];
        const std::vector<double> next = next_words(source, words[b], attention[b]);
        if (t == 1 && b > 0) continue;
        for (std::size_t v = 0; v < next.size(); ++v)
          choices.push_back({scores[b] + next[v], b, static_cast<std::uint32_t>(v)});
      }
      for (std::size_t b = 0; b < k; ++b)
        for (std::size_t i = 0; i < source.size(); ++i) coverage[b][i] += attention[b][i];
      std::ranges::stable_sort(choices, std::ranges::greater{}, &Choice::score);
      const auto words_before = words;
      const auto lengths_before = lengths;
      const auto coverage_before = coverage;
      for (std::size_t b = 0; b < k; ++b) {
        words[b] = words_before[choices[b].beam];
        words[b].push_back(choices[b].word);
        lengths[b] = lengths_before[choices[b].beam];
        if (o_.coverage == Coverage::Exact) coverage[b] = coverage_before[choices[b].beam];
        scores[b] = choices[b].score;
      }
    }
    std::size_t best = 0;
    for (std::size_t b = 0; b < k; ++b) {
      if (penalties && k > 1) {
        scores[b] /= std::pow((5.0 + double(lengths[b])) / 6.0, 0.6);
        for (const double sum : coverage[b]) scores[b] += sum > 0 ? 0.1 * std::log(std::min(1.0, sum)) : 0;
      }
      if (scores[b] > scores[best]) best = b;
    }
    Hypothesis result{.score = scores[best], .finished = finished(best)};
    for (std::size_t i = 1; i < words[best].size() && words[best][i] != kEnd; ++i)
      result.words.push_back(words[best][i]);
    return result;
  }

 private:
  static at::Tensor column(const std::vector<std::uint32_t>& words) {
    at::Tensor tensor = at::zeros({static_cast<std::int64_t>(words.size()), 1}, at::kLong);
    for (std::size_t i = 0; i < words.size(); ++i)
      tensor[static_cast<std::int64_t>(i)][0] = std::int64_t{words[i]};
    return tensor;
  }

  /// Log-probabilities after `prefix`; the attention of its last word.
  std::vector<double> next_words(const std::vector<std::uint32_t>& source,
                                 const std::vector<std::uint32_t>& prefix, std::vector<double>& attention) {
    std::map<std::string, at::Tensor> values{{"source", column(source)}, {"target", column(prefix)}};
    std::string encoded;
    for (const NamedLayer& layer : model_.layers) {
      std::vector<at::Tensor> inputs, parameters;
      for (const std::string& input : layer.inputs) inputs.push_back(values.at(input));
      for (const ParameterSpec& spec : layer.layer->parameters())
        parameters.push_back(
            weights_.at(layer.tied.empty() ? layer.parameter_name(spec) : layer.tied.front().second));
      values[layer.name] = layer.layer->forward(inputs, parameters, {}, {.training = false}, nullptr);
      if (layer.name.starts_with("encoder.")) encoded = layer.name;
    }
    attend(values.at(encoded), values.at("decoder.att_rnn.rnn")[-1][0], attention);
    const at::Tensor logits = values.at(model_.layers.back().name)[-1][0];
    const at::Tensor next = at::log_softmax(logits, 0).to(at::kDouble);
    const double* first = next.const_data_ptr<double>();
    return {first, first + next.numel()};
  }

  void attend(const at::Tensor& encoded, const at::Tensor& query, std::vector<double>& attention) {
    const auto of = [&](const char* name) {
      return weights_.at(std::string("decoder.att_rnn.attn.") + name);
    };
    const at::Tensor v = of("linear_att"), direction = v.mul(of("normalize_scalar").div(v.norm()));
    double sum = 0;
    for (std::size_t i = 0; i < attention.size(); ++i) {
      const at::Tensor key = of("linear_k.weight").mv(encoded[static_cast<std::int64_t>(i)][0]);
      const at::Tensor z = of("linear_q.weight").mv(query).add(key).add(of("normalize_bias")).tanh();
      sum += attention[i] = std::exp(z.dot(direction).item<double>());
    }
    for (double& share : attention) share /= sum;
  }

  const LayeredModel& model_;
  const Weights& weights_;
  BeamOptions o_;
};

TEST(BeamSearch, EqualsThePlainSearchOverTheModelsLayers) {
  const at::NoGradGuard no_grad;
  const auto path = std::filesystem::temp_directory_path() / ("translation-" + std::to_string(::getpid()));
  int cut = 0, ended = 0;
  for (const auto& [layers, embeddings] : {std::pair{2, Embeddings::Shared}, {4, Embeddings::Separate}}) {
    at::manual_seed(layers);
    const LayeredModel model = gnmt_model(
        {.layers = layers, .hidden = 8, .vocabulary = 29, .dropout = 0.3, .embeddings = embeddings});
    const Weights weights = random_weights(model);
    write_safetensors(path, {weights.begin(), weights.end()});
    const auto file = SafetensorsFile::open(path);
    ASSERT_TRUE(file);
    const auto translator = GnmtTranslator::from({&*file});
    ASSERT_TRUE(translator) << to_string(translator.problems());
    std::vector<std::vector<std::uint32_t>> sources;  // sentences of 1 to 9 words, not sorted
    for (std::uint32_t s = 0; s < 8; ++s) {
      sources.push_back({kBegin});
      for (std::uint32_t i = 0; i < 1 + (s * 7) % 9; ++i)
        sources.back().push_back(4 + (s * 11 + i * i * 5 + i) % 25);
      sources.back().push_back(kEnd);
    }
    for (const int beam : {1, 2, 5}) {
      for (const Coverage coverage : {Coverage::Exact, Coverage::Compat}) {
        if (beam == 1 && coverage == Coverage::Compat) continue;  // no penalties
        const BeamOptions options{.beam = beam, .longest = 9, .coverage = coverage};
        const auto batch = translator->begin(sources);
        const auto found = beam_search(*batch, static_cast<std::int64_t>(sources.size()), options);
        PlainSearch plain(model, weights, options);
        for (std::size_t s = 0; s < sources.size(); ++s) {
          const Hypothesis expected = plain.run(sources[s]);
          EXPECT_EQ(found[s][0].words, expected.words)
              << layers << " layers, beam " << beam << ", sentence " << s;
          EXPECT_NEAR(found[s][0].score, expected.score, 1e-4);
          ++(expected.finished ? ended : cut);
        }
      }
    }
  }
  EXPECT_GT(cut, 5);
  EXPECT_GT(ended, 30);
  std::filesystem::remove(path);
}

/// A GNMT in a file, batches of sentences of odd sizes, and what one process makes of them.
class InStages : public ::testing::Test {
 protected:
  using Found = std::vector<std::vector<std::vector<Hypothesis>>>;  // [batch][sentence]
  static constexpr std::int64_t kLimit = 57;                        // the vocabulary has 61 words

  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("stages-" + std::to_string(::getpid()));
    at::manual_seed(7);
    const at::NoGradGuard no_grad;
    const Weights weights = random_weights(
        gnmt_model({.layers = 3, .hidden = 24, .vocabulary = 61, .embeddings = Embeddings::Shared}));
    write_safetensors(path_, {weights.begin(), weights.end()});
    file_.emplace(*SafetensorsFile::open(path_));
    model_ = *GnmtTranslator::model_of({&*file_});
    std::uint32_t s = 0;
    for (const std::size_t sentences : {5u, 3u, 1u, 7u, 2u, 1u, 4u}) {
      batches_.emplace_back();
      for (std::size_t i = 0; i < sentences; ++i, ++s) {
        batches_.back().push_back({kBegin});
        for (std::uint32_t w = 0; w < 1 + (s * 7) % 9; ++w)
          batches_.back().back().push_back(4 + (s * 11 + w * w * 5 + w) % 50);
        batches_.back().back().push_back(kEnd);
      }
    }
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Found in_one_process(const BeamOptions& search) {
    const auto whole = GnmtTranslator::from({&*file_});
    Found all;
    for (const SentenceIds& batch : batches_) {
      const auto model = whole->begin(batch, kLimit);
      all.push_back(beam_search(*model, static_cast<std::int64_t>(batch.size()), search));
    }
    return all;
  }

  Found over(const GnmtStages& stages, const GnmtPipelineOptions& options) {
    const auto ranks = make_local_communicators(static_cast<int>(stages.size()), std::chrono::seconds(60));
    Found all(batches_.size());
    run_as_threads(ranks, [&](Communicator& communicator) {
      const auto stage = static_cast<std::size_t>(communicator.rank().value);
      const auto mine = GnmtTranslator::from({&*file_}, stages[stage]);
      translate_in_stages(*mine, stages, communicator, batches_, options, [&](std::size_t batch, auto found) {
        EXPECT_EQ(stage + 1, stages.size());
        all[batch] = std::move(found);
      });
    });
    return all;
  }

  static void expect_same(const Found& found, const Found& expected, const std::string& what) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t b = 0; b < found.size(); ++b) {
      ASSERT_EQ(found[b].size(), expected[b].size()) << what << ", batch " << b;
      for (std::size_t s = 0; s < found[b].size(); ++s) {
        ASSERT_EQ(found[b][s].size(), expected[b][s].size());
        for (std::size_t k = 0; k < found[b][s].size(); ++k) {
          EXPECT_EQ(found[b][s][k].words, expected[b][s][k].words) << what << ", batch " << b;
          EXPECT_EQ(found[b][s][k].score, expected[b][s][k].score) << what;  // equal to the last bit
          EXPECT_EQ(found[b][s][k].finished, expected[b][s][k].finished);
        }
      }
    }
  }

  std::filesystem::path path_;
  std::optional<SafetensorsFile> file_;
  LayeredModel model_;
  std::vector<SentenceIds> batches_;
};

TEST_F(InStages, TheSameHypothesesAsOneProcess) {
  for (const BeamOptions& search : {BeamOptions{.beam = 1, .longest = 12},
                                    {.beam = 5, .longest = 12},
                                    {.beam = 3, .longest = 9, .coverage = Coverage::Compat},
                                    {.beam = 4, .longest = 2}}) {
    const Found expected = in_one_process(search);
    for (const int stages : {1, 2, 3, 5, 12}) {
      const auto cut = even_gnmt_stages(model_, stages, search.beam);
      ASSERT_TRUE(cut) << to_string(cut.problems());
      for (const int in_flight : {0, 1, 3}) {
        expect_same(over(*cut, {.search = search, .limit = kLimit, .in_flight = in_flight}), expected,
                    std::to_string(stages) + " stages, " + std::to_string(in_flight) + " in flight, beam " +
                        std::to_string(search.beam));
      }
    }
  }
  batches_.clear();
  EXPECT_TRUE(over(*even_gnmt_stages(model_, 3, 5), {}).empty());
}

/// Stages of the encoder alone, without any layer, of layers that do not follow each other, of one layer
/// each.
TEST_F(InStages, HoweverThePlanCutsIt) {
  const auto plan_of = [&](const std::vector<std::vector<std::string>>& stages) {
    Plan plan{.model = "gnmt"};
    for (const auto& layers : stages) plan.stages.push_back({.layers = layers});
    return plan;
  };
  std::vector<std::string> encoder, decoder;
  std::vector<std::vector<std::string>> each;
  for (const std::string& layer : model_.layer_names()) {
    (layer.starts_with("encoder.") ? encoder : decoder).push_back(layer);
    each.push_back({layer});
  }
  std::vector<std::string> reads = encoder;
  reads.push_back("decoder.embedder");
  const std::vector<std::string> attends{"decoder.att_rnn.rnn", "decoder.att_rnn.attn"};
  std::vector<std::string> rest(decoder.begin() + 3, decoder.end());
  const BeamOptions search{.beam = 3, .longest = 10};
  const Found expected = in_one_process(search);
  for (const auto& stages : {std::vector{encoder, decoder},
                             {reads, attends, rest},
                             each,
                             {encoder, {"decoder.rnn_layers.0.dropout"}, decoder}}) {
    const auto cut = gnmt_stages(model_, plan_of(stages), "plan.json");
    ASSERT_TRUE(cut) << to_string(cut.problems());
    expect_same(over(*cut, {.search = search, .limit = kLimit}), expected,
                "plan of " + std::to_string(stages.size()));
  }
  const auto problems = [&](const std::vector<std::vector<std::string>>& stages) {
    const auto cut = gnmt_stages(model_, plan_of(stages), "plan.json");
    return cut ? std::string("none") : to_string(cut.problems());
  };
  EXPECT_NE(problems({encoder, rest}).find("no stage has layer decoder.embedder"), std::string::npos);
  EXPECT_NE(problems({decoder, encoder}).find("and reads encoder.rnn_layers"), std::string::npos);
  EXPECT_NE(problems({encoder, decoder, {"head"}}).find("the last stage is without"), std::string::npos);
  EXPECT_FALSE(even_gnmt_stages(model_, 100, 1));
}

TEST_F(InStages, AStageThatFailsOrIsLateEndsTheOthers) {
  const GnmtStages stages = *even_gnmt_stages(model_, 3, 5);
  for (const bool late : {false, true}) {
    const auto ranks = make_local_communicators(3, std::chrono::milliseconds(late ? 300 : 60'000));
    std::array<std::string, 3> ends;
    try {
      run_as_threads(ranks, [&](Communicator& communicator) {
        const int me = communicator.rank().value;
        const auto mine = GnmtTranslator::from({&*file_}, stages[me]);
        try {
          if (me == 2 && late) return;
          int done = 0;
          translate_in_stages(*mine, stages, communicator, batches_, {.search = {.beam = 2, .longest = 9}},
                              [&](std::size_t, auto) {
                                if (++done == 2) throw DataError("the disk is full");
                              });
        } catch (const std::exception& error) {
          ends[me] = error.what();
          throw;
        }
      });
      FAIL() << "it ended well";
    } catch (const std::exception&) {
    }
    for (const int other : {0, 1}) {
      const std::string& end = ends[other];
      EXPECT_NE(end.find(late ? "no message after " : "the disk is full"), std::string::npos)
          << other << ": " << end;
    }
  }
}

TEST(BeamSearch, WeightsThatAreNoGnmtAreRefused) {
  const auto path = std::filesystem::temp_directory_path() / ("translation-" + std::to_string(::getpid()));
  const LayeredModel model = gnmt_model({.layers = 2, .hidden = 8, .vocabulary = 29});
  Weights weights = random_weights(model);
  weights["decoder.rnn_layers.0.weight_ih_l0"] = at::zeros({32, 8});
  weights.erase("decoder.att_rnn.attn.linear_att");
  const auto problems_of = [&](const Weights& some) {
    write_safetensors(path, {some.begin(), some.end()});
    const auto file = SafetensorsFile::open(path);
    const auto made = GnmtTranslator::from({&*file});
    return made ? std::string("none") : to_string(made.problems());
  };
  const std::string text = problems_of(weights);
  EXPECT_NE(text.find("decoder.rnn_layers.0.weight_ih_l0 has shape [32, 8]"), std::string::npos) << text;
  EXPECT_NE(text.find("has no tensor decoder.att_rnn.attn.linear_att"), std::string::npos) << text;
  EXPECT_NE(problems_of({{"fc.weight", at::zeros({2, 2})}}).find("has no tensor encoder.embedder.weight"),
            std::string::npos);
  std::filesystem::remove(path);
}

/// Videos of different lengths side by side, against the model's own layers over all steps of one at a time.
TEST(Captions, AreWhatTheModelsLayersSay) {
  const at::NoGradGuard no_grad;
  at::manual_seed(11);
  constexpr std::int64_t kFeatures = 5, kWords = 19;
  const LayeredModel model =
      s2vt_model({.frame_features = kFeatures, .features = 6, .hidden = 8, .vocabulary = kWords});
  Weights weights;
  for (const NamedLayer& layer : model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters())
      weights[layer.parameter_name(spec)] = at::randn(spec.shape).mul_(0.7);
  }
  weights["predict.bias"].narrow(0, kEnd, 1).add_(1);
  std::vector<at::Tensor> videos;
  for (const std::int64_t frames : {3, 7, 1, 4, 7}) videos.push_back(at::randn({frames, kFeatures}));
  /// Log-probabilities of what follows the frames and `words`.
  const auto next = [&](const at::Tensor& video, const std::vector<std::uint32_t>& words) {
    const std::int64_t frames = video.size(0), steps = frames + 1 + static_cast<std::int64_t>(words.size());
    at::Tensor tokens = at::zeros({steps, 1}, at::kLong), shown = at::zeros({steps, 1, kFeatures});
    shown.narrow(0, 0, frames).copy_(video.unsqueeze(1));
    tokens[frames] = std::int64_t{kBegin};
    for (std::size_t i = 0; i < words.size(); ++i)
      tokens[frames + 1 + static_cast<std::int64_t>(i)] = std::int64_t{words[i]};
    std::map<std::string, at::Tensor> values{{"frames", shown}, {"tokens", tokens}};
    for (const NamedLayer& layer : model.layers) {
      std::vector<at::Tensor> inputs, parameters;
      for (const std::string& input : layer.inputs) inputs.push_back(values.at(input));
      for (const ParameterSpec& spec : layer.layer->parameters())
        parameters.push_back(weights.at(layer.parameter_name(spec)));
      values[layer.name] = layer.layer->forward(inputs, parameters, {}, {.training = false}, nullptr);
    }
    return at::log_softmax(values.at("predict")[-1][0], 0).to(at::kDouble);
  };
  const auto path = std::filesystem::temp_directory_path() / ("captions-" + std::to_string(::getpid()));
  write_safetensors(path, {weights.begin(), weights.end()});
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file);
  const auto captioner = S2vtCaptioner::from({&*file});
  ASSERT_TRUE(captioner) << to_string(captioner.problems());
  EXPECT_EQ(captioner->frame_features(), kFeatures);
  for (const int beam : {1, 4}) {
    const auto speaker = captioner->begin(videos);
    const auto found = beam_search(*speaker, static_cast<std::int64_t>(videos.size()),
                                   {.beam = beam, .longest = 8, .length_penalty = 0});
    for (std::size_t v = 0; v < videos.size(); ++v) {
      for (const Hypothesis& one : found[v]) {
        double score = 0;
        std::vector<std::uint32_t> said, words = one.words;
        if (one.finished) words.push_back(kEnd);
        for (const std::uint32_t word : words) {
          const at::Tensor log_probabilities = next(videos[v], said);
          if (beam == 1) {
            EXPECT_EQ(log_probabilities.argmax().item<std::int64_t>(), word);
          }
          score += log_probabilities[word].item<double>();
          said.push_back(word);
        }
        EXPECT_NEAR(one.score, score, 1e-4) << "video " << v << ", beam " << beam;
      }
    }
  }
  weights.erase("lstm2.bias_hh_l0");
  weights["embed_encoder.bias"] = at::zeros({7});
  write_safetensors(path, {weights.begin(), weights.end()});
  const auto broken = SafetensorsFile::open(path);
  const auto refused = S2vtCaptioner::from({&*broken});
  ASSERT_FALSE(refused);
  EXPECT_NE(to_string(refused.problems()).find("has no tensor lstm2.bias_hh_l0"), std::string::npos);
  EXPECT_NE(to_string(refused.problems()).find("embed_encoder.bias has shape [7]"), std::string::npos);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace millrace
