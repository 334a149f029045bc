// Copies of weights in the order that kernels read: made for a version, gone with it, in no plan's bits.
#include "runtime/device/host_memory.h"
#include "runtime/kernels/linear_kernels.h"
#include "runtime/profile/profiler.h"
#include "runtime/stage/parameter_store.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

/// A linear layer that asks for a transposed copy of its weight on every processor. linear() asks only where
/// the kernels that this processor's BLAS allows gain by it.
class AlwaysCopied final : public Layer {
 public:
  explicit AlwaysCopied(LayerPtr layer) : layer_(std::move(layer)) {}
  std::string kind() const override { return layer_->kind(); }
  CastPolicy cast_policy() const override { return layer_->cast_policy(); }
  std::vector<ParameterSpec> parameters() const override { return layer_->parameters(); }
  Shape output_shape(std::span<const Shape> inputs) const override { return layer_->output_shape(inputs); }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p,
                     std::span<at::Tensor> buffers, const CallContext& context, Saved* saved) const override {
    return layer_->forward(inputs, p.first(2), buffers, context, saved);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    return layer_->backward_input(grad, p.first(2), saved, needs);
  }
  void backward_weight(const at::Tensor& grad, Saved& saved, std::span<at::Tensor> grads) const override {
    layer_->backward_weight(grad, saved, grads);
  }
  std::vector<at::Tensor> copies(const Shape&, std::span<const at::Tensor> p) const override {
    if (p[0].scalar_type() != at::kFloat) return {};
    return {transposed_copy(p[0])};
  }

 private:
  LayerPtr layer_;
};

LayeredModel copied_model() {
  LayeredModel model = small_model();
  for (NamedLayer& layer : model.layers)
    if (layer.layer->kind() == "linear") layer.layer = std::make_shared<AlwaysCopied>(layer.layer);
  return model;
}

class WeightCopies : public Pipeline {
 protected:
  static StageLayout layout_of(const LayeredModel& model) {
    return *make_layout(model, uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB),
                        kMicrobatch);
  }
  /// Expects the copy of the weight in small_model's first layer.
  static void expect_copy(const ParameterStore& store, VersionId version, const at::Tensor& weight) {
    const auto parameters = store.parameters(version, 0);
    ASSERT_EQ(parameters.size(), 3);
    EXPECT_TRUE(at::equal(parameters[0], weight));
    EXPECT_TRUE(at::equal(parameters[2], weight.t()));
  }
};

TEST_F(WeightCopies, FollowTheVersion) {
  const at::NoGradGuard no_grad;
  const StageLayout layout = layout_of(copied_model());
  ParameterStore store(layout, StageId(0), 1);
  EXPECT_EQ(store.current_parameters(0).size(), 2) << "nobody asked";
  store.make_copies(layout, StageId(0), 1);
  EXPECT_EQ(store.current_parameters(0).size(), 2) << "one reader is too few";
  store.make_copies(layout, StageId(0), 8);
  const at::Tensor weight = store.current_parameters(0)[0].clone();
  expect_copy(store, store.current(), weight);
  EXPECT_EQ(store.current_parameters(1).size(), 0) << "a layer without weights";
  EXPECT_EQ(store.bytes_of_copies(0), weight.nbytes());

  const auto halve = [](const at::Tensor& weights, const at::Tensor&) { weights.mul_(0.5); };
  store.publish(halve);  // updates in place
  expect_copy(store, store.current(), weight.mul(0.5));
  store.pin(MicrobatchId(1));
  const VersionId pinned = store.current();
  store.publish(halve);  // beside the pinned version
  expect_copy(store, pinned, weight.mul(0.5));
  expect_copy(store, store.current(), weight.mul(0.25));
  store.release(MicrobatchId(1));
  store.flat_weights().mul_(2);
  store.weights_changed();
  expect_copy(store, store.current(), weight.mul(0.5));
}

TEST_F(WeightCopies, AreNotOfTiedWeightsNorOfOtherTypes) {
  LayeredModel model = copied_model();
  model.layers[4].tied = {{"weight", "c.weight"}};
  const StageLayout layout = layout_of(model);
  ParameterStore store(layout, StageId(0), 1);
  store.make_copies(layout, StageId(0), 8);
  EXPECT_EQ(store.current_parameters(2).size(), 3);
  EXPECT_EQ(store.current_parameters(4).size(), 2);
  ParameterStore wide(layout, StageId(0), 1, at::kCPU, at::kDouble);
  wide.make_copies(layout, StageId(0), 8);
  EXPECT_EQ(wide.current_parameters(2).size(), 2);
}

TEST_F(WeightCopies, AreInNoPlansBits) {
  for (const LayeredModel& model : {small_model(), copied_model()}) {
    const auto stages_of_two = [&](ScheduleKind kind) {
      return uniform_plan(model.name, model.layer_names(), 2, 1, 8, kind);
    };
    const Outcome one = train(
        model, uniform_plan(model.name, model.layer_names(), 1, 1, 8, ScheduleKind::OneFOneB), options(6));
    for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZeroBubbleH1})
      expect_equal(train(model, stages_of_two(kind), options(6)), one, to_string(kind));
  }
}

TEST_F(WeightCopies, AreInTheProfile) {
  SteadyClock clock;
  const LayerGraph graph =
      profile_model(copied_model(), {.microbatch = kMicrobatch, .warmup = 1, .repetitions = 1, .blocks = 1},
                    clock, *device_);
  EXPECT_EQ(graph.nodes[0].lowered_bytes, 12 * 16 * 4);
  EXPECT_EQ(graph.nodes[1].lowered_bytes, 0);
}

// The peak of a small model would else be that of the first microbatch, which tries kernels.
TEST(KernelTrials, TakeNoMemoryOfTensors) {
  install_host_allocator();
  reset_host_peak();
  const std::int64_t before = host_memory().live;
  linear_kernels(5, 211, 307);
  EXPECT_LT(host_memory().peak - before, 211 * 307 * 4 / 4);
}

}  // namespace
}  // namespace millrace
