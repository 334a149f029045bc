#include "driver/launch/checkpoint_collector.h"

#include <algorithm>
#include <utility>

#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/private_folder.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr std::size_t kMostAnnounced = 16;

/// Removes what an earlier run has left.
void remove_checkpoints(const fs::path& folder) {
  std::vector<fs::path> doomed;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name == "latest" || name.starts_with("step-") || name.starts_with(run_files::kAbandoned.prefix))
      doomed.push_back(entry.path());
  }
  // The pointer first: what is half deleted is nobody's newest checkpoint.
  std::ranges::sort(doomed);
  for (const fs::path& path : doomed) fs::remove_all(path, error);
}

}  // namespace

void CheckpointCollector::saved(int host, std::string_view manifest) {
  Result<ManifestHead> head = parse_manifest(manifest, "the manifest of host " + std::to_string(host));
  if (!head) {
    log_warning(to_string(head.problems()));
    return;
  }
  Announced& one = announced_[head->sha256];
  if (one.hosts.empty()) one = {.manifest = std::string(manifest), .head = *std::move(head)};
  one.hosts.insert(host);
  if (static_cast<int>(one.hosts.size()) == options_.num_hosts) {
    ready_ = std::move(one);
    const ManifestHead& newest = ready_->head;
    announced_.erase(newest.sha256);
    std::erase_if(announced_, [&](const auto& other) {
      return other.second.head.run == newest.run && other.second.head.step <= newest.step;
    });
  } else if (announced_.size() > kMostAnnounced) {
    announced_.erase(
        std::ranges::min_element(announced_, {}, [](const auto& other) { return other.second.head.step; }));
  }
}

void CheckpointCollector::want(const std::string& manifest) {
  Result<ManifestHead> head = parse_manifest(manifest, "a manifest of the hosts");
  if (head) ready_ = Announced{.manifest = manifest, .head = *std::move(head), .hosts = {}};
}

std::optional<std::string> CheckpointCollector::next() {
  if (current_ || !ready_) return std::nullopt;
  begin(*std::exchange(ready_, std::nullopt));
  if (!current_) return std::nullopt;
  return step_name(current_->what.head.step);
}

Status CheckpointCollector::take_folder() {
  if (std::exchange(has_folder_, true)) return Ok{};
  std::error_code ignored;
  if (!fs::exists(options_.folder, ignored)) return Ok{};
  if (options_.resumed && options_.resumed->is_own)
    return go_on_from(options_.folder, options_.resumed->run, options_.resumed->step);
  if (options_.overwrite) remove_checkpoints(options_.folder);
  return Ok{};
}

void CheckpointCollector::begin(Announced&& what) {
  current_.emplace(Current{.what = std::move(what)});
  const ManifestHead& head = current_->what.head;
  if (!lost_.empty()) return give_up("a host is lost");
  if (const Status made = make_private_folder(options_.folder); !made)
    return give_up(to_string(made.problems()));
  if (const Status taken = take_folder(); !taken) return give_up(to_string(taken.problems()));
  current_->temporary = options_.folder / unfinished_step_name(head.step, head.run);
  std::error_code ignored;
  fs::remove_all(current_->temporary, ignored);
  if (const Status made = make_private_folder(current_->temporary); !made)
    give_up(to_string(made.problems()));
}

bool CheckpointCollector::take(int host, const std::string& path, std::string_view piece) {
  if (!current_) return false;  // given up
  const std::string step = step_name(current_->what.head.step) + "/";
  if (!path.starts_with(step)) return false;
  const std::string name = path.substr(step.size());
  const std::vector<ShardEntry>& shards = current_->what.head.shards;
  if (name.empty()) {
    current_->ended.insert(host);
    if (static_cast<int>(current_->ended.size()) == options_.num_hosts)
      give_up(std::to_string(shards.size() - current_->whole.size()) + " of " +
              std::to_string(shards.size()) + " shards are on no host");
    return false;
  }
  const auto shard = std::ranges::find(shards, name, &ShardEntry::file);
  if (shard == shards.end() || current_->whole.contains(name)) return false;
  const auto [sender, is_new] = current_->hosts.emplace(name, host);
  return sender->second == host && take_piece(host, *shard, piece);
}

bool CheckpointCollector::take_piece(int host, const ShardEntry& shard, std::string_view piece) {
  const auto refuse = [&](const std::string& why) {
    give_up(why);
    return false;
  };
  auto arriving = current_->arriving.find(shard.file);
  if (arriving == current_->arriving.end()) {
    Result<ArrivingFile> created = ArrivingFile::create(current_->temporary / shard.file);
    if (!created) return refuse(to_string(created.problems()));
    arriving = current_->arriving.emplace(shard.file, *std::move(created)).first;
  }
  ArrivingFile& file = arriving->second;
  if (file.bytes() + static_cast<std::int64_t>(piece.size()) > shard.digest.bytes)
    return refuse("host " + std::to_string(host) + " sends more of " + shard.file + " than its size");
  const Status taken = piece.empty() ? file.finish(shard.digest) : file.add(piece);
  if (!taken) return refuse(to_string(taken.problems()));
  if (!piece.empty()) return false;
  current_->arriving.erase(arriving);
  current_->whole.insert(shard.file);
  return current_->whole.size() == current_->what.head.shards.size() && publish();
}

bool CheckpointCollector::publish() {
  const Status published =
      publish_checkpoint(options_.folder, current_->temporary, current_->what.manifest, options_.keep);
  if (!published) give_up(to_string(published.problems()));
  current_.reset();
  return static_cast<bool>(published);
}

void CheckpointCollector::lost(int host) {
  lost_.insert(host);
  if (current_ && !current_->ended.contains(host)) give_up("host " + std::to_string(host) + " is lost");
}

void CheckpointCollector::give_up(const std::string& why) {
  if (!current_) return;
  log_warning("checkpoint step=" + std::to_string(current_->what.head.step) + " NOT gathered in " +
              options_.folder.string() + ": " + why);
  std::error_code ignored;
  if (!current_->temporary.empty()) fs::remove_all(current_->temporary, ignored);
  current_.reset();
}

}  // namespace millrace
