#include "driver/hosts/own_shards.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "driver/hosts/frames.h"
#include "runtime/base/files.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr std::size_t kMostHeld = 16;

}  // namespace

OwnShards::OwnShards(fs::path folder)
    : folder_(std::move(folder)), events_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
  std::error_code ignored;  // the ranks will say what is wrong with it
  fs::create_directories(folder_, ignored);
  ::inotify_add_watch(events_.get(), folder_.c_str(), IN_MOVED_TO);
  look();  // what an earlier run has left is not this run's
  held_.clear();
}

std::optional<std::string> OwnShards::look() {
  char events[4096];
  while (::read(events_.get(), events, sizeof events) > 0) has_news_ = true;
  if (!has_news_) return std::nullopt;
  const Result<Latest> latest = read_latest(folder_);
  if (!latest) return std::nullopt;
  const fs::path step = folder_ / latest->step;
  Result<std::string> text = read_regular_file(step / kManifest);
  const Result<ManifestHead> head =
      text ? parse_manifest(*text, step.string()) : Result<ManifestHead>(text.problems());
  if (!head) return std::nullopt;
  has_news_ = false;
  if (head->sha256 == seal_) return std::nullopt;
  seal_ = head->sha256;
  hold(step, *head);
  return *std::move(text);
}

void OwnShards::hold(const fs::path& step, const ManifestHead& head) {
  Held held{.step = step_of(step), .seal = head.sha256};
  for (const ShardEntry& shard : head.shards) {
    Descriptor file(::open((step / shard.file).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file.is_open()) held.files.emplace_back(shard.file, std::move(file));  // others are of other hosts
  }
  held_.push_back(std::move(held));
  if (held_.size() > kMostHeld) held_.pop_front();
}

std::vector<HeldCheckpoint> OwnShards::earlier() {
  const Result<CheckpointChoice> choice = checkpoints_at(folder_.string());
  std::vector<HeldCheckpoint> found;
  if (!choice) return found;
  for (auto step = choice->steps.rbegin(); step != choice->steps.rend(); ++step) {
    Result<std::string> text = read_regular_file(*step / kManifest);
    const Result<ManifestHead> head =
        text ? parse_manifest(*text, step->string()) : Result<ManifestHead>(text.problems());
    if (!head) continue;
    hold(*step, *head);
    found.push_back({.manifest = *std::move(text), .files = {}});
    for (const auto& [name, file] : held_.back().files) found.back().files.push_back(name);
  }
  return found;
}

void OwnShards::collect(const std::string& step) {
  sending_ = Sending{.step = step};
  const auto found = std::ranges::find(held_, step, &Held::step);
  if (found == held_.end()) return;
  sending_->files = std::move(found->files);
  held_.erase(held_.begin(), found + 1);  // older ones are not wanted any more
}

OwnShards::Piece OwnShards::next() {
  Sending& sending = *sending_;
  if (sending.files.empty()) {
    Piece end{.path = sending.step + "/"};
    sending_.reset();
    return end;
  }
  auto& [name, file] = sending.files.back();
  Piece piece{.path = sending.step + "/" + name, .bytes = std::string(kPiece, '\0')};
  ssize_t n;
  do {
    n = ::read(file.get(), piece.bytes.data(), piece.bytes.size());
  } while (n < 0 && errno == EINTR);
  piece.bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  if (piece.bytes.empty()) sending.files.pop_back();
  return piece;
}

}  // namespace millrace
