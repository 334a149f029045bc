#include "runtime/saved/checkpoint_folder.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>

#include "runtime/base/failpoint.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/saved/manifest.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

// suffix of a folder that is being replaced: see replace_folder
constexpr const char* kReplaced = ".replaced";
constexpr const char* kKept = ".kept";        // suffix of a folder with files that no save wrote
constexpr const char* kUnfinished = ".tmp.";  // and the run behind it
// The last member of a manifest: the hash of every byte before it.
constexpr const char* kSealBegin = ",\n \"sha256\": \"";
constexpr const char* kSealEnd = "\"\n}\n";

/// Returns the hash at the end of the manifest if it matches the text before it.
std::optional<std::string> seal_of(std::string_view text) {
  const std::size_t begin = std::string_view(kSealBegin).size(), end = std::string_view(kSealEnd).size();
  if (text.size() < begin + 64 + end) return std::nullopt;
  const std::size_t sealed = text.size() - begin - 64 - end;
  const std::string hash = std::string(text.substr(sealed + begin, 64));
  const bool framed = text.compare(sealed, begin, kSealBegin) == 0 && text.ends_with(kSealEnd);
  if (!framed || sha256(text.substr(0, sealed)) != hash) return std::nullopt;
  return hash;
}

/// Returns whether `name` is a valid shard name. Such a name cannot refer to a path outside the folder.
bool is_shard_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && name[0] != '.' && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  });
}

/// Returns whether `run` may be part of a folder name (unfinished_step_name) and a line of `latest`.
bool is_run_name(const std::string& run) {
  return run.size() <= 64 && std::ranges::all_of(run, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                  c == '-';
         });
}

ShardEntry shard_from(const Json& entry, Problems& problems) {
  ObjectReader in(entry, problems);
  ShardEntry shard{.file = in.string("file")};
  shard.digest.bytes = in.integer("bytes");
  const std::optional<Hash128> hash = hash_from(in.string("xxh3_128"));
  in.finish();
  if (!is_shard_name(shard.file))
    problems.push_back({entry.where(), "shard name '" + escaped(shard.file) + "' leaves the folder", {}});
  if (!hash) problems.push_back({entry.where(), "xxh3_128 is no hash", {}});
  if (shard.digest.bytes < 0) problems.push_back({entry.where(), "bytes is negative", {}});
  shard.digest.hash = hash.value_or(Hash128{});
  return shard;
}

/// Returns the step folders in `folder`, newest first. A folder that was being replaced (see replace_folder)
/// substitutes for a missing one.
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

/// Returns whether a save writes files of this name. Unfinished files have the suffix kUnfinished.
bool is_name_of_save(const std::string& name) {
  return name == kManifest || name.find(kUnfinished) != std::string::npos ||
         (name.starts_with("stage") && name.ends_with(".safetensors"));
}

/// Deletes the folder of a save. Files in it that a save does not write are kept: the folder moves to
/// `STEP.kept`.
std::error_code remove_saved(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> saved;
  bool has_others = false;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const bool is_saved = is_name_of_save(entry.path().filename().string()) && !entry.is_directory(error);
    if (is_saved) saved.push_back(entry.path());
    has_others = has_others || !is_saved;
  }
  if (error) return fs::exists(folder) ? error : std::error_code();
  std::ranges::for_each(saved, [&](const fs::path& path) { fs::remove(path, error); });
  if (!has_others) return fs::remove(folder, error), error;
  fs::path kept = folder.parent_path() / (folder.stem().stem().string() + kKept);
  while (fs::exists(kept)) kept += "+";
  fs::rename(folder, kept, error);
  log_warning(kept.string() + " has the files that no run wrote into a checkpoint that is deleted");
  return error;
}

/// Removes this run's oldest checkpoints. Checkpoints that are unreadable or belong to another run are kept.
void prune(const fs::path& folder, const std::string& run, const Retention& keep) {
  if (keep.newest == 0) return;
  int kept = 0;
  for (const fs::path& step : step_folders(folder)) {
    const Result<ManifestHead> head = read_manifest_head(step);
    if (!head || head->run != run || ++kept <= keep.newest) continue;
    const bool stays = keep.every != 0 && head->step % keep.every == 0;
    if (!stays && reach_file_call()) remove_checkpoint(step, run);
  }
}

/// Moves the checkpoints that `run` saved after `step`, and later unreadable ones, into a separate folder in
/// `folder`.
Status set_aside_later(const fs::path& folder, const std::string& run, std::int64_t step) {
  std::vector<fs::path> later = step_folders(folder);
  std::erase_if(later, [&](const fs::path& one) {
    const std::string of = run_of(one);
    return step_of(one) <= step_name(step) || (!of.empty() && of != run);
  });
  if (later.empty()) return Ok{};
  std::error_code error;
  int number = 1;  // above the numbers of earlier branches: prune_branches() deletes the oldest
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (const auto taken = run_files::kAbandoned.rank_of(entry.path().filename().string()))
      number = std::max(number, *taken + 1);
  }
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

}  // namespace

