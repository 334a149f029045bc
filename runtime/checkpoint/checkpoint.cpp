#include "runtime/checkpoint/checkpoint.h"

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
#include "runtime/checkpoint/hash.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr const char* kFormat = "millrace-checkpoint-2";
// suffix of a folder that is being replaced: see replace_folder
constexpr const char* kReplaced = ".replaced";
// The last member of a manifest: the hash of every byte before it.
constexpr const char* kSealBegin = ",\n \"sha256\": \"";
constexpr const char* kSealEnd = "\"\n}\n";

std::string step_name(std::int64_t step) {
  return printed("step-%08lld", static_cast<long long>(step));
}

std::string shard_name(int stage) {
  return "stage" + std::to_string(stage) + ".safetensors";
}

void throw_if(const Status& status) {
  if (!status) throw CheckpointError(to_string(status.problems()));
}

// ---- the manifest

std::string sealed(const Json& manifest) {
  std::string text = manifest.dump(1);
  text.resize(text.size() - 2);  // "\n}"
  return text + kSealBegin + sha256(text) + kSealEnd;
}

/// Returns the hash at the end of the manifest, if it is the hash of the text before it.
std::optional<std::string> seal_of(const std::string& text) {
  const std::size_t begin = std::string_view(kSealBegin).size(), end = std::string_view(kSealEnd).size();
  if (text.size() < begin + 64 + end) return std::nullopt;
  const std::size_t sealed = text.size() - begin - 64 - end;
  const std::string hash = text.substr(sealed + begin, 64);
  const bool framed = text.compare(sealed, begin, kSealBegin) == 0 && text.ends_with(kSealEnd);
  if (!framed || sha256(std::string_view(text).substr(0, sealed)) != hash) return std::nullopt;
  return hash;
}

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

std::string manifest_text(const CheckpointInfo& info, const std::vector<FileDigest>& digests) {
  Json shards = Json::array(), settings = Json::object();
  for (std::size_t s = 0; s < digests.size(); ++s) {
    shards.push_back(Json::object({{"file", shard_name(static_cast<int>(s))},
                                   {"bytes", digests[s].bytes},
                                   {"xxh3_128", digests[s].hash.hex()}}));
  }
  for (const auto& [key, value] : info.settings) settings[key] = value;
  Json manifest = Json::object({{"format", kFormat},
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
  return sealed(manifest);
}

/// Tells whether `name` is one that we give to shards. Such a name cannot lead out of the folder.
bool is_shard_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && name[0] != '.' && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  });
}

std::optional<Hash128> hash_from(const std::string& hex) {
  if (hex.size() != 32 || hex.find_first_not_of("0123456789abcdef") != std::string::npos) return std::nullopt;
  return Hash128{.high = std::strtoull(hex.substr(0, 16).c_str(), nullptr, 16),
                 .low = std::strtoull(hex.substr(16).c_str(), nullptr, 16)};
}

struct Manifest {
  CheckpointInfo info;
  std::string sha256;
  std::vector<std::string> files;
  std::vector<FileDigest> digests;
};

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

Manifest read_members(const Json& json, Problems& problems) {
  Manifest manifest;
  ObjectReader in(json, problems);
  in.string("format");
  manifest.info = {.run = in.string("run"),
                   .parent = in.string("parent"),
                   .model = in.string("model"),
                   .step = in.integer("step"),
                   .position = in.integer("position"),
                   .updates = in.integer("updates"),
                   .plan_fingerprint = in.string("plan")};
  const Json* settings = in.object("settings");
  if (const Json* scale = in.optional_object("loss_scale"))
    manifest.info.loss_scale = loss_scale_from(*scale, problems);
  if (const Json* averaging = in.optional_object("averaging"))
    manifest.info.averaging = averaging_from(*averaging, manifest.info.step, problems);
  if (const Json* jobs = in.optional_array("jobs")) {
    for (const Json& job : jobs->items())
      manifest.info.jobs.push_back(progress_from(job, manifest.info, problems));
  }
  const Json* shards = in.array("shards");
  in.string("sha256");
  in.finish();
  if (!problems.empty()) return manifest;
  for (const auto& [key, value] : settings->members())
    manifest.info.settings.emplace_back(key, value.is_string() ? value.as_string() : value.dump());
  const Json* count = settings->find("jobs");
  const std::size_t listed = manifest.info.jobs.size();
  if (listed > 0 && !(count && count->is_string() && count->as_string() == std::to_string(listed)))
    problems.push_back({json.where(), "jobs are listed that the settings do not have", {}});
  for (const Json& entry : shards->items()) {
    ObjectReader shard(entry, problems);
    manifest.files.push_back(shard.string("file"));
    const std::int64_t bytes = shard.integer("bytes");
    const std::optional<Hash128> hash = hash_from(shard.string("xxh3_128"));
    shard.finish();
    if (!is_shard_name(manifest.files.back()))
      problems.push_back({entry.where(), "shard name '" + manifest.files.back() + "' leaves the folder", {}});
    if (!hash) problems.push_back({entry.where(), "xxh3_128 is no hash", {}});
    manifest.digests.push_back({.bytes = bytes, .hash = hash.value_or(Hash128{})});
  }
  return manifest;
}

