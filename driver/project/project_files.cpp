// The files that `millrace new` writes. @NAME@ stands for the project's name, which is the model's too, and
// @INCLUDE@ for an include, which is none of this file's. tests/install builds and runs them.
#include "driver/project/new_command.h"
#include "runtime/base/version.h"

namespace millrace {
namespace {

constexpr const char* kCMake = R"(cmake_minimum_required(VERSION 3.22)
project(@NAME@ LANGUAGES CXX)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_package(millrace @VERSION@ REQUIRED)

# The model, for the program and the test.
add_library(own_model STATIC model.cpp)
target_link_libraries(own_model PUBLIC millrace::millrace)

add_executable(@NAME@ main.cpp)
target_link_libraries(@NAME@ PRIVATE own_model)

enable_testing()
add_executable(model_test model_test.cpp)
target_link_libraries(model_test PRIVATE own_model)
add_test(NAME model_test COMMAND model_test)
)";

constexpr const char* kModelHeader = R"(// The model of this project: what the program and the test share.
#pragma once

@INCLUDE@ <millrace/millrace.h>

/// The model @NAME@ with its options, and the data set `--data circles`.
millrace::Additions own();
)";

constexpr const char* kModel =
    R"(// A model of layers, a layer of which only the forward is written, and a data set in memory.
@INCLUDE@ "model.h"

@INCLUDE@ <ATen/CPUGeneratorImpl.h>
@INCLUDE@ <torch/torch.h>

namespace {

using namespace millrace;

constexpr std::int64_t kInputs = 2, kClasses = 2;

/// The sine of a learned frequency times x, for each feature. [B, F] -> [B, F]. LibTorch supplies the
/// gradients. Replace it with a layer of yours.
class Sine final : public ForwardLayer {
 public:
  explicit Sine(std::int64_t features) : features_(features) {}
  std::string kind() const override { return "sine"; }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "frequency", .shape = {features_}, .init = Init::Ones}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].back() != features_)
      throw ConfigError("sine has " + std::to_string(features_) + " features");
    return inputs[0];
  }
  bool draws() const override { return false; }  // it needs no random numbers
  at::Tensor compute(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor>, const CallContext&) const override {
    return torch::sin(inputs[0] * parameters[0]);
  }

 private:
  std::int64_t features_;
};

/// What it reads, its layers, its head. The more layers, the better it can be cut into stages.
Result<LayeredModel> make(const ModelOptions& options) {
  const std::int64_t width = options.integer("width"), depth = options.integer("depth");
  LayeredModel model{.name = "@NAME@",
                     .fields = {{.name = "input", .shape = {kInputs}},
                                {.name = "target", .shape = {}, .dtype = at::kLong, .limit = kClasses}}};
  Chain chain(model);
  chain.then("embed", linear(kInputs, width));
  for (std::int64_t i = 0; i < depth; ++i) {
    chain.then("block" + std::to_string(i) + ".linear", linear(width, width));
    chain.then("block" + std::to_string(i) + ".sine", std::make_shared<Sine>(width));
  }
  chain.then("scores", linear(width, kClasses));
  model.heads.push_back({"loss", cross_entropy_head(), {chain.last(), "target"}});
  return model;
}

/// Points of a square: is a point inside the circle or not?
Result<std::shared_ptr<const Dataset>> make_circles(const DatasetOptions& options) {
  const bool trains = options.split == DataSplit::Train;
  auto generator = at::detail::createCPUGenerator(options.seed + (trains ? 1 : 2));
  const at::Tensor points = torch::rand({trains ? 1024 : 256, kInputs}, generator) * 2 - 1;
  return make_tensor_dataset(options.fields, {points, (points.square().sum(1) < 0.6).to(at::kLong)});
}

}  // namespace

Additions own() {
  return {.models = {{{.name = "@NAME@",
                       .summary = "Sines of a learned frequency between linear layers.",
                       .options = {integer_option("width", 32, {1, 4096}, "Width of the layers."),
                                   integer_option("depth", 3, {1, 64}, "Blocks of a linear layer and a sine.")}},
                      make}},
          .datasets = {{"circles", make_circles}}};
}
)";

