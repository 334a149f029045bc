#include "driver/hosts/delivered_checkpoint.h"

#include <algorithm>
#include <utility>

#include "runtime/base/files.h"
#include "runtime/base/private_folder.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

/// Makes `to` a second name of the file, or a copy of it on another file system.
bool take_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::create_hard_link(from, to, error);
  return !error || (fs::copy_file(from, to, error) && !error);
}

bool is(const fs::path& file, const FileDigest& digest) {
  std::error_code error;
  if (fs::file_size(file, error) != static_cast<std::uintmax_t>(digest.bytes) || error) return false;
  const Result<FileDigest> found = digest_of_file(file);
  return found && found->hash == digest.hash;
}

}  // namespace

DeliveredCheckpoint::DeliveredCheckpoint(fs::path folder, ManifestHead head, std::string manifest)
    : folder_(std::move(folder)), head_(std::move(head)), manifest_(std::move(manifest)) {}

Result<DeliveredCheckpoint> DeliveredCheckpoint::begin(const AgentCheckpoint& checkpoint, const fs::path& own,
                                                       int host) {
  Result<ManifestHead> head = parse_manifest(checkpoint.manifest, "the launcher's manifest");
  if (!head) return head.problems();
  DeliveredCheckpoint one(checkpoint.folder, *std::move(head), checkpoint.manifest);
  const std::string step = step_name(one.head_.step);
  // The host's number is in the name: two hosts may share a folder that is not the launcher's.
  one.temporary_ = one.folder_ / (step + ".tmp.host" + std::to_string(host));
  std::error_code ignored;
  fs::remove_all(one.temporary_, ignored);
  if (const Status made = make_private_folder(one.temporary_); !made) return made.problems();
  for (const ShardEntry& shard : one.head_.shards) {
    const fs::path to = one.temporary_ / shard.file;
    const bool found =
        std::ranges::any_of(std::initializer_list<fs::path>{one.folder_, own}, [&](const fs::path& folder) {
          const fs::path from = folder / step / shard.file;
          return is(from, shard.digest) && take_file(from, to);
        });
    if (!found) one.missing_.insert((one.folder_ / step / shard.file).string());
  }
  return one;
}

Status DeliveredCheckpoint::take(const std::string& path, std::string_view piece) {
  const std::string name = fs::path(path).filename().string();
  const auto shard = std::ranges::find(head_.shards, name, &ShardEntry::file);
  if (shard == head_.shards.end()) return Problem{path, "is no shard of the checkpoint", {}};
  if (!arriving_) {
    Result<ArrivingFile> created = ArrivingFile::create(temporary_ / name);
    if (!created) return created.problems();
    arriving_ = *std::move(created);
  }
  if (!piece.empty()) return arriving_->add(piece);
  const Status whole = arriving_->finish(shard->digest);
  arriving_.reset();
  missing_.erase(path);
  return whole;
}

Status DeliveredCheckpoint::finish() {
  return publish_checkpoint(folder_, temporary_, manifest_, Retention{.newest = 0});
}

}  // namespace millrace