std::string step_name(std::int64_t step) {
  return printed("step-%08lld", static_cast<long long>(step));
}

std::string unfinished_step_name(std::int64_t step, const std::string& run) {
  return step_name(step) + kUnfinished + run;
}

std::string shard_name(int stage) {
  return "stage" + std::to_string(stage) + ".safetensors";
}

std::string sealed_manifest(const Json& manifest) {
  std::string text = manifest.dump(1);
  text.resize(text.size() - 2);  // "\n}"
  return text + kSealBegin + sha256(text) + kSealEnd;
}

Result<ManifestHead> parse_manifest(std::string_view text, const std::string& where) {
  const std::string older = "use an older checkpoint";
  Result<Json> json = parse_json(text, where);
  if (!json) return json.problems();
  const Json* format = json->find("format");
  if (!format || !format->is_string()) return Problem{where, "is not the manifest of a checkpoint", older};
  if (format->as_string() != kCheckpointFormat) {
    return Problem{
        where, "has format '" + escaped(format->as_string()) + "', this version reads " + kCheckpointFormat,
        "it was saved by another version of millrace: go on with that one"};
  }
  const std::optional<std::string> seal = seal_of(text);
  if (!seal) return Problem{where, "is damaged: its SHA-256 does not match", older};
  ManifestHead head{.sha256 = *seal};
  Problems problems;
  ObjectReader in(*json, problems);
  head.run = in.string("run");
  head.step = in.integer("step");
  if (const Json* shards = in.array("shards")) {
    for (const Json& entry : shards->items()) head.shards.push_back(shard_from(entry, problems));
  }
  if (!is_run_name(head.run))
    problems.push_back({where, "run '" + escaped(head.run) + "' leaves the folder", older});
  if (head.step < 0) problems.push_back({where, "step " + std::to_string(head.step) + " is negative", older});
  if (!problems.empty()) return problems;
  head.json = *std::move(json);
  return head;
}

Result<ManifestHead> read_manifest_head(const fs::path& folder) {
  const fs::path path = folder / kManifest;
  const Result<std::string> text = read_regular_file(path);
  if (!text) return text.problems();
  return parse_manifest(*text, path.string());
}

Problems check_shards(const fs::path& folder, const ManifestHead& manifest) {
  Problems problems;
  for (const ShardEntry& shard : manifest.shards) {
    const fs::path path = folder / shard.file;
    const Result<FileDigest> found = digest_of_file(path);
    if (!found) {
      append(problems, found.problems());
    } else if (found->bytes != shard.digest.bytes) {
      problems.push_back({path.string(),
                          "has " + std::to_string(found->bytes) + " bytes, the manifest says " +
                              std::to_string(shard.digest.bytes),
                          "the checkpoint is incomplete; use an older one"});
    } else if (!(found->hash == shard.digest.hash)) {
      problems.push_back(
          {path.string(),
           "XXH3-128 is " + found->hash.hex() + ", the manifest says " + shard.digest.hash.hex(),
           "the file is damaged; use an older checkpoint"});
    }
  }
  return problems;
}

std::string step_of(const fs::path& folder) {
  return folder.extension() == kReplaced ? folder.stem().string() : folder.filename().string();
}

std::string run_of(const fs::path& folder) {
  const Result<ManifestHead> manifest = read_manifest_head(folder);
  return manifest ? manifest->run : "";
}

