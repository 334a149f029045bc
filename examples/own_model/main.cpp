// A model of one's own on millrace: a layer of which only the forward is written, a LibTorch module as a
// layer, a head, a data set of tensors in memory, an option on the command line.
//   own_model train --model waves --width 64 --data waves --stages 2 --schedule zb-h1 --steps 200
//   own_model launch job.yaml      (or: millrace launch --worker ./own_model job.yaml)
//   own_model by-hand              the same without a command line
#include <ATen/CPUGeneratorImpl.h>
#include <millrace/millrace.h>
#include <torch/torch.h>

#include <cstdio>
#include <string_view>

namespace {

using namespace millrace;

constexpr std::int64_t kInputs = 8;

/// x times the sigmoid of slope x, with a slope for each feature. [B, F] -> [B, F]
class LearnedSwish final : public ForwardLayer {
 public:
  explicit LearnedSwish(std::int64_t features) : features_(features) {}
  std::string kind() const override { return "learned_swish"; }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "slope", .shape = {features_}, .init = Init::Ones}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor compute(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor>, const CallContext&) const override {
    return inputs[0] * torch::sigmoid(parameters[0] * inputs[0]);
  }

 private:
  std::int64_t features_;
};

/// Huber's loss. Inputs: prediction and target [B, 1]. Shows the loss and the mean absolute error.
class HuberHead final : public Head {
 public:
  std::string kind() const override { return "huber"; }
  std::vector<std::string> metrics() const override { return {"loss", "absolute_error"}; }
  void check(std::span<const TensorSpec> inputs) const override {
    if (inputs[0].shape != inputs[1].shape) throw ConfigError("huber: prediction and target differ in shape");
  }
  void forward(std::span<const at::Tensor> in, Saved* saved, std::span<double> sums) const override {
    const at::Tensor error = in[0] - in[1];
    sums[0] += torch::huber_loss(in[0], in[1], at::Reduction::Sum).item<double>();
    sums[1] += error.abs().sum().item<double>();
    sums[2] += static_cast<double>(error.size(0));
    if (saved) saved->tensors = {error};
  }
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    return {saved.tensors[0].clamp(-1, 1) * scale.unit, {}};
  }
};

Result<LayeredModel> make_waves(const ModelOptions& options) {
  const std::int64_t width = options.integer("width");
  LayeredModel model{.name = "waves",
                     .fields = {{.name = "input", .shape = {kInputs}}, {.name = "target", .shape = {1}}}};
  Chain chain(model);
  chain.then("embed", linear(kInputs, width));
  chain.then("gate", std::make_shared<LearnedSwish>(width));
  const auto block = [width] {
    return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::GELU(), torch::nn::Dropout(0.1),
                                 torch::nn::Linear(width, width));
  };
  chain.then("block", module_layer(block, {.kind = "block"}));
  chain.then("out", linear(width, 1));
  model.heads.push_back({"huber", std::make_shared<HuberHead>(), {chain.last(), "target"}});
  return model;
}

/// --data waves: sums of sines at random places.
Result<std::shared_ptr<const Dataset>> make_waves_data(const DatasetOptions& options) {
  const bool trains = options.split == DataSplit::Train;
  auto generator = at::detail::createCPUGenerator(options.seed + (trains ? 1 : 2));
  const at::Tensor inputs = torch::rand({trains ? 512 : 64, kInputs}, generator);
  return make_tensor_dataset(options.fields, {inputs, (inputs * 6.2832).sin().sum(1, true)});
}

Additions own() {
  return {.models = {{{.name = "waves",
                       .summary = "Sums of sines, learned from samples.",
                       .options = {integer_option("width", 32, {1, 4096}, "Width of the layers.")}},
                      make_waves}},
          .datasets = {{"waves", make_waves_data}}};
}

int by_hand() {
  const LayeredModel model = *make_model("waves", {{"width", "16"}}, own().models);
  const auto data = *make_waves_data({.fields = model.fields});
  const TrainOptions options{
      .steps = 20, .microbatch = 8, .learning_rate = {.base = 0.05}, .print_every = 1000};
  LoaderOptions loader{.microbatch = 8, .microbatches_per_step = 4};
  loader.read_for(model);
  const auto plan = [&](int stages) {
    return uniform_plan(model.name, model.layer_names(), stages, 1, 4, ScheduleKind::OneFOneB);
  };
  const auto world = make_local_communicators(1, std::chrono::seconds(60));
  const auto device = make_cpu_device();
  Trainer trainer({*world[0], steady_clock(), *device}, model, plan(1), options,
                  batches_of(data, nullptr, loader));
  while (trainer.step()) {
    std::printf("step %2lld loss %.6f\n", static_cast<long long>(trainer.steps_done()),
                trainer.report().losses.back());
  }
  // Two stages in two threads compute the same, bit for bit.
  const RunReport two = train_locally(model, plan(2), options, batches_of(data, nullptr, loader));
  const bool equal = two.losses == trainer.report().losses;
  std::printf("two stages: %s losses\n", equal ? "the same" : "OTHER");
  return equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "by-hand") return by_hand();
  return run_program(argc, argv, own());
}
