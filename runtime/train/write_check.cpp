#include "runtime/train/write_check.h"

#include "runtime/base/error.h"

namespace millrace {
namespace {

Hash128 hash_of(const at::Tensor& tensor) {
  const at::Tensor here = tensor.cpu().contiguous();
  return xxh3(here.const_data_ptr(), here.nbytes());
}

}  // namespace

void WriteCheck::add(const HeldStage& held, Tensors& tensors) {
  const StageProgram& program = held.executor->program();
  ParameterStore& store = *held.store;
  const std::string stage = "stage " + std::to_string(held.stage.value) +
                            (held.array > 0 ? " of array " + std::to_string(held.array) : "") + ", ";
  const auto keep = [&](const std::string& what, Kind kind, bool in_forward, const at::Tensor& tensor) {
    tensors[stage + what] = {kind, held.array, held.stage.value, in_forward, hash_of(tensor)};
  };
  const auto layer = [&](std::size_t l) { return "layer " + program.steps[l].named->name + ": "; };

  auto versions = store.older_versions();
  versions.emplace_back(store.current(), store.flat_weights());
  for (const auto& [version, flat] : versions) {
    for (std::size_t s = 0; s < store.slots().size(); ++s) {
      const ParameterSlot& slot = store.slots()[s];
      keep(layer(slot.layer) + "parameter " + slot.name + " of version " + std::to_string(version.value),
           Kind::Weights, slot.written, store.view(flat, s));
    }
  }
  const auto buffers = store.named_buffers();  // in the order of layers
  for (std::size_t l = 0, b = 0; l < program.steps.size(); ++l) {
    for (const std::size_t end = b + store.buffers(static_cast<int>(l)).size(); b < end; ++b)
      keep(layer(l) + "buffer " + buffers[b].first, Kind::Statistics, !program.steps[l].keeps_statistics,
           buffers[b].second);
  }
  for (const auto& [position, state] : held.executor->carried_states().all()) {
    for (std::size_t l = 0; l < state.size(); ++l) {
      for (std::size_t k = 0; k < state[l].size(); ++k) {
        if (state[l][k].defined())
          keep(layer(l) + "state " + std::to_string(k) + " that microbatch " + std::to_string(position) +
                   " left",
               Kind::Carried, false, state[l][k]);
      }
    }
  }
  for (std::size_t r = 0; r < held.rules.size(); ++r) {
    for (const auto& [name, state] : held.rules[r].rule->state())
      keep("rule " + std::to_string(r) + ": " + name, Kind::RuleState, false, state);
  }
}

/// An update creates a new version. Replicas average their statistics in Reduce.
bool WriteCheck::may_write(const Action& action, const Seen& tensor, bool trains) {
  switch (action.op) {
    case Op::Forward:
      return trains && tensor.in_forward;
    case Op::Reduce:
      return tensor.kind == Kind::Statistics;
    case Op::Update:
      return tensor.kind != Kind::Weights;
    default:
      return false;
  }
}

void WriteCheck::look(const std::deque<Lane>& lanes, const Action* action, int array, bool trains) {
  Tensors now;
  for (const Lane& lane : lanes) {
    for (const HeldStage& held : lane.held()) add(held, now);
  }
  for (const auto& [what, tensor] : now) {
    const auto before = seen_.find(what);
    if (before == seen_.end() || before->second.hash == tensor.hash) continue;
    const bool here = action && tensor.array == array && tensor.stage == action->stage.value;
    if (here && may_write(*action, tensor, trains)) continue;
    throw InternalError(
        what + " changed " + (action ? "in this action" : "before this action, between it and the last one") +
            ", which may not write it",
        "a layer whose forward writes to a parameter in training declares it (ParameterSpec::written)");
  }
  seen_ = std::move(now);
}

}  // namespace millrace
