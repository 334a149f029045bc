// DLRM, which predicts clicks (arXiv 1906.00091), with the names of Meta's dlrm_s_pytorch. Dense features go
// through the bottom MLP, each categorical one through a table. All pairs of these vectors are multiplied,
// and the top MLP turns the products into a score.
#include <cmath>

#include "models/model.h"
#include "runtime/layers/interaction_layers.h"
#include "runtime/layers/sequence_layers.h"

namespace millrace {
namespace {

constexpr std::int64_t kDenseFeatures = 13, kMostRows = std::int64_t{1} << 31;

/// Table rows of Criteo's data after three ways of numbering its values (docs/dlrm.md).
const std::vector<std::int64_t>& published_rows(const std::string& name) {
  static const std::map<std::string, std::vector<std::int64_t>> kRows{
      // The I/O kit's generator: values modulo 10 million.
      {"kit",
       {10000000, 38985, 17278, 7418, 20242, 3,  7120,     1543,    63,       9999978, 2642264, 397262, 10,
        2208,     11931, 155,   4,    976,   14, 10000000, 9832963, 10000000, 573162,  12969,   108,    36}},
      // MLPerf: values modulo 40 million.
      {"mlperf", {39884406, 39043,    17289,    7420,     20263,  3,     7120, 1543, 63,
                  38532951, 2953546,  403346,   10,       2208,   11938, 155,  4,    976,
                  14,       39979771, 25641295, 39664984, 585935, 12972, 108,  36}},
      // NVIDIA: values that occur at least 15 times.
      {"threshold",
       {7912889, 33823, 17139, 7339, 20046, 4,  7105,    1382,    63,      5554114, 582469, 245828, 11,
        2209,    10667, 104,   4,    968,   15, 8165896, 2675940, 7156453, 302516,  12022,  97,     35}}};
  return kRows.at(name);
}

/// Both references initialise their MLPs like this: weights and biases normal.
LayerPtr mlp_layer(std::int64_t in, std::int64_t out) {
  return linear(in, out,
                {.weight = Init::Normal,
                 .weight_a = std::sqrt(2.0 / double(in + out)),
                 .bias = Init::Normal,
                 .bias_a = std::sqrt(1.0 / double(out))});
}

/// Appends PREFIX.0, PREFIX.1 (ReLU), PREFIX.2, ... Returns the number of the name that is free next.
/// `last_default` gives the last layer PyTorch's default initial values.
int add_mlp(Chain& chain, const std::string& prefix, std::int64_t in, const std::vector<std::int64_t>& widths,
            bool relu_at_end, bool last_default) {
  int number = 0;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const bool last = i + 1 == widths.size();
    chain.then(prefix + std::to_string(number++),
               last && last_default ? linear(in, widths[i]) : mlp_layer(in, widths[i]));
    if (!last || relu_at_end) chain.then(prefix + std::to_string(number++), relu());
    in = widths[i];
  }
  return number;
}

Result<LayeredModel> make_dlrm(const ModelOptions& options) {
  std::vector<std::int64_t> rows = options.integers("table-rows");
  if (rows == std::vector<std::int64_t>{0}) rows = published_rows(options.text("tables"));
  const std::vector<std::int64_t> bottom = options.integers("bottom"), top = options.integers("top");
  const std::int64_t cap = options.integer("table-rows-cap"), dense = options.integer("dense-features");
  Problems problems;
  if (std::ranges::find(rows, 0) != rows.end())
    problems.push_back(
        {"--table-rows", "has a table of 0 rows", "give the rows of each table, or a single 0"});
  if (top.back() != 1)
    problems.push_back({"--top", "ends in " + std::to_string(top.back()) + " scores",
                        "its last number must be 1, the score of a click"});
  if (!problems.empty()) return problems;

  const bool nvidia = options.text("reference") == "nvidia";
  const std::int64_t features = bottom.back(), vectors = std::ssize(rows) + 1;
  constexpr auto kClicks = SampleForm::Clicks;
  LayeredModel model{.name = "dlrm", .fields = {{.name = "dense", .shape = {dense}, .form = kClicks}}};
  Chain chain(model);
  std::vector<std::string> made;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const std::string number = std::to_string(k);
    const bool capped = cap > 0 && rows[k] >= cap;
    const std::int64_t kept = capped ? cap : rows[k];
    model.fields.push_back(
        {.name = "category" + number, .dtype = at::kLong, .limit = kept, .form = kClicks, .wraps = capped});
    made.push_back(chain.then(
        "emb_l." + number,
        embedding({.vocabulary = kept, .features = features, .range = 1 / std::sqrt(double(kept))}),
        model.fields.back().name));
  }
  model.fields.push_back({.name = "label", .dtype = at::kLong, .limit = 2, .form = kClicks});
  chain.go_back_to("dense");
  add_mlp(chain, "bot_l.", dense, bottom, /*relu_at_end=*/true, /*last_default=*/false);
  made.insert(made.begin(), chain.last());
  const std::int64_t padding = nvidia ? 1 : 0;
  chain.join("interaction", dot_interaction(padding), made);
  const int next = add_mlp(chain, "top_l.", features + vectors * (vectors - 1) / 2 + padding, top,
                           /*relu_at_end=*/false, /*last_default=*/nvidia);
  if (!nvidia) chain.then("top_l." + std::to_string(next), sigmoid_layer());
  model.heads = {{"loss",
                  binary_cross_entropy_head(nvidia ? BinaryScores::Logits : BinaryScores::Probabilities),
                  {chain.last(), "label"}}};
  return model;
}

}  // namespace

std::vector<Model> dlrm_models() {
  return {
      {{.name = "dlrm",
        .summary = "DLRM: chances of clicks from dense and categorical features (arXiv 1906.00091).",
        .options =
            {choice_option("reference", "meta", {"meta", "nvidia"},
                           "meta: probabilities, as in dlrm_s_pytorch; nvidia: logits, and a zero "
                           "behind the products."),
             choice_option("tables", "kit", {"kit", "mlperf", "threshold"},
                           "Rows of the 26 tables for Criteo's terabyte: values modulo 10 million, "
                           "modulo 40 million, or those that occur 15 times."),
             sizes_option("table-rows", {0}, {0, kMostRows},
                          "Rows of each table, one number for each categorical feature; 0: those of "
                          "--tables.",
                          "ROWS,..."),
             integer_option("table-rows-cap", 0, {0, kMostRows},
                            "Most rows of a table; the data's indices are taken modulo it. 0: no cap."),
             integer_option("dense-features", kDenseFeatures, {1, 1 << 16}, "Dense features of a sample."),
             sizes_option("bottom", {512, 256, 128}, {1, 1 << 16},
                          "Widths of the bottom MLP; the last one is also the width of the tables.",
                          "WIDTH,..."),
             sizes_option("top", {1024, 1024, 512, 256, 1}, {1, 1 << 16},
                          "Widths of the top MLP; the last one is 1.", "WIDTH,...")}},
       make_dlrm}};
}

}  // namespace millrace
