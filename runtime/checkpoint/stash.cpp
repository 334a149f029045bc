#include "runtime/checkpoint/stash.h"

#include <ATen/ops/full.h>

#include "runtime/base/error.h"

namespace millrace {
namespace {

std::string stash_name(std::int64_t age, const ParameterSlot& slot) {
  return "stash/" + std::to_string(age) + "/" + slot.name;
}

std::string count_name(const ParameterSlot& slot) {
  return "rule/updates/" + slot.name;
}

std::string rate_name(const ParameterSlot& slot) {
  return "rule/rate/" + slot.name;
}

}  // namespace

void add_stash(NamedTensors& state, const ParameterStore& store) {
  for (const auto& [version, flat] : store.older_versions()) {
    for (std::size_t i = 0; i < store.slots().size(); ++i)
      state.emplace_back(stash_name(store.current().value - version.value, store.slots()[i]),
                         store.view(flat, i));
  }
}

std::int64_t load_stash(const Checkpoint& checkpoint, ParameterStore& store) {
  const auto& slots = store.slots();
  std::int64_t age = 0;
  while (!slots.empty() && checkpoint.find(stash_name(age + 1, slots.front()))) {
    ++age;
    const at::Tensor flat = store.add_older_version(VersionId(store.current().value - age));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::string name = stash_name(age, slots[i]);
      const SafetensorsFile* file = checkpoint.find(name);
      at::Tensor target = store.view(flat, i);
      if (!file || file->shape(name) != target.sizes().vec())
        throw CheckpointError("cannot resume: " + checkpoint.path + " has no whole tensor " + name,
                              "use an older checkpoint");
      target.copy_(file->tensor(name));
    }
  }
  return age;
}

void add_update_counts(NamedTensors& state, const ParameterStore& store, const UpdateRule& rule,
                       std::int64_t usual) {
  for (const ParameterSlot& slot : store.slots()) {
    const std::int64_t updates = rule.updates(slot.offset);
    if (updates != usual) state.emplace_back(count_name(slot), at::full({}, updates, at::kLong));
  }
}

void load_update_counts(const Checkpoint& checkpoint, const ParameterStore& store, UpdateRule& rule,
                        std::int64_t usual) {
  std::vector<UpdateCount> counts;
  for (const ParameterSlot& slot : store.slots()) {
    const std::string name = count_name(slot);
    const SafetensorsFile* file = checkpoint.find(name);
    counts.push_back({slot.offset, file ? file->tensor(name).item<std::int64_t>() : usual});
  }
  if (!counts.empty()) rule.set_updates(std::move(counts));
}

void add_last_rate(NamedTensors& state, const ParameterStore& store, const UpdateRule& rule) {
  const std::optional<double> rate = rule.last_rate();
  if (!rate) return;
  for (const ParameterSlot& slot : store.slots())
    state.emplace_back(rate_name(slot), at::full({}, *rate, at::kDouble));
}

void load_last_rate(const Checkpoint& checkpoint, const ParameterStore& store, UpdateRule& rule) {
  if (store.slots().empty()) return;
  const std::string name = rate_name(store.slots().front());
  if (const SafetensorsFile* file = checkpoint.find(name))
    rule.set_last_rate(file->tensor(name).item<double>());
}

}  // namespace millrace
