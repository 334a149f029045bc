#include "runtime/stage/parameter_store.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "runtime/base/check.h"
#include "runtime/layers/initialise.h"

namespace millrace {
namespace {
constexpr std::int64_t kAlignment = 64;  // elements; 256 bytes, 4 AVX-512 vectors

std::int64_t round_up(std::int64_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t element_count(const Shape& shape) {
  std::int64_t n = 1;
  for (std::int64_t d : shape) n *= d;
  return n;
}
}  // namespace

ParameterStore::ParameterStore(const StageLayout& layout, StageId stage, std::uint64_t seed,
                               at::Device device, at::ScalarType dtype)
    : lower_(layout.lower) {
  const auto options = at::TensorOptions(dtype).device(device);
  std::int64_t total = 0;
  std::vector<std::pair<std::size_t, at::Tensor>> initial;  // slot, values
  for (int index : layout.layers[static_cast<std::size_t>(stage.value)]) {
    const NamedLayer& layer = layout.model.layers[static_cast<std::size_t>(index)];
    const std::vector<ParameterSpec> specs = layer.layer->parameters();
    std::vector<at::Tensor> values = initialise(specs, seed, layer.name);
    auto& own_slots = slots_of_layer_.emplace_back();
    auto& own_buffers = buffers_.emplace_back();
    auto& own_buffer_names = buffer_names_.emplace_back();
    is_lowered_.push_back(layout.casts() && layer.layer->cast_policy() == CastPolicy::Lower);
    const std::int64_t begin = total;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::string name = layer.parameter_name(specs[i]);
      if (specs[i].is_buffer) {
        own_buffers.push_back(values[i].to(
            values[i].scalar_type() == at::kFloat ? options : values[i].options().device(device)));
        own_buffer_names.push_back(name);
        continue;
      }
      const auto tie =
          std::ranges::find(layer.tied, specs[i].name, &std::pair<std::string, std::string>::first);
      if (tie != layer.tied.end()) {
        own_slots.push_back(-1 - static_cast<int>(tied_.size()));
        add_tied_use(layout, index, tie->second, seed, options);
        continue;
      }
      own_slots.push_back(static_cast<int>(slots_.size()));
      slots_.push_back(
          {name, specs[i].shape, total, element_count(specs[i].shape), specs[i].kind, specs[i].also});
      initial.emplace_back(slots_.size() - 1, values[i]);
      total += round_up(slots_.back().elements);
    }
    ranges_.emplace_back(begin, total);
  }
  for (TiedUse& use : tied_) {
    const auto owner = std::ranges::find(slots_, use.owner, &ParameterSlot::name);
    if (owner == slots_.end()) continue;
    use.slot = static_cast<int>(owner - slots_.begin());
    use.mirror.reset();
  }
  at::Tensor flat = at::zeros({total}, dtype);
  for (auto& [slot, values] : initial) view(flat, slot).copy_(values);
  Version first{.flat = flat.to(device)};
  first.by_layer = views_of(first.flat);
  versions_.emplace(current_, std::move(first));
  flat_gradient_ = at::zeros({total}, options);
  gradients_ = views_of(flat_gradient_);
  for (std::size_t l = 0; l < slots_of_layer_.size(); ++l) {
    for (std::size_t i = 0; i < slots_of_layer_[l].size(); ++i) {
      if (const int slot = slots_of_layer_[l][i]; slot < 0)
        gradients_[l][i] = tied_[static_cast<std::size_t>(-1 - slot)].gradient;
    }
  }
}

/// The mirror starts with what the owner starts with: values depend on (seed, owner's name) alone.
void ParameterStore::add_tied_use(const StageLayout& layout, int layer, const std::string& owner,
                                  std::uint64_t seed, const at::TensorOptions& options) {
  const auto place = find_parameter(layout.model, owner);
  MILLRACE_CHECK(place, "tied to " << owner);
  const NamedLayer& owning = layout.model.layers[static_cast<std::size_t>(place->layer)];
  const auto specs = owning.layer->parameters();
  at::Tensor values =
      std::move(initialise(specs, seed, owning.name)[static_cast<std::size_t>(place->spec)]).to(options);
  at::Tensor gradient = at::zeros(values.sizes(), options);
  tied_.push_back(
      {.owner = owner, .layer = layer, .mirror = std::move(values), .gradient = std::move(gradient)});
}

void ParameterStore::add_tied_gradient(std::size_t slot, const at::Tensor& gradient) {
  view(flat_gradient_, slot).add_(gradient);
}

at::Tensor ParameterStore::view(const at::Tensor& flat, std::size_t slot) const {
  const ParameterSlot& s = slots_[slot];
  return flat.narrow(0, s.offset, s.elements).view(s.shape);
}

std::vector<std::vector<at::Tensor>> ParameterStore::views_of(const at::Tensor& flat) const {
  std::vector<std::vector<at::Tensor>> result;
  for (const auto& slots : slots_of_layer_) {
    auto& views = result.emplace_back();
    for (int slot : slots) {
      if (slot >= 0) {
        views.push_back(view(flat, static_cast<std::size_t>(slot)));
        continue;
      }
      const TiedUse& use = tied_[static_cast<std::size_t>(-1 - slot)];
      views.push_back(use.slot >= 0 ? view(flat, static_cast<std::size_t>(use.slot)) : use.mirror);
    }
  }
  return result;
}

VersionId ParameterStore::pin(MicrobatchId microbatch) {
  MILLRACE_CHECK(pinned_.emplace(microbatch, current_).second,
                 "microbatch " << microbatch.value << " pinned twice");
  ++versions_.at(current_).pins;
  return current_;
}

void ParameterStore::pin(MicrobatchId microbatch, VersionId version) {
  MILLRACE_CHECK(versions_.contains(version),
                 "version " << version.value << " is not there for microbatch " << microbatch.value);
  MILLRACE_CHECK(pinned_.emplace(microbatch, version).second,
                 "microbatch " << microbatch.value << " pinned twice");
  ++versions_.at(version).pins;
}

void ParameterStore::keep_from(VersionId oldest) {
  keep_from_ = oldest;
  std::erase_if(versions_, [this](const auto& v) { return v.first != current_ && !is_needed(v.first); });
}

bool ParameterStore::is_needed(VersionId version) const {
  return versions_.at(version).pins > 0 || version >= keep_from_;
}

VersionId ParameterStore::version_of(MicrobatchId microbatch) const {
  auto found = pinned_.find(microbatch);
  MILLRACE_CHECK(found != pinned_.end(), "microbatch " << microbatch.value << " has no version");
  return found->second;
}

void ParameterStore::release(MicrobatchId microbatch) {
  const VersionId version = version_of(microbatch);
  pinned_.erase(microbatch);
  --versions_.at(version).pins;
  if (version != current_ && !is_needed(version)) versions_.erase(version);
}

std::span<const at::Tensor> ParameterStore::parameters(VersionId version, int layer) const {
  const Version& found = versions_.at(version);
  if (!is_lowered_[layer]) return found.by_layer[layer];
  found.lowered.resize(found.by_layer.size());
  auto& lowered = found.lowered[layer];
  if (lowered.empty()) {
    for (const at::Tensor& parameter : found.by_layer[layer]) lowered.push_back(parameter.to(lower_));
  }
  return lowered;
}

void ParameterStore::weights_changed() {
  for (auto& [id, version] : versions_) version.lowered.clear();
}

void ParameterStore::publish(const std::function<void(at::Tensor, const at::Tensor&)>& update) {
  const VersionId next(current_.value + 1);
  auto now = versions_.find(current_);
  if (!is_needed(current_)) {
    update(now->second.flat, flat_gradient_);
    now->second.lowered.clear();
    auto node = versions_.extract(now);
    node.key() = next;
    versions_.insert(std::move(node));
  } else {
    Version fresh{.flat = now->second.flat.clone()};
    fresh.by_layer = views_of(fresh.flat);
    update(fresh.flat, flat_gradient_);
    versions_.emplace(next, std::move(fresh));
  }
  current_ = next;
  flat_gradient_.zero_();
  for (TiedUse& use : tied_) use.gradient.zero_();
}

std::vector<std::pair<std::string, at::Tensor>> ParameterStore::named_buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (std::size_t layer = 0; layer < buffers_.size(); ++layer) {
    for (std::size_t i = 0; i < buffers_[layer].size(); ++i) {
      result.emplace_back(buffer_names_[layer][i], buffers_[layer][i]);
    }
  }
  return result;
}