Result<Latest> read_latest(const fs::path& folder) {
  const fs::path path = folder / "latest";
  const Result<std::string> text = read_regular_file(path, 4096);
  if (!text) return text.problems();
  const std::vector<std::string> lines = split(*text, '\n');
  constexpr std::string_view kStep = "step-";
  const Problem torn{path.string(), "does not name a checkpoint", {}};
  // Only complete lines count: a truncated file would name an earlier step, or none.
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

Result<CheckpointChoice> checkpoints_at(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return Problem{path, "is not a checkpoint folder",
                   "give a step-N folder, a checkpoints folder or an output folder"};
  }
  if (fs::exists(fs::path(path) / kManifest, error)) return CheckpointChoice{{path}, path, true};
  fs::path folder = path;
  if (fs::is_directory(folder / run_files::kCheckpoints, error)) folder /= run_files::kCheckpoints;
  std::vector<fs::path> all = step_folders(folder);
  if (all.empty() && fs::exists(folder / ".metadata", error))
    return Problem{folder.string(), "is a checkpoint of torch.distributed.checkpoint, not of millrace",
                   "`millrace checkpoint import " + folder.string() + " DIR --model NAME` makes one of it"};
  const fs::path best = fs::path(path) / run_files::kBest;
  if (all.empty() && !step_folders(best).empty())
    return Problem{folder.string(), "holds no checkpoint but the best one",
                   "name that one: " + best.string()};
  if (all.empty())
    return Problem{folder.string(), "holds no checkpoint",
                   "a run saves with --epochs, --checkpoint-every N or --checkpoint-at-end"};
  const Result<Latest> latest = read_latest(folder);
  if (latest) {
    std::erase_if(all, [&](const fs::path& step) {
      if (step_of(step) == latest->step) return false;
      const std::string run = run_of(step);
      return !run.empty() && run != latest->run;
    });
    // Later checkpoints come from a save that ended before it updated `latest`, or will be moved aside
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
  return CheckpointChoice{std::move(all), folder.string()};
}

Status publish_checkpoint(const fs::path& folder, const fs::path& temporary, const std::string& manifest,
                          const Retention& keep, Shards shards) {
  const Result<ManifestHead> head = parse_manifest(manifest, (temporary / kManifest).string());
  if (!head) return head.problems();
  for (const ShardEntry& shard : head->shards) {
    const fs::path path = temporary / shard.file;
    std::error_code error;
    const auto size = fs::file_size(path, error);
    if (error && shards == Shards::OfThisHost) continue;
    if (error || static_cast<std::int64_t>(size) != shard.digest.bytes)
      return Problem{path.string(), "is not what its rank has written",
                     "is --output-dir on a file system that all hosts share?"};
  }
  if (Status written = write_file_atomically(temporary / kManifest, manifest); !written) return written;
  // Every file was synced when it was written; this check finds everything that --resume would reject.
  if (const Result<OpenedStep> back = open_saved_step(temporary, shards); !back)
    return Problem{temporary.string(),
                   "cannot be read back, so it is not published: " + to_string(back.problems()),
                   "earlier checkpoints stay as they are"};
  if (Status placed = replace_folder(temporary, folder / step_name(head->step)); !placed) return placed;
  if (Status written = write_latest(folder, {step_name(head->step), head->run}); !written) return written;
  remove_saved(temporary);  // the replaced folder
  prune(folder, head->run, keep);
  return Ok{};
}

std::error_code remove_checkpoint(const fs::path& step, const std::string& run) {
  std::error_code error;
  const fs::path gone = step.parent_path() / (step_of(step) + kUnfinished + run);
  remove_saved(gone);
  fs::rename(step, gone, error);
  const bool is_renamed = !error;
  if (!reach_file_call()) return error;
  return remove_saved(is_renamed ? gone : step);
}

void prune_branches(const fs::path& folder, const std::string& run, int newest) {
  std::error_code error;
  std::map<int, fs::path, std::greater<>> branches;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto number = run_files::kAbandoned.rank_of(entry.path().filename().string());
    if (number && fs::is_directory(entry.symlink_status(error))) branches[*number] = entry.path();
  }
  int kept = 0;
  for (const auto& [number, branch] : branches) {
    bool is_own = true;
    for (const auto& entry : fs::directory_iterator(branch, error)) {
      const std::string name = entry.path().filename().string();
      is_own =
          is_own && (name == "latest" || name.ends_with(kUnfinished + run) || run_of(entry.path()) == run);
    }
    if (error || !is_own || ++kept <= newest) continue;
    for (const fs::path& step : step_folders(branch)) remove_checkpoint(step, run);
    if (!reach_file_call()) return;
    for (const auto& entry : fs::directory_iterator(branch, error))
      if (entry.path().filename().string().find(kUnfinished) != std::string::npos) remove_saved(entry.path());
    fs::remove(branch / "latest", error);
    if (fs::remove(branch, error))
      log_info(branch.string() + " is deleted: " + std::to_string(newest) + " newer branches stay");
  }
}

Status go_on_from(const fs::path& folder, const std::string& run, std::int64_t step) {
  std::error_code error;
  std::vector<fs::path> unfinished, replaced;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-")) continue;
    if (name.ends_with(kUnfinished + run)) unfinished.push_back(entry.path());
    if (name.ends_with(kReplaced)) replaced.push_back(entry.path());
  }
  for (const fs::path& path : unfinished) remove_saved(path);
  remove_unfinished(folder);
  for (const fs::path& path : replaced) {
    const fs::path name = folder / path.stem();
    if (fs::exists(name, error)) {
      remove_saved(path);
    } else {
      fs::rename(path, name, error);
    }
  }
  sync_folder(folder);
  std::string newest;  // step names sort in numeric order
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_step = name.starts_with("step-") && name.size() == step_name(step).size();
    if (is_step && name <= step_name(step)) newest = std::max(newest, name);
  }
  const Result<Latest> latest = read_latest(folder);
  if (newest.empty()) {
    fs::remove(folder / "latest", error);
  } else if (!latest || latest->step != newest || latest->run != run) {
    if (Status written = write_latest(folder, {newest, run}); !written) return written;
  }
  return set_aside_later(folder, run, step);
}

}  // namespace millrace
