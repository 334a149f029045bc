#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

std::string step_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%08lld", static_cast<long long>(step));
  return text;
}

std::string shard_name(int stage) {
  return "stage" + std::to_string(stage) + ".safetensors";
}

std::string hex(std::uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

void throw_if(const Status& status) {
  if (!status) throw CheckpointError(to_string(status.problems()));
}

/// The step folders below `folder`, newest first.
std::vector<fs::path> step_folders(const fs::path& folder) {
  std::vector<fs::path> result;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-") && name.find('.') == std::string::npos) result.push_back(entry.path());
  }
  std::ranges::sort(result, std::greater<>());
  return result;
}

std::string manifest_text(const CheckpointInfo& info, const fs::path& folder, int num_stages) {
  Json shards = Json::array();
  for (int s = 0; s < num_stages; ++s) {
    Result<SafetensorsFile> shard = SafetensorsFile::open(folder / shard_name(s));
    if (!shard)
      throw CheckpointError("shard of stage " + std::to_string(s) +
                            " is unusable: " + to_string(shard.problems()));
    shards.push_back(
        Json::object({{"file", shard_name(s)},
                      {"bytes", static_cast<std::int64_t>(fs::file_size(folder / shard_name(s)))},
                      {"checksum", hex(shard->checksum())}}));
  }
  return Json::object({{"format", "millrace-checkpoint-1"},
                       {"model", info.model},
                       {"seed", std::to_string(info.seed)},
                       {"step", info.step},
                       {"position", info.position},
                       {"updates", info.updates},
                       {"rule", info.rule},
                       {"plan", info.plan_fingerprint},
                       {"shards", shards}})
             .dump(1) +
         "\n";
}

Result<Checkpoint> open_step(const fs::path& folder) {
  Result<Json> json = read_json(folder / "manifest.json");
  if (!json) return json.problems();
  Problems problems;
  ObjectReader in(*json, problems);
  Checkpoint checkpoint{.path = folder};
  if (in.string("format") != "millrace-checkpoint-1") in.problem("format", "not a millrace checkpoint");
  checkpoint.info = {.model = in.string("model"),
                     .seed = 0,
                     .step = in.integer("step"),
                     .position = in.integer("position"),
                     .updates = in.integer("updates"),
                     .rule = in.string("rule"),
                     .plan_fingerprint = in.string("plan")};
  checkpoint.info.seed = std::strtoull(in.string("seed").c_str(), nullptr, 10);
  const Json* shards = in.array("shards");
  in.finish();
  if (!problems.empty()) return problems;
  for (const Json& entry : shards->items()) {
    ObjectReader shard_in(entry, problems);
    const std::string name = shard_in.string("file");
    const std::int64_t bytes = shard_in.integer("bytes");
    const std::string checksum = shard_in.string("checksum");
    shard_in.finish();
    if (name.find('/') != std::string::npos || name.starts_with("."))
      return Problem{entry.where(), "shard name '" + name + "' leaves the folder", {}};
    std::error_code error;
    const auto size = fs::file_size(folder / name, error);
    if (error || static_cast<std::int64_t>(size) != bytes) {
      return Problem{
          (folder / name).string(),
          error ? "is missing"
                : "has " + std::to_string(size) + " bytes, the manifest says " + std::to_string(bytes),
          "the checkpoint is incomplete; use an older one"};
    }
    Result<SafetensorsFile> shard = SafetensorsFile::open(folder / name);
    if (!shard) return shard.problems();
    if (hex(shard->checksum()) != checksum)
      return Problem{(folder / name).string(),
                     "checksum " + hex(shard->checksum()) + ", the manifest says " + checksum,
                     "the file is damaged; use an older checkpoint"};
    checkpoint.shards.push_back(std::move(*shard));
  }
  if (!problems.empty()) return problems;
  return checkpoint;
}

