#include "runtime/checkpoint/checkpoint.h"
#include "runtime/base/private_folder.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/saved/checkpoint_folder.h"
#include "runtime/saved/rescued.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

void throw_if(const Status& status) {
  if (!status) throw CheckpointError(to_string(status.problems()));
}

Result<Checkpoint> open_step(const fs::path& folder) {
  Result<OpenedStep> opened = open_saved_step(folder);
  if (!opened) return opened.problems();
  Checkpoint checkpoint{.info = std::move(opened->info),
                        .path = folder.string(),
                        .manifest_sha256 = std::move(opened->head.sha256)};
  for (const ShardEntry& entry : opened->head.shards) checkpoint.digests.push_back(entry.digest);
  for (TensorFile& shard : opened->shards) checkpoint.shards.emplace_back(std::move(shard));
  return checkpoint;
}

std::string skipped_text(const fs::path& step, const std::string& why) {
  return "checkpoint skipped: " + step.filename().string() + ": " + why;
}

// ---- saving

/// Returns the shards of all ranks on all ranks, by stage.
std::vector<ShardEntry> share_digests(Communicator& world, int num_stages,
                                      const std::vector<std::pair<int, FileDigest>>& mine) {
  at::Tensor table = at::zeros({num_stages, 3}, at::kLong);  // one rank writes each stage, so sums gather
  std::int64_t* values = table.mutable_data_ptr<std::int64_t>();
  for (const auto& [stage, digest] : mine) {
    values[stage * 3] = digest.bytes;
    values[stage * 3 + 1] = static_cast<std::int64_t>(digest.hash.high);
    values[stage * 3 + 2] = static_cast<std::int64_t>(digest.hash.low);
  }
  if (world.size() > 1) world.all_reduce(table, "digests of the shards")->wait();
  values = table.mutable_data_ptr<std::int64_t>();
  std::vector<ShardEntry> all;
  for (int s = 0; s < num_stages; ++s) {
    all.push_back({.file = shard_name(s),
                   .digest = {.bytes = values[s * 3],
                              .hash = {.high = static_cast<std::uint64_t>(values[s * 3 + 1]),
                                       .low = static_cast<std::uint64_t>(values[s * 3 + 2])}}});
  }
  return all;
}

/// Returns the bytes of the tensors that all ranks write. Collective.
double bytes_of_all(Communicator& world, const std::vector<StageTensors>& mine) {
  double bytes = 0;
  for (const StageTensors& part : mine) {
    for (const auto& [name, tensor] : part.tensors) bytes += static_cast<double>(tensor.nbytes());
  }
  at::Tensor all = at::full({1}, bytes, at::kDouble);
  if (world.size() > 1) world.all_reduce(all, "bytes of the checkpoint")->wait();
  return *all.const_data_ptr<double>();
}

/// Throws CheckpointError if `folder` has too little space for a checkpoint with `bytes` of tensors. Nothing
/// is written then. A file system that does not report free space is not checked.
void require_space(const fs::path& folder, double bytes) {
  constexpr double kMargin = 1.2;  // headers, the manifest, and concurrently written logs
  throw_if(make_private_folder(folder));
  std::error_code unknown;
  const fs::space_info space = fs::space(folder, unknown);
  const auto needed = static_cast<std::uintmax_t>(std::ceil(kMargin * bytes));
  if (unknown || space.available >= needed) return;
  throw CheckpointError(folder.string() + ": No space left on device for this checkpoint: it needs " +
                            std::to_string(needed) + " bytes (1.2 times its tensors), " +
                            std::to_string(space.available) + " are free",
                        "free the rest, or keep fewer checkpoints: --keep-checkpoints");
}

std::string state_name(const std::string& state, const ParameterSlot& slot) {
  return "rule/" + state + "/" + slot.name;
}

/// Returns the tensor `name` with `shape`. It is undefined, with an error, if it is absent or has another
/// shape.
at::Tensor named_tensor(const Checkpoint& checkpoint, const std::string& name, c10::IntArrayRef shape,
                        Problems& problems) {
  const SafetensorsFile* file = checkpoint.find(name);
  if (!file) {
    problems.push_back({checkpoint.path, "has no tensor " + name, "it was saved from another model or rule"});
    return {};
  }
  if (file->shape(name) != shape.vec()) {
    std::ostringstream text;
    text << name << " has shape " << c10::IntArrayRef(file->shape(name)) << ", the model needs " << shape;
    problems.push_back({checkpoint.path, text.str(), "it was saved from another model"});
    return {};
  }
  return file->tensor(name);
}

void load_tensor(const Checkpoint& checkpoint, const std::string& name, at::Tensor target,
                 Problems& problems) {
  const at::Tensor found = named_tensor(checkpoint, name, target.sizes(), problems);
  if (found.defined()) target.copy_(found);
}

