#include "runtime/model/mixed_targets.h"

#include "runtime/layers/soft_cross_entropy.h"
#include "runtime/model/layered_model.h"

namespace millrace {

Status mix_targets(LayeredModel& model) {
  for (NamedHead& head : model.heads) {
    const bool reads_targets =
        model.fields.size() == 2 && head.inputs.size() == 2 && head.inputs[1] == model.fields[1].name;
    HeadPtr mixed = reads_targets ? with_mixed_targets(*head.head) : nullptr;
    if (!mixed)
      return Problem{"--augment", "mixup is for classifiers that end in cross-entropy, not for " + model.name,
                     "leave mixup out"};
    const auto* weighs = dynamic_cast<const WeighsLabels*>(head.head.get());
    for (std::int64_t label = 0; weighs && label < model.fields[1].limit; ++label)
      if (weighs->weight_of({&label, 1}, {}) == 0)
        return Problem{"--augment",
                       "mixup mixes samples of all classes, and the loss of " + model.name +
                           " ignores class " + std::to_string(label),
                       "leave mixup out, or export the loss without ignore_index"};
    head.head = std::move(mixed);
    head.inputs.insert(head.inputs.end(), {"partner", "share"});
  }
  model.fields.push_back({.name = "partner", .dtype = at::kLong, .limit = model.fields[1].limit});
  model.fields.push_back({.name = "share"});
  return Ok{};
}

}  // namespace millrace