Result<Manifest> read_manifest(const fs::path& folder) {
  const fs::path path = folder / "manifest.json";
  const std::string older = "use an older checkpoint";
  const Result<std::string> text = read_file(path);
  if (!text) return text.problems();
  Result<Json> json = parse_json(*text, path.string());
  if (!json) return json.problems();
  const Json* format = json->find("format");
  if (!format || !format->is_string())
    return Problem{path.string(), "is not the manifest of a checkpoint", older};
  if (format->as_string() != kFormat) {
    return Problem{path.string(), "has format '" + format->as_string() + "', this version reads " + kFormat,
                   "it was saved by another version of millrace: go on with that one"};
  }
  const std::optional<std::string> seal = seal_of(*text);
  if (!seal) return Problem{path.string(), "is damaged: its SHA-256 does not match", older};
  Problems problems;
  Manifest manifest = read_members(*json, problems);
  if (!problems.empty()) return problems;
  manifest.sha256 = *seal;
  return manifest;
}

// ---- folders

/// Returns the step folders in `folder`, newest first. A folder that was being replaced (see replace_folder)
/// stands for the missing one.
std::vector<fs::path> step_folders(const fs::path& folder) {
  std::vector<fs::path> result;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path& path = entry.path();
    const bool replaced = path.extension() == kReplaced;
    const std::string name = replaced ? path.stem().string() : path.filename().string();
    if (!name.starts_with("step-") || name.find('.') != std::string::npos) continue;
    if (!replaced || !fs::exists(folder / name, error)) result.push_back(path);
  }
  std::ranges::sort(result, std::greater<>());
  return result;
}

std::string step_of(const fs::path& folder) {
  return folder.extension() == kReplaced ? folder.stem().string() : folder.filename().string();
}

/// Returns the id of the run that saved the checkpoint; empty if the manifest cannot be read.
std::string run_of(const fs::path& folder) {
  const Result<Manifest> manifest = read_manifest(folder);
  return manifest ? manifest->info.run : "";
}

struct Latest {
  std::string step;  ///< name of the folder
  std::string run;
};

