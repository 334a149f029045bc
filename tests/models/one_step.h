// One step of training, written down for a program in another language to repeat.
#pragma once

#include <ATen/ops/full.h>

#include <string>

#include "runtime/layers/initialise.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {

class OneStep : public Pipeline {
 protected:
  /// NAME.{before,batch,after}.safetensors: weights before and after one step of plain SGD on one batch
  /// (whose file has the loss, too): their difference is the gradient times `rate`. A large power of two
  /// leaves more of the gradient's digits.
  void write_step(const std::string& name, const LayeredModel& model, double rate = 1) {
    TrainOptions one_step = options(1);
    one_step.rule.weight_decay = 0;
    one_step.learning_rate.base = rate;
    NamedTensors before, batch;
    for (const NamedLayer& layer : model.layers) {
      const auto specs = layer.layer->parameters();
      const auto values = initialise(specs, one_step.seed, layer.name);
      for (std::size_t i = 0; i < specs.size(); ++i)
        before.emplace_back(layer.name + "." + specs[i].name, values[i]);
    }
    const Batch fields = RandomBatches(model, kMicrobatch).get(0);
    for (std::size_t f = 0; f < model.fields.size(); ++f)
      batch.emplace_back(model.fields[f].name, fields.fields[f]);
    const Plan alone = uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB);
    const Outcome after = train(model, alone, one_step);
    batch.emplace_back("loss", at::full({1}, after.losses.at(0), at::kDouble));
    write_safetensors(folder_ / (name + ".before.safetensors"), before);
    write_safetensors(folder_ / (name + ".batch.safetensors"), batch);
    write_safetensors(folder_ / (name + ".after.safetensors"), {after.weights.begin(), after.weights.end()});
  }
};

}  // namespace millrace