/// Loads the rule's shard of a parameter's rule state.
void load_state(const Checkpoint& checkpoint, const std::string& state, const ParameterSlot& slot,
                FlatRange shard, const at::Tensor& flat, Problems& problems) {
  const at::Tensor found = named_tensor(checkpoint, state_name(state, slot), slot.shape, problems);
  const FlatRange there{std::max(slot.offset, shard.begin), std::min(slot.offset + slot.elements, shard.end)};
  if (!found.defined() || there.size() <= 0) return;
  flat.narrow(0, there.begin - shard.begin, there.size())
      .copy_(found.reshape({-1}).narrow(0, there.begin - slot.offset, there.size()));
}

}  // namespace

NamedTensors stage_weights(const ParameterStore& store) {
  NamedTensors result;
  const at::Tensor flat = store.flat_weights();
  for (std::size_t i = 0; i < store.slots().size(); ++i)
    result.emplace_back(store.slots()[i].name, store.view(flat, i));
  for (auto& buffer : store.named_buffers()) result.push_back(buffer);
  return result;
}

NamedTensors stage_state_dict(const ParameterStore& store) {
  NamedTensors result = stage_weights(store);
  const at::Tensor flat = store.flat_weights();
  for (std::size_t i = 0; i < store.slots().size(); ++i) {
    for (const std::string& name : store.slots()[i].also) result.emplace_back(name, store.view(flat, i));
  }
  return result;
}

NamedTensors whole_stage_state(const ParameterStore& store, UpdateRule& rule) {
  NamedTensors result = stage_weights(store);
  for (const auto& [state, flat] : rule.whole_state()) {
    for (std::size_t i = 0; i < store.slots().size(); ++i)
      result.emplace_back(state_name(state, store.slots()[i]), store.view(flat, i));
  }
  return result;
}

std::vector<std::string> stage_state_names(const ParameterStore& store, const UpdateRule& rule) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : stage_weights(store)) names.push_back(name);
  for (const auto& [state, flat] : rule.state()) {
    for (const ParameterSlot& slot : store.slots()) names.push_back(state_name(state, slot));
  }
  return names;
}

std::string non_finite_in(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.is_floating_point() || tensor.numel() == 0) continue;
    const auto [low, high] = at::aminmax(tensor);  // both are NaN if any element is
    const double least = low.item<double>(), most = high.item<double>();
    if (std::isfinite(least) && std::isfinite(most)) continue;
    if (std::isnan(least)) return name + " holds NaN";
    return name + (std::isfinite(most) ? " holds -Infinity" : " holds Infinity");
  }
  return {};
}

std::optional<RankProblem> save_checkpoint(Communicator& world, const std::string& folder,
                                           const CheckpointInfo& info, int num_stages,
                                           const std::vector<StageTensors>& mine,
                                           const SaveOptions& options) {
  const fs::path temporary = fs::path(folder) / unfinished_step_name(info.step, info.run);
  const std::string what = "saving step " + std::to_string(info.step);
  const bool publishes = options.host ? options.host->first_rank : world.rank() == RankId(0);
  std::vector<std::pair<int, FileDigest>> written;
  const double bytes = bytes_of_all(world, mine);
  auto problem = run_together(world, options.deadline, what, [&] {
    // A host with its own disk has only some of the bytes: it detects a lack of space when it writes.
    if (publishes && !options.host) require_space(folder, bytes);
  });
  if (problem) return problem;
  problem = run_together(world, options.deadline, what, [&] {
    throw_if(make_private_folder(folder));
    throw_if(make_private_folder(temporary));
    for (const StageTensors& part : mine) {
      written.emplace_back(part.stage, write_safetensors(temporary / shard_name(part.stage), part.tensors));
    }
  });
  if (!problem) {
    const std::vector<ShardEntry> shards = share_digests(world, num_stages, written);
    problem = run_together(world, options.deadline, what, [&] {
      if (publishes)
        throw_if(publish_checkpoint(folder, temporary, sealed_manifest(manifest_of(info, shards)),
                                    options.keep, options.host ? Shards::OfThisHost : Shards::All));
    });
  }
  if (problem && publishes) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
  }
  return problem;
}

void save_rescued(const std::string& folder, const CheckpointInfo& info, int rank, int num_stages,
                  const std::vector<StageTensors>& mine) {
  const fs::path temporary = rescue_folder(folder, info.step, info.run);
  throw_if(make_private_folder(folder));
  throw_if(make_private_folder(temporary));
  std::vector<ShardEntry> shards;
  for (const StageTensors& part : mine) {
    const fs::path file = temporary / rescued_shard_name(rank, part.stage);
    shards.push_back({shard_name(part.stage), write_safetensors(file, part.tensors)});
  }
  throw_if(write_rescued_part(temporary, rank, num_stages, manifest_of(info, shards)));
}

const SafetensorsFile* Checkpoint::find(const std::string& name) const {
  for (const SafetensorsFile& shard : shards) {
    if (shard.contains(name)) return &shard;
  }
  return nullptr;
}

Problems Checkpoint::verify(const std::vector<std::string>& names) const {
  Problems problems;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const SafetensorsFile& shard = shards[i];
    const bool needed =
        names.empty() || std::ranges::any_of(names, [&](const auto& name) { return shard.contains(name); });
    if (!needed) continue;
    const FileDigest found = shard.digest();
    if (found.hash == digests[i].hash) continue;
    problems.push_back({shard.path(),
                        "XXH3-128 is " + found.hash.hex() + ", the manifest says " + digests[i].hash.hex(),
                        "the file is damaged; use an older checkpoint"});
  }
  return problems;
}