void ParameterStore::set_current(VersionId version) {
  MILLRACE_CHECK(pinned_.empty() && versions_.size() == 1);
  auto node = versions_.extract(current_);
  node.key() = version;
  versions_.insert(std::move(node));
  current_ = version;
}

std::vector<std::pair<VersionId, at::Tensor>> ParameterStore::older_versions() const {
  std::vector<std::pair<VersionId, at::Tensor>> result;
  for (auto v = versions_.rbegin(); v != versions_.rend(); ++v)
    if (v->first < current_) result.emplace_back(v->first, v->second.flat);
  return result;
}

at::Tensor ParameterStore::add_older_version(VersionId version) {
  MILLRACE_CHECK(version < current_ && !versions_.contains(version));
  keep_from_ = std::min(keep_from_, version);
  Version older{.flat = at::zeros_like(flat_weights())};
  older.by_layer = views_of(older.flat);
  at::Tensor flat = older.flat;
  versions_.emplace(version, std::move(older));
  return flat;
}

bool ParameterStore::has_buffers() const {
  return std::ranges::any_of(buffers_, [](const auto& layer) { return !layer.empty(); });
}

ParameterStore::Buffers ParameterStore::copy_of_buffers() const {
  Buffers copy;
  for (const auto& layer : buffers_) {
    auto& to = copy.emplace_back();
    for (const at::Tensor& buffer : layer) to.push_back(buffer.clone());
  }
  return copy;
}

}  // namespace millrace
