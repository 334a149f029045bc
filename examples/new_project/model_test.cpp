// The model learns, and a pipeline of two stages gives the losses of one process, bit for bit.
#include <cstdio>

#include "model.h"

using namespace millrace;

namespace {

std::vector<double> losses(int stages) {
  const Additions mine = own();
  const LayeredModel model = *make_model("my-model", {{"width", "16"}}, mine.models);
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
