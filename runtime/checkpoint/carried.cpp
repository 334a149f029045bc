#include "runtime/checkpoint/carried.h"

#include <numeric>

#include <ATen/ops/zeros.h>

#include "runtime/base/error.h"

namespace millrace {
namespace {

struct CarriedPlace {
  std::size_t step, tensor;
  std::string name;
  Shape shape;  ///< shape for all rows
};

std::vector<CarriedPlace> places_of(const StageProgram& program, std::span<const CarriedRows> microbatches) {
  const std::int64_t rows =
      std::accumulate(microbatches.begin(), microbatches.end(), std::int64_t{0},
                      [](std::int64_t sum, const CarriedRows& m) { return sum + m.samples; });
  std::vector<CarriedPlace> places;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const LayerStep& step = program.steps[i];
    if (!step.carrying) continue;
    const std::vector<CarriedSpec> specs = step.carrying->carried();
    for (std::size_t k = 0; k < specs.size(); ++k) {
      Shape shape{rows};
      shape.insert(shape.end(), specs[k].row.begin(), specs[k].row.end());
      places.push_back({i, k, "carried/" + step.named->name + "/" + specs[k].name, std::move(shape)});
    }
  }
  return places;
}

}  // namespace

void add_carried(NamedTensors& state, StageExecutor& executor, const ParameterStore& store,
                 std::span<const CarriedRows> microbatches, Communicator* replicas) {
  if (microbatches.empty()) return;
  for (const CarriedPlace& place : places_of(executor.program(), microbatches)) {
    at::Tensor whole = at::zeros(place.shape, store.flat_weights().options());
    std::int64_t row = 0;
    for (const CarriedRows& m : microbatches) {
      const CarriedTensors* found = executor.carried_states().find(m.position);
      if (found && (*found)[place.step][place.tensor].defined())
        whole.narrow(0, row, m.samples).copy_((*found)[place.step][place.tensor]);
      row += m.samples;
    }
    if (replicas) replicas->all_reduce(whole, place.name)->wait();
    state.emplace_back(place.name, std::move(whole));
  }
}

void load_carried(const Checkpoint& checkpoint, StageExecutor& executor, const ParameterStore& store,
                  std::span<const CarriedRows> microbatches) {
  if (!executor.program().writes.carried || microbatches.empty()) return;
  std::vector<CarriedTensors> states(microbatches.size());
  for (const CarriedPlace& place : places_of(executor.program(), microbatches)) {
    const SafetensorsFile* file = checkpoint.find(place.name);
    if (!file || file->shape(place.name) != place.shape) {
      throw CheckpointError("cannot resume: " + checkpoint.path +
                                (file ? " has other rows in " : " has no ") + place.name +
                                ", with which the text goes on",
                            "give the --microbatch, --microbatches and --data that it was saved with");
    }
    const at::Tensor whole = file->tensor(place.name).to(store.flat_weights().options());
    std::int64_t row = 0;
    for (std::size_t m = 0; m < microbatches.size(); ++m) {
      states[m].resize(executor.program().steps.size());
      // A copy: the file owns its memory, and rows of other microbatches must not stay allocated.
      states[m][place.step].push_back(whole.narrow(0, row, microbatches[m].samples).clone());
      row += microbatches[m].samples;
    }
  }
  for (std::size_t m = 0; m < microbatches.size(); ++m)
    executor.carried_states().leave(microbatches[m].position, std::move(states[m]), microbatches[m].position);
}

}  // namespace millrace
