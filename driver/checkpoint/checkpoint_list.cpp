#include "driver/checkpoint/checkpoint_list.h"

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "runtime/base/numbers.h"
#include "runtime/base/run_files.h"
#include "runtime/saved/checkpoint_folder.h"
#include "runtime/saved/manifest.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";

/// Returns the faults that resume finds in a checkpoint.
Problems damage_of(const fs::path& folder, const ManifestHead& manifest, Check check) {
  if (check == Check::Hashes)
    if (Problems damage = check_shards(folder, manifest); !damage.empty()) return damage;
  const Result<OpenedStep> opened = open_saved_step(folder);
  return opened ? Problems{} : opened.problems();
}

ListedCheckpoint listed(const fs::path& folder, const std::string& branch, Check check) {
  ListedCheckpoint one{.folder = folder, .within = folder.parent_path(), .branch = branch};
  const std::string name = folder.filename().string();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") one.bytes += static_cast<Bytes>(entry.file_size(error));
  }
  one.saved = fs::last_write_time(folder, error);
  if (error) one.saved = {};
  one.step = number_of<std::int64_t>(name.substr(kStep.size(), name.find('.') - kStep.size())).value_or(-1);
  if (name.find(".tmp.") != std::string::npos) {
    one.state = CheckpointState::Unfinished;
    return one;
  }
  const Result<ManifestHead> manifest = read_manifest_head(folder);
  one.damage = manifest ? damage_of(folder, *manifest, check) : manifest.problems();
  if (!one.damage.empty()) one.state = CheckpointState::Damaged;
  if (!manifest) return one;
  one.run = manifest->run;
  one.step = manifest->step;
  one.saved = fs::last_write_time(folder / kManifest, error);
  return one;
}

/// The metrics of which the manifest records a best checkpoint, by its step.
std::multimap<std::int64_t, std::string> best_in(const fs::path& folder) {
  std::multimap<std::int64_t, std::string> best;
  const Result<ManifestHead> manifest = read_manifest_head(folder);
  const Result<CheckpointInfo> info = manifest ? read_info(*manifest) : manifest.problems();
  if (!info) return best;
  for (const BestSoFar& one : info->best) best.emplace(one.step, one.metric);
  return best;
}

/// Adds the checkpoints of one folder with `latest`, and of the branches in it.
void add_branch(std::vector<ListedCheckpoint>& to, const fs::path& folder, const std::string& branch,
                Check check) {
  std::vector<fs::path> steps, abandoned;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kStep) && entry.is_directory(error)) steps.push_back(entry.path());
    if (run_files::kAbandoned.rank_of(name) && entry.is_directory(error)) abandoned.push_back(entry.path());
  }
  std::ranges::sort(steps, std::greater<>());
  std::ranges::sort(abandoned);
  const Result<Latest> latest = read_latest(folder);
  const std::size_t first = to.size();
  for (const fs::path& step : steps) {
    ListedCheckpoint one = listed(step, branch, check);
    if (!fs::exists(step, error)) continue;  // a run has deleted it meanwhile
    to.push_back(std::move(one));
    to.back().is_latest = latest && latest->step == step.filename().string();
  }
  const std::span<ListedCheckpoint> own(to.begin() + static_cast<std::ptrdiff_t>(first), to.end());
  const auto newest = std::ranges::find(own, CheckpointState::Complete, &ListedCheckpoint::state);
  if (newest != own.end()) {
    const auto best = best_in(newest->folder);
    for (ListedCheckpoint& one : own) {
      if (one.run != newest->run) continue;
      for (auto [at, end] = best.equal_range(one.step); at != end; ++at) one.best.push_back(at->second);
    }
  }
  for (const fs::path& one : abandoned)
    add_branch(to, one, (branch.empty() ? "" : branch + "/") + one.filename().string(), check);
}

}  // namespace

Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::string& path, Check check) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    return Problem{path, "is not a checkpoint folder",
                   "give a step-N folder, a checkpoints folder or an output folder"};
  fs::path folder = fs::path(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  if (folder.filename().string().starts_with(kStep))
    return std::vector<ListedCheckpoint>{listed(folder, "", check)};
  std::vector<ListedCheckpoint> all;
  const bool is_output = fs::is_directory(folder / run_files::kCheckpoints, error) ||
                         fs::is_directory(folder / run_files::kBest, error);
  if (is_output) {
    add_branch(all, folder / run_files::kCheckpoints, "", check);
    add_branch(all, folder / run_files::kBest, run_files::kBest, check);
  } else {
    add_branch(all, folder, "", check);
  }
  if (all.empty())
    return Problem{path, "holds no checkpoint",
                   "jobs that are trained in rounds have them in DIR/round1, ..."};
  return all;
}

fs::path run_folder_of(const fs::path& within) {
  fs::path folder = within;
  if (run_files::kAbandoned.rank_of(folder.filename().string())) folder = folder.parent_path();
  const std::string name = folder.filename().string();
  return name == run_files::kCheckpoints || name == run_files::kBest ? folder.parent_path() : folder;
}

}  // namespace millrace