/// Copies a named tensor into `target`; a Problem if it is absent or of another shape.
void load_tensor(const Checkpoint& checkpoint, const std::string& name, at::Tensor target,
                 Problems& problems) {
  const SafetensorsFile* file = checkpoint.find(name);
  if (!file) {
    problems.push_back({checkpoint.path, "has no tensor " + name, "it was saved from another model or rule"});
    return;
  }
  if (file->shape(name) != target.sizes().vec()) {
    std::ostringstream text;
    text << name << " has shape " << c10::IntArrayRef(file->shape(name)) << ", the model needs "
         << target.sizes();
    problems.push_back({checkpoint.path, text.str(), "it was saved from another model"});
    return;
  }
  target.copy_(file->tensor(name));
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

NamedTensors stage_state(const ParameterStore& store, UpdateRule& rule) {
  NamedTensors result = stage_weights(store);
  for (const auto& [state, flat] : rule.state()) {
    for (std::size_t i = 0; i < store.slots().size(); ++i) {
      result.emplace_back("rule/" + state + "/" + store.slots()[i].name, store.view(flat, i));
    }
  }
  return result;
}

void save_checkpoint(Communicator& world, const std::string& folder, const CheckpointInfo& info,
                     int num_stages, const std::vector<StageTensors>& mine, int keep) {
  const fs::path final_folder = fs::path(folder) / step_name(info.step);
  const fs::path temporary = fs::path(folder) / (step_name(info.step) + ".tmp");
  throw_if(make_writable_folder(temporary));
  for (const StageTensors& part : mine) write_safetensors(temporary / shard_name(part.stage), part.tensors);
  world.barrier();
  if (world.rank() == RankId(0)) {
    throw_if(write_file_atomically(temporary / "manifest.json", manifest_text(info, temporary, num_stages)));
    std::error_code error;
    fs::remove_all(final_folder, error);
    fs::rename(temporary, final_folder, error);
    if (error) throw CheckpointError(final_folder.string() + ": rename failed: " + error.message());
    throw_if(write_file_atomically(fs::path(folder) / "latest", step_name(info.step) + "\n"));
    const auto all = step_folders(folder);
    for (std::size_t i = keep; i < all.size(); ++i) fs::remove_all(all[i], error);
  }
  world.barrier();
}

const SafetensorsFile* Checkpoint::find(const std::string& name) const {
  for (const SafetensorsFile& shard : shards) {
    if (shard.contains(name)) return &shard;
  }
  return nullptr;
}

Result<Checkpoint> open_checkpoint(const std::string& path) {
  if (!fs::is_directory(path))
    return Problem{path, "is not a checkpoint folder",
                   "give a step-N folder, a checkpoints folder or an output folder"};
  if (fs::exists(fs::path(path) / "manifest.json")) return open_step(path);
  fs::path folder = path;
  if (fs::is_directory(folder / "checkpoints")) folder /= "checkpoints";
  Problems skipped;
  for (const fs::path& step : step_folders(folder)) {
    Result<Checkpoint> checkpoint = open_step(step);
    if (checkpoint) {
      for (const Problem& problem : skipped) log_warning("checkpoint skipped: " + to_string(problem));
      return checkpoint;
    }
    for (const Problem& problem : checkpoint.problems()) skipped.push_back(problem);
  }
  if (skipped.empty())
    skipped.push_back({folder.string(), "holds no checkpoint", "was the run given --checkpoint-every N?"});
  return skipped;
}

Problems load_stage(const Checkpoint& checkpoint, const std::string& model, ParameterStore& store,
                    UpdateRule& rule) {
  Problems problems;
  if (checkpoint.info.model != model) {
    return {{checkpoint.path,
             "is a checkpoint of model " + checkpoint.info.model + ", this run trains " + model,
             "give the same --model, or start without --resume"}};
  }
  for (auto& [name, tensor] : stage_state(store, rule)) load_tensor(checkpoint, name, tensor, problems);
  for (const TiedUse& use : store.tied()) {
    if (use.mirror.defined()) load_tensor(checkpoint, use.owner, use.mirror, problems);
  }
  if (problems.empty()) {
    rule.set_updates(checkpoint.info.updates);
    store.set_current(VersionId(checkpoint.info.updates));
  }
  return problems;
}

void save_weights(Communicator& world, const std::string& path, int num_stages,
                  const std::vector<StageTensors>& mine) {
  const auto part = [&](int s) { return path + ".part" + std::to_string(s); };
  for (const StageTensors& own : mine) write_safetensors(part(own.stage), own.tensors);
  world.barrier();
  if (world.rank() == RankId(0)) {
    NamedTensors parameters;
    for (int s = 0; s < num_stages; ++s) {
      Result<SafetensorsFile> file = SafetensorsFile::open(part(s));
      if (!file) throw CheckpointError(to_string(file.problems()));
      for (const std::string& name : file->names()) parameters.emplace_back(name, file->tensor(name));
      fs::remove(part(s));
    }
    // One order for every plan: by name.
    std::ranges::sort(parameters, {}, &NamedTensors::value_type::first);
    write_safetensors(path, parameters);
  }
  world.barrier();
}

}  // namespace millrace