/// Reads `latest`. Problem: it is damaged (torn, or of another run than the checkpoint that it names).
Result<Latest> read_latest(const fs::path& folder) {
  const fs::path path = folder / "latest";
  const Result<std::string> text = read_file(path, 4096);
  if (!text) return text.problems();
  const std::vector<std::string> lines = split(*text, '\n');
  constexpr std::string_view kStep = "step-";
  const Problem torn{path.string(), "does not name a checkpoint", {}};
  // Only whole lines count: a file that was cut off would name an earlier step, or none.
  if (lines.size() < 3 || !lines[0].starts_with(kStep)) return torn;
  const std::string_view number = std::string_view(lines[0]).substr(kStep.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (number.size() < 8 || !std::ranges::all_of(number, is_digit)) return torn;
  const Latest latest{.step = lines[0], .run = lines[1]};
  const std::string run = run_of(folder / latest.step);
  if (run.empty() || run == latest.run) return latest;
  return Problem{path.string(), "names run " + latest.run + ", but " + latest.step + " is of run " + run, {}};
}

Status write_latest(const fs::path& folder, const Latest& latest) {
  return write_file_atomically(folder / "latest", latest.step + "\n" + latest.run + "\n");
}

/// The checkpoints that `path` offers, newest first.
struct Choice {
  std::vector<fs::path> steps;
  std::string folder;  ///< for messages
  bool named = false;  ///< the user named this one: no other will do
};

Result<Choice> choice_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return Problem{path, "is not a checkpoint folder",
                   "give a step-N folder, a checkpoints folder or an output folder"};
  }
  if (fs::exists(fs::path(path) / "manifest.json", error)) return Choice{{path}, path, true};
  fs::path folder = path;
  if (fs::is_directory(folder / run_files::kCheckpoints, error)) folder /= run_files::kCheckpoints;
  std::vector<fs::path> all = step_folders(folder);
  if (all.empty())
    return Problem{folder.string(), "holds no checkpoint", "was the run given --checkpoint-every N?"};
  const Result<Latest> latest = read_latest(folder);
  if (latest) {
    std::erase_if(all, [&](const fs::path& step) {
      if (step_of(step) == latest->step) return false;
      const std::string run = run_of(step);
      return !run.empty() && run != latest->run;
    });
    // Later checkpoints are of a save that ended before it updated `latest`, or are about to be moved aside
    // (go_on_from).
    const auto is_later = [&](const fs::path& step) { return step_of(step) > latest->step; };
    if (!std::ranges::all_of(all, is_later)) std::erase_if(all, is_later);
    if (all.empty() || step_of(all.front()) != latest->step)
      log_warning((folder / "latest").string() + ": there is no " + latest->step);
  } else {
    const Problem& damage = latest.problems().front();
    log_warning(damage.where + ": " + damage.what + "; the newest whole checkpoint is looked for instead");
    std::string run;
    for (const fs::path& step : all) {
      const std::string other = run_of(step);
      if (run.empty()) run = other;
      if (!other.empty() && other != run) {
        return Problem{folder.string(), "holds checkpoints of several runs and no `latest` that says which",
                       "name one: " + all.front().string()};
      }
    }
  }
  if (all.empty()) return Problem{folder.string(), "holds no checkpoint of the run that `latest` names", {}};
  return Choice{std::move(all), folder.string()};
}

