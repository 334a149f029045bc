#include "runtime/checkpoint/checkpoint.h"
#include "runtime/base/private_folder.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/saved/checkpoint_folder.h"
#include "runtime/saved/hash.h"
#include "runtime/saved/rescued.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

void throw_if(const Status& status) {
  if (!status) throw CheckpointError(to_string(status.problems()));
}

// ---- the manifest

Json json_of(const AveragingState& averaging) {
  Json losses = Json::array();
  // JSON has no NaN and no Inf.
  for (double loss : averaging.losses) losses.push_back(std::isfinite(loss) ? Json(loss) : Json("none"));
  return Json::object({{"losses", losses}, {"from", averaging.from}, {"evaluated", averaging.evaluated}});
}

Json json_of(const LossScaleState& state) {
  return Json::object({{"scale", state.scale},
                       {"since_growth", state.since_growth},
                       {"skipped", state.skipped},
                       {"skipped_in_a_row", state.skipped_in_a_row}});
}

/// The manifest with the shards of some stages.
Json manifest_of(const CheckpointInfo& info, const std::vector<std::pair<int, FileDigest>>& digests) {
  Json shards = Json::array(), settings = Json::object();
  for (const auto& [stage, digest] : digests) {
    shards.push_back(Json::object(
        {{"file", shard_name(stage)}, {"bytes", digest.bytes}, {"xxh3_128", digest.hash.hex()}}));
  }
  for (const auto& [key, value] : info.settings) settings[key] = value;
  Json manifest = Json::object({{"format", kCheckpointFormat},
                                {"run", info.run},
                                {"parent", info.parent},
                                {"model", info.model},
                                {"step", info.step},
                                {"position", info.position},
                                {"updates", info.updates},
                                {"plan", info.plan_fingerprint},
                                {"settings", settings}});
  if (info.loss_scale) manifest["loss_scale"] = json_of(*info.loss_scale);
  if (info.averaging) manifest["averaging"] = json_of(*info.averaging);
  if (!info.tied.empty()) {
    Json tied = Json::object();
    for (const auto& [name, saved] : info.tied) tied[name] = saved;
    manifest["tied"] = tied;
  }
  if (!info.best.empty()) {
    Json best = Json::array();
    for (const BestSoFar& one : info.best)
      if (one.step >= 0)
        best.push_back(Json::object(
            {{"metric", one.metric}, {"value", one.value}, {"step", one.step}, {"since", one.since}}));
    manifest["best"] = best;
  }
  if (info.lacks_evaluation) manifest["lacks_evaluation"] = true;
  if (!info.jobs.empty()) {
    Json jobs = Json::array();
    for (const JobProgress& job : info.jobs) {
      Json one = Json::object({{"step", job.step}, {"position", job.position}, {"updates", job.updates}});
      if (job.is_new) one["new"] = true;
      if (job.averaging) one["averaging"] = json_of(*job.averaging);
      if (job.loss_scale) one["loss_scale"] = json_of(*job.loss_scale);
      jobs.push_back(std::move(one));
    }
    manifest["jobs"] = jobs;
  }
  manifest["shards"] = shards;
  return manifest;
}

std::string manifest_text(const CheckpointInfo& info, const std::vector<FileDigest>& digests) {
  std::vector<std::pair<int, FileDigest>> of_stages;
  for (std::size_t s = 0; s < digests.size(); ++s) of_stages.emplace_back(static_cast<int>(s), digests[s]);
  return sealed_manifest(manifest_of(info, of_stages));
}

LossScaleState loss_scale_from(const Json& json, Problems& problems) {
  ObjectReader in(json, problems);
  LossScaleState state{.scale = in.number("scale"),
                       .since_growth = in.integer("since_growth"),
                       .skipped = in.integer("skipped"),
                       .skipped_in_a_row = in.integer("skipped_in_a_row")};
  in.finish();
  if (!(state.scale > 0)) problems.push_back({json.where(), "a scale must be above 0", {}});
  return state;
}

/// Reads a job's AveragingState. `step` is the job's own. A checkpoint that does not record `evaluated` has
/// seen all evaluations up to that step.
AveragingState averaging_from(const Json& json, std::int64_t step, Problems& problems) {
  ObjectReader in(json, problems);
  AveragingState state;
  if (const Json* losses = in.array("losses")) {
    for (const Json& loss : losses->items())
      state.losses.push_back(loss.is_number() ? loss.as_double() : std::numeric_limits<double>::quiet_NaN());
  }
  state.from = in.integer("from");
  state.evaluated = in.integer("evaluated", step);
  in.finish();
  return state;
}

BestSoFar best_from(const Json& json, Problems& problems) {
  ObjectReader in(json, problems);
  BestSoFar best{.metric = in.string("metric"),
                 .value = in.number("value"),
                 .step = in.integer("step"),
                 .since = in.integer("since")};
  in.finish();
  return best;
}

