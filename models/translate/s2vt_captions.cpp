#include "models/translate/s2vt_captions.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "models/language_models.h"
#include "runtime/base/check.h"

namespace millrace {
namespace {

constexpr const char* kScores = "predict";

}  // namespace

/// Gives the next words of videos. Each row is a hypothesis with its own states of both LSTMs.
class S2vtCaptioner::Speaker final : public NextWords {
 public:
  Speaker(const S2vtCaptioner& of, const std::vector<at::Tensor>& videos, std::int64_t limit) : of_(of) {
    const std::int64_t words = limit > 0 ? std::min(limit, of.vocabulary_) : of.vocabulary_;
    for (const at::Tensor& parameter : of.layers_.back().parameters)
      scores_.push_back(parameter.narrow(0, 0, words));
    see(videos);
  }

  Step step(const at::Tensor& words) override {
    const std::int64_t rows = words.size(0);
    TensorsByName values{{"frames", at::zeros({rows, of_.frame_features_})}, {"tokens", words}};
    for (const auto& [layer, parameters] : of_.layers_)
      values[layer.name] = step_of(layer, layer.name == kScores ? scores_ : parameters, values, states_);
    return {values.at(kScores), at::zeros({rows, 0})};
  }

  void reorder(const at::Tensor& from) override { millrace::reorder(states_, from); }

 private:
  /// Reads the videos frame by frame. The states of videos that have no more frames stay.
  void see(const std::vector<at::Tensor>& videos) {
    std::int64_t longest = 0;
    for (const at::Tensor& video : videos) longest = std::max(longest, video.size(0));
    const auto all = static_cast<std::int64_t>(videos.size());
    for (const auto& [layer, parameters] : of_.layers_) {
      if (layer.layer->kind() != "lstm") continue;
      const std::int64_t hidden = parameters[1].size(1);  // weight_hh [4H, H]
      states_[layer.name] = {at::zeros({all, hidden}), at::zeros({all, hidden})};
    }
    for (std::int64_t t = 0; t < longest; ++t) {
      std::vector<at::Tensor> frames;
      std::vector<std::int64_t> rows;
      for (std::int64_t v = 0; v < all; ++v) {
        const at::Tensor& video = videos[v];
        if (t >= video.size(0)) continue;
        frames.push_back(video[t]);
        rows.push_back(v);
      }
      at::Tensor of = at::empty({static_cast<std::int64_t>(rows.size())}, at::kLong);
      std::ranges::copy(rows, of.mutable_data_ptr<std::int64_t>());
      see_frame(at::stack(frames), of);
    }
  }

  void see_frame(const at::Tensor& frames, const at::Tensor& rows) {
    TensorsByName values{{"frames", frames}, {"tokens", at::zeros({rows.size(0)}, at::kLong)}};
    LstmStates some = states_;
    millrace::reorder(some, rows);
    for (const auto& [layer, parameters] : of_.layers_) {
      if (layer.name != kScores) values[layer.name] = step_of(layer, parameters, values, some);
    }
    for (auto& [layer, state] : states_) {
      state.h.index_copy_(0, rows, some.at(layer).h);
      state.c.index_copy_(0, rows, some.at(layer).c);
    }
  }

  const S2vtCaptioner& of_;
  std::vector<at::Tensor> scores_;  // weight and bias of the words below the limit
  LstmStates states_;
};

Result<S2vtCaptioner> S2vtCaptioner::from(const WeightFiles& files) {
  const FindWeight find = finder_of(files);
  const std::string first = files.empty() ? "" : files.front()->path();
  const auto shape_of = [&](const char* name) {
    const std::optional<FoundWeight> found = find({name});
    return found && found->shape.size() == 2 ? found->shape : Shape{0, 0};
  };
  const Shape frames = shape_of("embed_encoder.weight"), words = shape_of("embedding.weight"),
              hidden = shape_of("lstm1.weight_hh_l0");
  if (frames[1] < 1 || words[0] < 1 || words[1] < 1 || hidden[1] < 1) {
    return Problem{first, "has no tensors embed_encoder.weight, embedding.weight and lstm1.weight_hh_l0",
                   "captions take weights of s2vt"};
  }
  S2vtCaptioner made;
  made.vocabulary_ = words[0];
  made.frame_features_ = frames[1];
  Result<std::vector<HeldLayer>> layers = hold_layers(
      s2vt_model(
          {.frame_features = frames[1], .features = words[1], .hidden = hidden[1], .vocabulary = words[0]}),
      find, first,
      "S2VT of " + std::to_string(hidden[1]) + " units and " + std::to_string(words[0]) + " tokens",
      [](const std::string&) { return true; });
  if (!layers) return layers.problems();
  made.layers_ = *std::move(layers);
  MILLRACE_CHECK(made.layers_.back().layer.name == kScores);
  return made;
}

std::unique_ptr<NextWords> S2vtCaptioner::begin(const std::vector<at::Tensor>& videos,
                                                std::int64_t limit) const {
  const at::NoGradGuard no_grad;
  return std::make_unique<Speaker>(*this, videos, limit);
}

}  // namespace millrace
