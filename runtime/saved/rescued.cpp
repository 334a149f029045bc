#include "runtime/saved/rescued.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/saved/checkpoint_folder.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr RankFiles kParts{"rank", ".json"};
constexpr const char* kStages = "stages";  // in the manifest of a part: how many the model has

/// Returns the members that are the same in every rank's part.
Json common(const Json& manifest) {
  Json result = Json::object();
  for (const auto& [key, value] : manifest.members())
    if (key != "shards" && key != "sha256") result[key] = value;
  return result;
}

/// Publishes the parts in `folder`. Returns an error if they are not the whole model, or come from different
/// runs.
Status publish_parts(const fs::path& checkpoints, const fs::path& folder) {
  std::optional<Json> manifest;
  std::map<std::string, std::pair<fs::path, FileDigest>> shards;  // keyed by the name in the checkpoint
  std::vector<fs::path> others;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    others.push_back(entry.path());
    const std::optional<int> rank = kParts.rank_of(entry.path().filename().string());
    if (!rank) continue;
    const Result<std::string> text = read_regular_file(entry.path().string());
    if (!text) return text.problems();
    const Result<ManifestHead> head = parse_manifest(*text, entry.path().string());
    if (!head) return head.problems();
    const Json same = common(head->json);
    if (manifest && manifest->dump() != same.dump())
      return Problem{folder.string(), "has parts of ranks that do not agree", {}};
    manifest = same;
    for (const ShardEntry& shard : head->shards) {
      const std::string name = "rank" + std::to_string(*rank) + "." + shard.file;
      shards.try_emplace(shard.file, folder / name, shard.digest);
    }
  }
  const Json* stages = manifest ? manifest->find(kStages) : nullptr;
  if (!stages || stages->kind() != Json::Kind::Int) return Problem{folder.string(), "has no parts", {}};
  Json listed = Json::array();
  for (int stage = 0; stage < static_cast<int>(stages->as_int()); ++stage) {
    const auto found = shards.find(shard_name(stage));
    if (found == shards.end())
      return Problem{folder.string(), "has no part of stage " + std::to_string(stage), {}};
    const auto& [path, digest] = found->second;
    fs::rename(path, folder / found->first, error);
    if (error) return Problem{path.string(), error.message(), {}};
    listed.push_back(
        Json::object({{"file", found->first}, {"bytes", digest.bytes}, {"xxh3_128", digest.hash.hex()}}));
  }
  for (const fs::path& other : others) fs::remove(other, error);
  Json whole = Json::object();
  for (const auto& [key, value] : manifest->members())
    if (key != kStages) whole[key] = value;
  whole["shards"] = listed;
  return publish_checkpoint(checkpoints, folder, sealed_manifest(whole), Retention{.newest = 0});
}

}  // namespace

fs::path rescue_folder(const fs::path& checkpoints, std::int64_t step, const std::string& run) {
  return checkpoints / unfinished_step_name(step, run);
}

std::string rescued_shard_name(int rank, int stage) {
  return "rank" + std::to_string(rank) + "." + shard_name(stage);
}

Status write_rescued_part(const fs::path& folder, int rank, int stages, Json manifest) {
  manifest[kStages] = std::int64_t{stages};
  return write_file_atomically(folder / kParts.of(rank), sealed_manifest(manifest));
}

std::optional<std::int64_t> publish_rescued(const fs::path& checkpoints,
                                            const std::function<bool(std::int64_t step)>& accept) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(checkpoints, error)) {
    for (const auto& part : fs::directory_iterator(entry.path(), error)) {
      if (!kParts.rank_of(part.path().filename().string())) continue;
      const Result<std::string> text = read_regular_file(part.path().string());
      const Result<ManifestHead> head =
          text ? parse_manifest(*text, part.path().string()) : Result<ManifestHead>(text.problems());
      if (head) found.emplace_back(head->step, entry.path());
    }
  }
  std::ranges::sort(found, std::greater<>());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  std::optional<std::int64_t> published;
  for (const auto& [step, folder] : found) {
    if (!published && !fs::exists(checkpoints / step_name(step), error) && accept(step)) {
      if (const Status status = publish_parts(checkpoints, folder))
        published = step;
      else
        log_info("the ranks that are left do not have the whole model after step " + std::to_string(step) +
                 ": " + to_string(status.problems()));
    }
    fs::remove_all(folder, error);
  }
  return published;
}

}  // namespace millrace