constexpr const char* kMain =
    R"(// The program: millrace's commands with the model and the data of this project.
@INCLUDE@ "model.h"

int main(int argc, char** argv) {
  return millrace::run_program(argc, argv, own());
}
)";

constexpr const char* kTest =
    R"(// The model learns, and a pipeline of two stages gives the losses of one process, bit for bit.
@INCLUDE@ <cstdio>

@INCLUDE@ "model.h"

using namespace millrace;

namespace {

std::vector<double> losses(int stages) {
  const Additions mine = own();
  const LayeredModel model = *make_model("@NAME@", {{"width", "16"}}, mine.models);
  const auto data = *mine.datasets.front().make({.path = "circles", .fields = model.fields});
  const TrainOptions options{.steps = 100,
                             .microbatch = 8,
                             .rule = {.kind = UpdateRuleKind::Adam},
                             .learning_rate = {.base = 0.01},
                             .print_every = 1000};
  LoaderOptions loader{.microbatch = 8, .microbatches_per_step = 4};
  loader.read_for(model);
  const Plan plan = uniform_plan(model.name, model.layer_names(), stages, 1, 4, ScheduleKind::OneFOneB);
  return train_locally(model, plan, options, batches_of(data, nullptr, loader)).losses;
}

}  // namespace

int main() {
  const std::vector<double> one = losses(1), two = losses(2);
  std::printf("loss %.4f, after %zu steps %.4f\n", one.front(), one.size(), one.back());
  if (one != two) return std::printf("two stages have other losses\n"), 1;
  if (!(one.back() < 0.8 * one.front())) return std::printf("it does not learn\n"), 1;
  return 0;
}
)";

constexpr const char* kJob = R"(model: @NAME@
data: circles
stages: 2
microbatch: 8
microbatches: 4
steps: 100
rule: adam
lr: 0.01
output-dir: launched
)";

constexpr const char* kReadme = R"(# @NAME@

A model of one's own on millrace: a layer, a model of layers, a data set, a program, a test.

```
cmake -S . -B build -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build
ctest --test-dir build
build/@NAME@ train --model @NAME@ --data circles --stages 2 --steps 100 --rule adam --lr 0.01 --output-dir run
build/@NAME@ train --help
build/@NAME@ launch job.yaml
```

`PREFIX` is where `cmake --install` put millrace. LibTorch is found where millrace was built with it; `-DMILLRACE_LIBTORCH=DIR` names another.

| file | what |
|---|---|
| `model.cpp` | the layer, the model with its options, the data: begin here |
| `main.cpp` | the program: every command of millrace, with this model |
| `model_test.cpp` | it learns, and two stages give the losses of one process |
| `job.yaml` | two processes; `millrace launch --worker build/@NAME@ job.yaml` does the same |

millrace's docs/your-model.md explains each part.
)";

std::string filled(const char* text, const std::string& name) {
  std::string filled = text;
  const std::string version =
      std::to_string(MILLRACE_VERSION_MAJOR) + "." + std::to_string(MILLRACE_VERSION_MINOR);
  for (const auto& [word, value] : {std::pair<std::string, std::string>{"@NAME@", name},
                                    {"@VERSION@", version},
                                    {"@INCLUDE@", "#include"}})
    for (std::size_t at = 0; (at = filled.find(word, at)) != std::string::npos; at += value.size())
      filled.replace(at, word.size(), value);
  return filled;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> project_files(const std::string& name) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& [path, text] : {std::pair{"CMakeLists.txt", kCMake},
                                   {"model.h", kModelHeader},
                                   {"model.cpp", kModel},
                                   {"main.cpp", kMain},
                                   {"model_test.cpp", kTest},
                                   {"job.yaml", kJob},
                                   {"README.md", kReadme}})
    files.emplace_back(path, filled(text, name));
  return files;
}

}  // namespace millrace
