#include "runtime/stage/parameter_store.h"

#include <algorithm>

#include <ATen/ops/_unique.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "runtime/base/check.h"
#include "runtime/layers/initialise.h"
#include "runtime/layers/job_array.h"

namespace millrace {
namespace {
// The minimum number of microbatches per version for which copies are made. Copies pay off from two or three
// on (docs/benchmarks.md).
constexpr int kLeastReads = 4;
constexpr std::int64_t kAlignment = 64;  // elements; 256 bytes, 4 AVX-512 vectors

std::int64_t round_up(std::int64_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t element_count(const Shape& shape) {
  std::int64_t n = 1;
  for (std::int64_t d : shape) n *= d;
  return n;
}

/// Returns the specs of `job`. -1: those of a layer outside an array.
std::vector<ParameterSpec> specs_of_job(const NamedLayer& layer, int job) {
  std::vector<ParameterSpec> specs = layer.layer->parameters();
  std::erase_if(specs, [job](const ParameterSpec& spec) { return spec.job != job; });
  return specs;
}

/// Returns the initial values of a layer. A job has the same values as in its own run: they depend on its
/// seed and on its own names.
std::vector<at::Tensor> initial_values(const NamedLayer& layer, const std::vector<ParameterSpec>& specs,
                                       const std::vector<std::uint64_t>& seeds) {
  std::vector<at::Tensor> values;
  for (std::size_t i = 0, end; i < specs.size(); i = end) {
    const int job = specs[i].job;
    std::vector<ParameterSpec> own;
    for (end = i; end < specs.size() && specs[end].job == job; ++end) {
      own.push_back(specs[end]);
      if (job >= 0) own.back().name.erase(0, job_prefix(job).size());
    }
    for (at::Tensor& value : initialise(own, seeds[std::max(job, 0)], layer.name))
      values.push_back(std::move(value));
  }
  return values;
}
}  // namespace

ParameterStore::ParameterStore(const StageLayout& layout, StageId stage,
                               const std::vector<std::uint64_t>& seeds, at::Device device,
                               at::ScalarType dtype)
    : jobs_(layout.model.jobs()), lower_(layout.lower) {
  MILLRACE_CHECK(static_cast<int>(seeds.size()) == jobs_, seeds.size() << " seeds of " << jobs_ << " jobs");
  const auto options = at::TensorOptions(dtype).device(device);
  const std::vector<int>& layers = layout.layers[stage.value];
  slots_of_layer_.resize(layers.size());
  copying_.resize(layers.size());
  buffers_.resize(layers.size());
  buffer_names_.resize(layers.size());
  ranges_.resize(layers.size());
  for (int index : layers)
    is_lowered_.push_back(layout.casts() &&
                          layout.model.layers[index].layer->cast_policy() == CastPolicy::Lower);
  std::vector<at::Tensor> initial;  // by slot
  for (int job = 0; job < jobs_; ++job) {
    for (std::size_t l = 0; l < layers.size(); ++l)
      add_layer(layout, {static_cast<int>(l), layers[l]}, jobs_ == 1 ? -1 : job, seeds, options, initial);
  }
  join_buffers();
  const std::int64_t total = slots_.empty() ? 0 : slots_.back().offset + round_up(slots_.back().elements);
  for (TiedUse& use : tied_) {
    const auto owner = std::ranges::find(slots_, use.owner, &ParameterSlot::name);
    if (owner == slots_.end()) continue;
    use.slot = static_cast<int>(owner - slots_.begin());
    use.mirror.reset();
  }
  at::Tensor flat = at::zeros({total}, dtype);
  for (std::size_t slot = 0; slot < initial.size(); ++slot) {
    view(flat, slot).copy_(initial[slot]);
    initial[slot].reset();
  }
  Version first{.flat = flat.to(device)};
  first.by_layer = views_of(first.flat);
  versions_.emplace(current_, std::move(first));
  flat_gradient_ = at::zeros({total}, options);
  gradients_ = views_of(flat_gradient_);
  touched_rows_.resize(slots_.size());
  touched_whole_.assign(slots_.size(), 0);
  for (std::size_t l = 0; l < slots_of_layer_.size(); ++l) {
    for (std::size_t i = 0; i < slots_of_layer_[l].size(); ++i) {
      if (const int slot = slots_of_layer_[l][i]; slot < 0) gradients_[l][i] = tied_[-1 - slot].gradient;
    }
  }
}

/// Adds `job`'s parameters of a layer, after the existing ones.
void ParameterStore::add_layer(const StageLayout& layout, const LayerPlace& where, int job,
                               const std::vector<std::uint64_t>& seeds, const at::TensorOptions& options,
                               std::vector<at::Tensor>& initial) {
  const NamedLayer& layer = layout.model.layers[where.index];
  const auto place = static_cast<std::size_t>(where.position);
  const std::vector<ParameterSpec> specs = specs_of_job(layer, job);
  std::vector<at::Tensor> values = initial_values(layer, specs, seeds);
  const auto end = [&] {
    return slots_.empty() ? 0 : slots_.back().offset + round_up(slots_.back().elements);
  };
  const std::int64_t begin = end();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::string name = layer.parameter_name(specs[i]);
    if (specs[i].is_buffer) {
      buffers_[place].push_back(values[i].to(
          values[i].scalar_type() == at::kFloat ? options : values[i].options().device(options.device())));
      buffer_names_[place].push_back(name);
      continue;
    }
    const auto tie =
        std::ranges::find(layer.tied, specs[i].name, &std::pair<std::string, std::string>::first);
    if (tie != layer.tied.end()) {
      slots_of_layer_[place].push_back(-1 - static_cast<int>(tied_.size()));
      add_tied_use(layout, where.index, tie->second, seeds, options);
      continue;
    }
    slots_of_layer_[place].push_back(static_cast<int>(slots_.size()));
    slots_.push_back({name, specs[i].shape, end(), element_count(specs[i].shape), specs[i].kind,
                      specs[i].also, job, place, specs[i].written});
    initial.push_back(values[i]);
  }
  ranges_[place].emplace_back(begin, end());
}

/// Makes the buffers of the jobs contiguous, as a kernel over all jobs requires.
void ParameterStore::join_buffers() {
  if (jobs_ == 1) return;
  for (auto& layer : buffers_) {
    const std::size_t per_job = layer.size() / static_cast<std::size_t>(jobs_);
    for (std::size_t i = 0; i < per_job; ++i) {
      std::vector<at::Tensor> of_jobs;
      for (std::size_t at = i; at < layer.size(); at += per_job) of_jobs.push_back(layer[at]);
      const at::Tensor all = at::stack(of_jobs);
      for (std::size_t b = 0; b < of_jobs.size(); ++b)
        layer[b * per_job + i] = all.select(0, static_cast<std::int64_t>(b));
    }
  }
}

ParameterStore ParameterStore::job(int job) const {
  if (jobs_ == 1) return *this;
  ParameterStore own;
  own.lower_ = lower_;
  const std::int64_t elements = flat_weights().size(0) / jobs_;
  const auto per_job = slots_.size() / static_cast<std::size_t>(jobs_);
  for (std::size_t s = per_job * static_cast<std::size_t>(job); own.slots_.size() < per_job; ++s) {
    own.slots_.push_back(slots_[s]);
    own.slots_.back().offset -= job * elements;
  }
  for (std::size_t l = 0; l < buffers_.size(); ++l) {
    const std::size_t count = buffers_[l].size() / static_cast<std::size_t>(jobs_);
    const auto first = static_cast<std::ptrdiff_t>(count * static_cast<std::size_t>(job)),
               last = first + static_cast<std::ptrdiff_t>(count);
    own.buffers_.emplace_back(buffers_[l].begin() + first, buffers_[l].begin() + last);
    own.buffer_names_.emplace_back(buffer_names_[l].begin() + first, buffer_names_[l].begin() + last);
  }
  for (const TiedUse& use : tied_)
    if (use.owner.starts_with(job_prefix(job))) own.tied_.push_back(use);
  for (const auto& [id, version] : versions_) own.versions_[id].flat = of_job(version.flat, job);
  own.flat_gradient_ = of_job(flat_gradient_, job);
  own.current_ = current_;
  return own;
}

ParameterStore ParameterStore::job(int job, int as) const {
  ParameterStore own = this->job(job);
  const std::size_t there = jobs_ == 1 ? 0 : job_prefix(job).size();
  const auto rename = [&](std::string& name) { name = job_prefix(as) + name.substr(there); };
  for (ParameterSlot& slot : own.slots_) {
    rename(slot.name);
    for (std::string& name : slot.also) rename(name);
    slot.job = as;
  }
  for (auto& names : own.buffer_names_) std::ranges::for_each(names, rename);
  for (TiedUse& use : own.tied_) rename(use.owner);
  return own;
}

ParameterStore ParameterStore::part(std::size_t first, std::size_t end,
                                    std::pair<std::int64_t, std::int64_t> flat_range) const {
  MILLRACE_CHECK(jobs_ == 1 && tied_.empty());
  const auto [from, to] = flat_range;
  const auto cut = [&](const at::Tensor& flat) { return flat.narrow(0, from, to - from); };
  ParameterStore own;
  own.lower_ = lower_;
  for (const ParameterSlot& slot : slots_) {
    if (slot.offset < from || slot.offset >= to) continue;
    own.slots_.push_back(slot);
    own.slots_.back().offset -= from;
  }
  own.buffers_.assign(buffers_.begin() + static_cast<std::ptrdiff_t>(first),
                      buffers_.begin() + static_cast<std::ptrdiff_t>(end));
  own.buffer_names_.assign(buffer_names_.begin() + static_cast<std::ptrdiff_t>(first),
                           buffer_names_.begin() + static_cast<std::ptrdiff_t>(end));
  for (const auto& [id, version] : versions_) own.versions_[id].flat = cut(version.flat);
  own.flat_gradient_ = cut(flat_gradient_);
  own.current_ = current_;
  return own;
}

/// Adds a use of a parameter that another layer owns. A mirror starts with the owner's initial values,
/// which depend on (seed, owner's name) alone.
void ParameterStore::add_tied_use(const StageLayout& layout, int layer, const std::string& owner,
                                  const std::vector<std::uint64_t>& seeds, const at::TensorOptions& options) {
  const auto place = find_parameter(layout.model, owner);
  MILLRACE_CHECK(place, "tied to " << owner);
  const NamedLayer& owning = layout.model.layers[place->layer];
  const auto specs = owning.layer->parameters();
  at::Tensor values = std::move(initial_values(owning, specs, seeds)[place->spec]).to(options);
  at::Tensor gradient = at::zeros(values.sizes(), options);
  tied_.push_back(
      {.owner = owner, .layer = layer, .mirror = std::move(values), .gradient = std::move(gradient)});
}

void ParameterStore::add_tied_gradient(std::size_t slot, const at::Tensor& gradient) {
  touched_whole_[slot] = 1;
  view(flat_gradient_, slot).add_(gradient);
}

at::Tensor ParameterStore::view(const at::Tensor& flat, std::size_t slot) const {
  const ParameterSlot& s = slots_[slot];
  return flat.narrow(0, s.offset, s.elements).view(s.shape);
}

/// Returns the views of `flat` by layer. The views of single jobs are first, then those of all jobs together.
/// A kernel over jobs therefore need not check that they are equally spaced.
std::vector<std::vector<at::Tensor>> ParameterStore::views_of(const at::Tensor& flat) const {
  std::vector<std::vector<at::Tensor>> result;
  for (std::size_t l = 0; l < slots_of_layer_.size(); ++l) {
    const std::vector<int>& slots = slots_of_layer_[l];
    auto& views = result.emplace_back();
    for (int slot : slots) {
      if (slot >= 0) {
        views.push_back(view(flat, static_cast<std::size_t>(slot)));
        continue;
      }
      const TiedUse& use = tied_[-1 - slot];
      views.push_back(use.slot >= 0 ? view(flat, static_cast<std::size_t>(use.slot)) : use.mirror);
    }
    if (jobs_ == 1 || is_lowered_[l] || std::ranges::any_of(slots, [](int slot) { return slot < 0; }))
      continue;
    const std::size_t per_job = slots.size() / static_cast<std::size_t>(jobs_);
    for (std::size_t i = 0; i < per_job; ++i) {
      at::Tensor of_all = JobTensors(std::span(views).first(slots.size()), per_job).of_all_jobs(i);
      views.push_back(std::move(of_all));
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
  if (!is_lowered_[layer] && !copying_[layer].layer) return found.by_layer[layer];
  found.copied.resize(found.by_layer.size());
  auto& copied = found.copied[layer];
  if (!copied.empty()) return copied;
  if (is_lowered_[layer]) {
    for (const at::Tensor& parameter : found.by_layer[layer]) copied.push_back(parameter.to(lower_));
    return copied;
  }
  Copying& copying = copying_[layer];
  const std::vector<at::Tensor> copies = copying.layer->copies(copying.input, found.by_layer[layer]);
  if (copies.empty()) {
    copying.layer = nullptr;
    return found.by_layer[layer];
  }
  copied = found.by_layer[layer];
  copied.insert(copied.end(), copies.begin(), copies.end());
  return copied;
}

void ParameterStore::make_copies(const StageLayout& layout, StageId stage, int microbatches) {
  if (microbatches < kLeastReads) return;
  const std::vector<int>& layers = layout.layers[stage.value];
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const auto index = static_cast<std::size_t>(layers[l]);
    const std::vector<int>& reads = layout.reads[index];
    // Only updates refresh copies, but a mirror's values may be received at any time, and a forward may write
    // weights.
    const auto changes = [&](int slot) { return slot < 0 || slots_[slot].written; };
    if (is_lowered_[l] || reads.empty() || std::ranges::any_of(slots_of_layer_[l], changes)) continue;
    copying_[l] = {layout.model.layers[index].layer, layout.tensors[reads.front()].spec.shape};
  }
}

std::int64_t ParameterStore::bytes_of_copies(int layer) const {
  const auto all = parameters(current_, layer);
  std::int64_t bytes = 0;
  const std::size_t own = versions_.at(current_).by_layer[layer].size();
  for (std::size_t i = is_lowered_[layer] ? 0 : own; i < all.size(); ++i)
    bytes += static_cast<std::int64_t>(all[i].nbytes());
  return bytes;
}

void ParameterStore::weights_changed() {
  for (auto& [id, version] : versions_) version.copied.clear();
}

void ParameterStore::touch(int layer, const at::Tensor& rows) {
  for (const int slot : slots_of_layer_[layer]) {
    if (slot < 0) continue;
    if (rows.defined() && jobs_ == 1)
      touched_rows_[slot].push_back(rows);
    else
      touched_whole_[slot] = 1;
  }
}

std::optional<std::size_t> ParameterStore::table(int layer) const {
  // A mask of its rows is then small compared with the rows' data, and buckets of small tables stay whole.
  constexpr std::int64_t kLeastRows = 4096;
  const std::vector<int>& slots = slots_of_layer_[layer];
  if (jobs_ > 1 || slots.size() != 1 || slots[0] < 0 || !flat_gradient_.device().is_cpu())
    return std::nullopt;
  const ParameterSlot& slot = slots_[slots[0]];
  if (slot.kind != ParameterKind::Embedding || slot.shape.size() != 2 || slot.shape[0] < kLeastRows)
    return std::nullopt;
  return static_cast<std::size_t>(slots[0]);
}

at::Tensor ParameterStore::touched_mask(std::size_t slot) const {
  const bool whole = touched_whole_[slot] != 0 || touched_rows_[slot].empty();
  at::Tensor mask = at::full({slots_[slot].shape[0]}, whole ? 1 : 0, at::kFloat);
  for (const at::Tensor& rows : touched_rows_[slot]) mask.index_fill_(0, rows, 1);
  return mask;
}

void ParameterStore::touch_all(const std::map<std::size_t, at::Tensor>& rows) {
  std::ranges::fill(touched_whole_, 1);
  for (const auto& [slot, touched] : rows) {
    touched_whole_[slot] = 0;
    touched_rows_[slot] = {touched};
  }
}

std::vector<FlatRange> ParameterStore::touched() const {
  std::vector<FlatRange> ranges;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    if (!ranges.empty() && ranges.back().end == begin)
      ranges.back().end = end;
    else
      ranges.push_back({begin, end});
  };
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const std::int64_t begin = slots_[s].offset,
                       end = s + 1 < slots_.size() ? slots_[s + 1].offset : flat_gradient_.numel();
    if (touched_whole_[s] != 0 || touched_rows_[s].empty()) {
      add(begin, end);
      continue;
    }
    const at::Tensor rows = std::get<0>(at::_unique(at::cat(touched_rows_[s]), /*sorted=*/true));
    const std::int64_t width = slots_[s].elements / slots_[s].shape[0];
    for (std::int64_t i = 0, count = rows.numel(); i < count; ++i) {
      const std::int64_t row = begin + rows.const_data_ptr<std::int64_t>()[i] * width;
      add(row, row + width);
    }
  }
  return ranges;
}

void ParameterStore::publish(const std::function<void(at::Tensor, const at::Tensor&)>& update,
                             const std::vector<FlatRange>* touched) {
  const VersionId next(current_.value + 1);
  auto now = versions_.find(current_);
  if (!is_needed(current_)) {
    update(now->second.flat, flat_gradient_);
    now->second.copied.clear();
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
  if (touched) {
    for (const FlatRange range : *touched) flat_gradient_.narrow(0, range.begin, range.size()).zero_();
  } else {
    flat_gradient_.zero_();
  }
  for (auto& rows : touched_rows_) rows.clear();
  std::ranges::fill(touched_whole_, 0);
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