Result<Checkpoint> open_checkpoint(const std::string& path) {
  const Result<CheckpointChoice> choice = checkpoints_at(path);
  if (!choice) return choice.problems();
  Problems skipped;
  for (const fs::path& step : choice->steps) {
    Result<Checkpoint> checkpoint = open_step(step);
    const Problems problems = checkpoint ? checkpoint->verify() : checkpoint.problems();
    if (problems.empty()) {
      for (const Problem& problem : skipped) log_warning("checkpoint skipped: " + to_string(problem));
      return checkpoint;
    }
    append(skipped, problems);
  }
  return skipped;
}

Checkpoint open_checkpoint_together(Communicator& world, const std::string& path,
                                    const std::vector<std::string>& names, std::chrono::milliseconds deadline,
                                    const std::string& purpose) {
  const bool chooses = world.rank() == RankId(0);
  std::optional<Result<CheckpointChoice>> choice;
  const auto chosen = run_together(world, deadline, "choosing a checkpoint", [&] {
    if (!chooses) return;
    choice.emplace(checkpoints_at(path));
    if (!*choice) throw CheckpointError(to_string(choice->problems()));
  });
  if (chosen) throw CheckpointError("cannot " + purpose + ": " + chosen->what);
  std::string all_problems;
  for (std::size_t next = 0;; ++next) {
    const std::string step = broadcast_text(
        world, chooses && next < (*choice)->steps.size() ? (*choice)->steps[next].string() : "");
    if (step.empty()) break;
    const Result<ManifestHead> seen =
        chooses ? read_manifest_head(step) : Result<ManifestHead>(ManifestHead{});
    const std::string seal = broadcast_text(world, seen ? seen->sha256 : "");
    std::optional<Checkpoint> mine;
    const auto problem = run_together(world, deadline, "verifying " + step, [&] {
      Result<Checkpoint> opened = open_step(step);
      const Problems found = opened ? opened->verify(names) : opened.problems();
      if (!found.empty()) throw CheckpointError(to_string(found));
      if (opened->manifest_sha256 != seal)
        throw CheckpointError(step + "/manifest.json is another one than rank 0 reads",
                              "is the folder on a file system that all hosts share?");
      mine.emplace(std::move(*opened));
    });
    if (!problem) return std::move(*mine);
    if (chooses) log_warning(skipped_text(step, to_string(*problem)));
    if (!all_problems.empty()) all_problems += '\n';
    all_problems += to_string(*problem);
  }
  throw CheckpointError("cannot " + purpose + ": " + all_problems);
}

Problems load_stage(const Checkpoint& checkpoint, const std::string& model, ParameterStore& store,
                    UpdateRule& rule) {
  Problems problems;
  if (checkpoint.info.model != model) {
    return {{checkpoint.path,
             "is a checkpoint of model " + checkpoint.info.model + ", this run trains " + model,
             "give the same --model, or start without --resume"}};
  }
  for (auto& [name, tensor] : stage_weights(store)) load_tensor(checkpoint, name, tensor, problems);
  for (const auto& [state, flat] : rule.state()) {
    for (const ParameterSlot& slot : store.slots())
      load_state(checkpoint, state, slot, rule.shard(), flat, problems);
  }
  for (const TiedUse& use : store.tied()) {
    if (use.mirror.defined()) load_tensor(checkpoint, use.owner, use.mirror, problems);
  }
  if (problems.empty()) {
    rule.set_updates(checkpoint.info.updates);
    store.set_current(VersionId(checkpoint.info.updates));
  }
  return problems;
}

std::optional<RankProblem> save_weights(Communicator& world, const std::string& path, int num_stages,
                                        const std::vector<StageTensors>& mine,
                                        std::chrono::milliseconds deadline) {
  const auto part = [&](int s) { return path + ".part" + std::to_string(s); };
  const auto remove_parts = [&] {
    std::error_code ignored;
    for (const StageTensors& own : mine) fs::remove(part(own.stage), ignored);
  };
  auto problem = run_together(world, deadline, "saving the weights", [&] {
    for (const StageTensors& own : mine) write_safetensors(part(own.stage), own.tensors);
  });
  if (!problem) {
    problem = run_together(world, deadline, "saving the weights", [&] {
      if (world.rank() != RankId(0)) return;
      NamedTensors parameters;
      for (int s = 0; s < num_stages; ++s) {
        Result<SafetensorsFile> file = SafetensorsFile::open(part(s));
        if (!file) throw CheckpointError(to_string(file.problems()));
        for (const std::string& name : file->names()) parameters.emplace_back(name, file->tensor(name));
      }
      // The order is by name, so that it is the same for every plan.
      std::ranges::sort(parameters, {}, &NamedTensors::value_type::first);
      write_safetensors(path, parameters);
    });
  }
  remove_parts();
  return problem;
}

}  // namespace millrace