JobProgress progress_from(const Json& json, const CheckpointInfo& array, Problems& problems) {
  ObjectReader in(json, problems);
  JobProgress job{.step = in.integer("step"),
                  .position = in.integer("position"),
                  .updates = in.integer("updates"),
                  .is_new = in.boolean("new", false)};
  if (const Json* averaging = in.optional_object("averaging"))
    job.averaging = averaging_from(*averaging, job.step, problems);
  if (const Json* scale = in.optional_object("loss_scale"))
    job.loss_scale = loss_scale_from(*scale, problems);
  in.finish();
  if (job.step < 0 || job.position < 0 || job.updates < 0 || job.step > array.step ||
      job.position > array.position)
    problems.push_back({json.where(), "a job is at most as far as its array", {}});
  return job;
}

CheckpointInfo read_members(const Json& json, Problems& problems) {
  CheckpointInfo info;
  ObjectReader in(json, problems);
  in.string("format");
  info = {.run = in.string("run"),
          .parent = in.string("parent"),
          .model = in.string("model"),
          .step = in.integer("step"),
          .position = in.integer("position"),
          .updates = in.integer("updates"),
          .plan_fingerprint = in.string("plan")};
  const Json* settings = in.object("settings");
  if (const Json* scale = in.optional_object("loss_scale"))
    info.loss_scale = loss_scale_from(*scale, problems);
  if (const Json* averaging = in.optional_object("averaging"))
    info.averaging = averaging_from(*averaging, info.step, problems);
  if (const Json* tied = in.optional_object("tied")) {
    for (const auto& [name, saved] : tied->members())
      info.tied.emplace_back(name, saved.is_string() ? saved.as_string() : "");
  }
  if (const Json* best = in.optional_array("best")) {
    for (const Json& one : best->items()) info.best.push_back(best_from(one, problems));
  }
  info.lacks_evaluation = in.boolean("lacks_evaluation", false);
  if (const Json* jobs = in.optional_array("jobs")) {
    for (const Json& job : jobs->items()) info.jobs.push_back(progress_from(job, info, problems));
  }
  in.array("shards");
  in.string("sha256");
  in.finish();
  if (!problems.empty()) return info;
  for (const auto& [key, value] : settings->members())
    info.settings.emplace_back(key, value.is_string() ? value.as_string() : value.dump());
  const Json* count = settings->find("jobs");
  const std::size_t listed = info.jobs.size();
  if (listed > 0 && !(count && count->is_string() && count->as_string() == std::to_string(listed)))
    problems.push_back({json.where(), "jobs are listed that the settings do not have", {}});
  return info;
}

Result<Checkpoint> open_step(const fs::path& folder) {
  const Result<ManifestHead> manifest = read_manifest_head(folder);
  if (!manifest) return manifest.problems();
  Problems problems;
  Checkpoint checkpoint{.info = read_members(manifest->json, problems),
                        .path = folder.string(),
                        .manifest_sha256 = manifest->sha256};
  if (!problems.empty()) return problems;
  for (const ShardEntry& entry : manifest->shards) {
    const fs::path path = folder / entry.file;
    Result<SafetensorsFile> shard = SafetensorsFile::open(path.string());
    if (!shard) return shard.problems();
    if (shard->bytes() != entry.digest.bytes) {
      return Problem{path.string(),
                     "has " + std::to_string(shard->bytes()) + " bytes, the manifest says " +
                         std::to_string(entry.digest.bytes),
                     "the checkpoint is incomplete; use an older one"};
    }
    checkpoint.digests.push_back(entry.digest);
    checkpoint.shards.push_back(std::move(*shard));
  }
  return checkpoint;
}

std::string skipped_text(const fs::path& step, const std::string& why) {
  return "checkpoint skipped: " + step.filename().string() + ": " + why;
}

// ---- saving

/// Returns the digests of all ranks' shards on all ranks.
std::vector<FileDigest> share_digests(Communicator& world, int num_stages,
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
  std::vector<FileDigest> all;
  for (int s = 0; s < num_stages; ++s) {
    all.push_back({.bytes = values[s * 3],
                   .hash = {.high = static_cast<std::uint64_t>(values[s * 3 + 1]),
                            .low = static_cast<std::uint64_t>(values[s * 3 + 2])}});
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

/// Throws CheckpointError if a checkpoint with `bytes` of tensors has no room in `folder`. Nothing is written
/// then. A file system that does not say what is free is not asked.
void require_space(const fs::path& folder, double bytes) {
  constexpr double kMargin = 1.2;  // headers, the manifest, and logs that are written meanwhile
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

/// Returns the tensor `name` with `shape`. It is undefined, with a Problem, if it is absent or of another
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

/// Loads the part of a parameter's rule state that lies in the rule's shard.
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
    // A host with a disk of its own has a part of the bytes: it finds out when it writes.
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
    const std::vector<FileDigest> digests = share_digests(world, num_stages, written);
    problem = run_together(world, options.deadline, what, [&] {
      if (publishes)
        throw_if(publish_checkpoint(folder, temporary, manifest_text(info, digests), options.keep,
                                    options.host ? Shards::OfThisHost : Shards::All));
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
  std::vector<std::pair<int, FileDigest>> written;
  for (const StageTensors& part : mine) {
    written.emplace_back(part.stage,
                         write_safetensors(temporary / rescued_shard_name(rank, part.stage), part.tensors));
  }
  throw_if(write_rescued_part(temporary, rank, num_stages, manifest_of(info, written)));
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