Result<Checkpoint> open_step(const fs::path& folder) {
  Result<Manifest> manifest = read_manifest(folder);
  if (!manifest) return manifest.problems();
  Checkpoint checkpoint{.info = std::move(manifest->info),
                        .path = folder.string(),
                        .manifest_sha256 = manifest->sha256,
                        .digests = std::move(manifest->digests)};
  for (std::size_t i = 0; i < manifest->files.size(); ++i) {
    const fs::path path = folder / manifest->files[i];
    Result<SafetensorsFile> shard = SafetensorsFile::open(path.string());
    if (!shard) return shard.problems();
    if (shard->bytes() != checkpoint.digests[i].bytes) {
      return Problem{path.string(),
                     "has " + std::to_string(shard->bytes()) + " bytes, the manifest says " +
                         std::to_string(checkpoint.digests[i].bytes),
                     "the checkpoint is incomplete; use an older one"};
    }
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
  throw_if(make_writable_folder(folder));
  std::error_code unknown;
  const fs::space_info space = fs::space(folder, unknown);
  const auto needed = static_cast<std::uintmax_t>(std::ceil(kMargin * bytes));
  if (unknown || space.available >= needed) return;
  throw CheckpointError(folder.string() + ": No space left on device for this checkpoint: it needs " +
                            std::to_string(needed) + " bytes (1.2 times its tensors), " +
                            std::to_string(space.available) + " are free",
                        "free the rest, or keep fewer checkpoints: --keep-checkpoints");
}

/// Removes this run's oldest checkpoints beyond `keep`. Checkpoints that cannot be read or are another run's
/// stay.
void prune(const fs::path& folder, const CheckpointInfo& info, int keep) {
  int kept = 0;
  std::error_code ignored;
  for (const fs::path& step : step_folders(folder)) {
    if (run_of(step) == info.run && ++kept > keep && keep > 0) fs::remove_all(step, ignored);
  }
}

/// Publishes a checkpoint. Rank 0 calls it when all shards are in `temporary`.
void publish(const fs::path& folder, const fs::path& temporary, const CheckpointInfo& info,
             const std::vector<FileDigest>& digests, int keep) {
  for (std::size_t s = 0; s < digests.size(); ++s) {
    const fs::path shard = temporary / shard_name(static_cast<int>(s));
    std::error_code error;
    const auto size = fs::file_size(shard, error);
    if (error || static_cast<std::int64_t>(size) != digests[s].bytes) {
      throw CheckpointError(shard.string() + " is not what its rank has written",
                            "is --output-dir on a file system that all hosts share?");
    }
  }
  throw_if(write_file_atomically(temporary / "manifest.json", manifest_text(info, digests)));
  throw_if(replace_folder(temporary, folder / step_name(info.step)));
  throw_if(write_latest(folder, {step_name(info.step), info.run}));
  std::error_code ignored;
  fs::remove_all(temporary, ignored);  // the folder that was replaced
  prune(folder, info, keep);
}

/// Moves the checkpoints that `run` saved after `step`, and later ones that cannot be read, into a folder of
/// their own in `folder`.
Status set_aside_later(const fs::path& folder, const std::string& run, std::int64_t step) {
  std::vector<fs::path> later = step_folders(folder);
  std::erase_if(later, [&](const fs::path& one) {
    const std::string of = run_of(one);
    return step_of(one) <= step_name(step) || (!of.empty() && of != run);
  });
  if (later.empty()) return Ok{};
  std::error_code error;
  int number = 1;
  while (fs::exists(folder / run_files::kAbandoned.of(number), error)) ++number;
  const fs::path aside = folder / run_files::kAbandoned.of(number);
  if (Status made = make_writable_folder(aside); !made) return made;
  if (Status written = write_latest(aside, {step_of(later.front()), run}); !written) return written;
  std::string names;
  for (const fs::path& one : later) {
    fs::rename(one, aside / step_of(one), error);
    if (error) {
      return Problem{one.string(), "cannot be moved to " + aside.string() + ": " + error.message(),
                     "it is of a branch that this run leaves: move it away, or resume into another "
                     "--output-dir"};
    }
    names += (names.empty() ? "" : ", ") + step_of(one);
  }
  sync_folder(aside);
  sync_folder(folder);
  log_warning("going on from step " + std::to_string(step) + " leaves later checkpoints behind: " + names +
              " moved to " + aside.string() +
              ". Hint: --resume takes that folder; delete it when nobody "
              "needs it");
  return Ok{};
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
  const fs::path temporary = fs::path(folder) / (step_name(info.step) + ".tmp." + info.run);
  const std::string what = "saving step " + std::to_string(info.step);
  std::vector<std::pair<int, FileDigest>> written;
  const double bytes = bytes_of_all(world, mine);
  auto problem = run_together(world, options.deadline, what, [&] {
    if (world.rank() == RankId(0)) require_space(folder, bytes);
  });
  if (problem) return problem;
  problem = run_together(world, options.deadline, what, [&] {
    throw_if(make_writable_folder(temporary));
    for (const StageTensors& part : mine) {
      written.emplace_back(part.stage, write_safetensors(temporary / shard_name(part.stage), part.tensors));
    }
  });
  if (!problem) {
    const std::vector<FileDigest> digests = share_digests(world, num_stages, written);
    problem = run_together(world, options.deadline, what, [&] {
      if (world.rank() == RankId(0)) publish(folder, temporary, info, digests, options.keep);
    });
  }
  if (problem && world.rank() == RankId(0)) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
  }
  return problem;
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
  const Result<Choice> choice = choice_of(path);
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
  std::optional<Result<Choice>> choice;
  const auto chosen = run_together(world, deadline, "choosing a checkpoint", [&] {
    if (!chooses) return;
    choice.emplace(choice_of(path));
    if (!*choice) throw CheckpointError(to_string(choice->problems()));
  });
  if (chosen) throw CheckpointError("cannot " + purpose + ": " + chosen->what);
  std::string all_problems;
  for (std::size_t next = 0;; ++next) {
    const std::string step = broadcast_text(
        world, chooses && next < (*choice)->steps.size() ? (*choice)->steps[next].string() : "");
    if (step.empty()) break;
    const Result<Manifest> seen = chooses ? read_manifest(step) : Result<Manifest>(Manifest{});
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

Status go_on_from(const fs::path& folder, const std::string& run, std::int64_t step) {
  std::error_code error;
  std::vector<fs::path> unfinished, replaced;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-")) continue;
    if (name.ends_with(".tmp." + run)) unfinished.push_back(entry.path());
    if (name.ends_with(kReplaced)) replaced.push_back(entry.path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, error);
  remove_unfinished(folder);
  for (const fs::path& path : replaced) {
    const fs::path name = folder / path.stem();
    if (fs::exists(name, error)) {
      fs::remove_all(path, error);
    } else {
      fs::rename(path, name, error);
    }
  }
  sync_folder(folder);
  const Result<Latest> latest = read_latest(folder);
  if (!latest || latest->step != step_name(step) || latest->run != run) {
    if (Status written = write_latest(folder, {step_name(step), run}); !written) return written;
  }
  return set_aside_later(folder, run, step);
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
