// `checkpoint ls`, `verify` and `prune`: checkpoints as folders.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "driver/checkpoint/checkpoint_command.h"
#include "driver/checkpoint/checkpoint_list.h"
#include "driver/cli/command_support.h"
#include "runtime/base/json.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/quantities.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/saved/checkpoint_folder.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

struct ListFlags {
  OutputFormat format = OutputFormat::Text;
};

CommandSpec list_flags_spec(ListFlags& f, const char* command, const char* summary,
                            std::vector<std::string> examples) {
  return {.command = command,
          .summary = summary,
          .positionals = {"DIR"},
          .flags = {flag("", "format", "text|json", "Form of the answer.", into::choice(f.format, "format"))},
          .examples = std::move(examples)};
}

CommandSpec ls_spec(ListFlags& f) {
  return list_flags_spec(
      f, "checkpoint ls",
      "List the checkpoints of an output folder: step, age, size, state. Shards are compared with "
      "their sizes in the manifest; `checkpoint verify` reads and hashes them.",
      {"millrace checkpoint ls out", "millrace checkpoint ls out --format json"});
}

CommandSpec verify_spec(ListFlags& f) {
  return list_flags_spec(
      f, "checkpoint verify",
      "Read and hash every shard of the checkpoints in a folder, or of one step folder. Exit code 4: "
      "a checkpoint is damaged.",
      {"millrace checkpoint verify out", "millrace checkpoint verify out/checkpoints/step-00000500"});
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string notes_of(const ListedCheckpoint& one) {
  std::vector<std::string> notes;
  if (one.is_latest) notes.emplace_back("latest");
  if (!one.best.empty()) notes.push_back("best " + joined(one.best, ", "));
  if (!one.damage.empty()) notes.push_back(to_string(one.damage.front()));
  return joined(notes, "; ");
}

Json json_of(const ListedCheckpoint& one) {
  Json best = Json::array(), damage = Json::array();
  for (const std::string& metric : one.best) best.push_back(metric);
  for (const Problem& problem : one.damage) damage.push_back(to_string(problem));
  const auto age = fs::file_time_type::clock::now() - one.saved;
  return Json::object({{"folder", one.folder.string()},
                       {"branch", one.branch},
                       {"state", to_string(one.state)},
                       {"step", one.step < 0 ? Json() : Json(one.step)},
                       {"run", one.run.empty() ? Json() : Json(one.run)},
                       {"bytes", one.bytes},
                       {"age_s", std::chrono::duration<double>(age).count()},
                       {"latest", one.is_latest},
                       {"best", best},
                       {"damage", damage}});
}

void print_json(const std::vector<ListedCheckpoint>& all) {
  Json list = Json::array();
  for (const ListedCheckpoint& one : all) list.push_back(json_of(one));
  std::printf("%s\n", list.dump(2).c_str());
}

int list(const ListFlags& flags, const std::string& path) {
  const Result<std::vector<ListedCheckpoint>> all = list_checkpoints(path, Check::Sizes);
  if (!all) return exit_with(ExitCode::Usage, all.problems());
  if (flags.format == OutputFormat::Json) return print_json(*all), 0;
  std::vector<std::vector<std::string>> lines{{"checkpoint", "step", "age", "size", "state", "notes"}};
  for (const ListedCheckpoint& one : *all)
    lines.push_back({one.folder.string(), one.step < 0 ? "-" : std::to_string(one.step), age_text(one.saved),
                     bytes_text(one.bytes), to_string(one.state), notes_of(one)});
  print_columns(lines);
  return 0;
}

int verify(const ListFlags& flags, const std::string& path) {
  const Result<std::vector<ListedCheckpoint>> all =
      while_working("reads the shards", [&] { return list_checkpoints(path, Check::Hashes); });
  if (!all) return exit_with(ExitCode::Usage, all.problems());
  if (flags.format == OutputFormat::Json) print_json(*all);
  int damaged = 0;
  for (const ListedCheckpoint& one : *all) {
    if (one.state == CheckpointState::Damaged) ++damaged;
    if (flags.format == OutputFormat::Json) continue;
    const char* state = one.state == CheckpointState::Complete
                            ? "valid"
                            : names_of(one.state)[static_cast<std::size_t>(one.state)].data();
    std::printf("%s: %s, %s\n", one.folder.c_str(), state, bytes_text(one.bytes).c_str());
    exit_with(ExitCode::Checkpoint, one.damage);
  }
  return damaged == 0 ? 0 : static_cast<int>(ExitCode::Checkpoint);
}

// ---- prune

struct PruneFlags {
  int keep_last = 0;
  std::int64_t keep_every = 0;
  bool damaged = false, abandoned = false, dry_run = false;
};

CommandSpec prune_spec(PruneFlags& f) {
  return {
      .command = "checkpoint prune",
      .summary =
          "Delete old checkpoints of a run. The newest valid one stays, and so do those that it records "
          "as the best, and those of other runs.",
      .positionals = {"DIR"},
      .flags = {{.name = "keep-last",
                 .value = "N",
                 .help = "So many of the newest valid ones stay.",
                 .required = true,
                 .target = into::integer(f.keep_last, 1, 1 << 20)},
                flag("", "keep-every", "N", "Those of every Nth step stay, too; 0: none.",
                     into::integer(f.keep_every, 0)),
                flag("", "damaged", "Delete damaged ones and saves that did not end, too.",
                     into::on(f.damaged)),
                flag("", "abandoned", "Delete the branches that the run left (abandoned-1, ...), too.",
                     into::on(f.abandoned)),
                flag("", "dry-run", "Print what would be deleted, and delete nothing.", into::on(f.dry_run))},
      .examples = {"millrace checkpoint prune out --keep-last 2 --keep-every 1000",
                   "millrace checkpoint prune out --keep-last 1 --abandoned --dry-run"}};
}

bool is_valid(const ListedCheckpoint& one) {
  return one.branch.empty() && one.state == CheckpointState::Complete;
}

/// Returns the checkpoint that a reader of the folder takes; null: there is none.
const ListedCheckpoint* newest_valid(const std::vector<ListedCheckpoint>& all) {
  auto found =
      std::ranges::find_if(all, [](const ListedCheckpoint& one) { return is_valid(one) && one.is_latest; });
  if (found == all.end()) found = std::ranges::find_if(all, is_valid);
  return found == all.end() ? nullptr : &*found;
}

/// Returns what goes. `newest` is one of `all`.
std::vector<ListedCheckpoint> doomed_of(const PruneFlags& flags, const std::vector<ListedCheckpoint>& all,
                                        const ListedCheckpoint* newest) {
  std::vector<ListedCheckpoint> doomed;
  int kept = 0;
  for (const ListedCheckpoint& one : all) {
    if (!one.branch.empty()) {
      if (flags.abandoned && one.branch.starts_with(run_files::kAbandoned.prefix)) doomed.push_back(one);
    } else if (!is_valid(one)) {
      // One that cannot be read names no run.
      if (flags.damaged && (one.run.empty() || one.run == newest->run)) doomed.push_back(one);
    } else if (one.run == newest->run) {
      const bool stays = ++kept <= flags.keep_last || !one.best.empty() || &one == newest ||
                         (flags.keep_every > 0 && one.step % flags.keep_every == 0);
      if (!stays) doomed.push_back(one);
    }
  }
  return doomed;
}

int prune(const PruneFlags& flags, const std::string& path) {
  // Hashes, so that no damaged checkpoint stays in the place of a valid one.
  const Result<std::vector<ListedCheckpoint>> all = list_checkpoints(path, Check::Hashes);
  if (!all) return exit_with(ExitCode::Usage, all.problems());
  const ListedCheckpoint& first = all->front();
  if (fs::path(path).filename() == first.folder.filename())
    return exit_with(ExitCode::Usage, {{path, "is one checkpoint", "give the folder that holds it"}});
  // A run that writes there has the lock.
  Result<RunLock> lock = flags.dry_run ? Result<RunLock>(RunLock())
                                       : RunLock::acquire(run_folder_of(first.within), new_run_id());
  if (!lock) return exit_with(ExitCode::Usage, lock.problems());
  const ListedCheckpoint* newest = newest_valid(*all);
  if (!newest)
    return exit_with(ExitCode::Checkpoint, {{path, "has no valid checkpoint: nothing is deleted",
                                             "`millrace checkpoint verify` says what is wrong"}});
  Bytes bytes = 0;
  std::set<fs::path> branches;
  Problems problems;
  const std::vector<ListedCheckpoint> doomed = doomed_of(flags, *all, newest);
  const auto is_latest = [](const ListedCheckpoint& one) { return one.branch.empty() && one.is_latest; };
  if (!flags.dry_run && std::ranges::any_of(doomed, is_latest)) {
    if (Status written = write_latest(newest->within, {step_of(newest->folder), newest->run}); !written)
      return exit_with(ExitCode::RunFailed, written.problems());
  }
  for (const ListedCheckpoint& one : doomed) {
    std::printf("%s%s\n", flags.dry_run ? "would delete " : "deleted ", one.folder.c_str());
    bytes += one.bytes;
    if (!one.branch.empty()) branches.insert(one.within);
    std::error_code error;
    if (!flags.dry_run) error = remove_checkpoint(one.folder, newest->run);
    if (error) problems.push_back({one.folder.string(), "cannot be deleted: " + error.message(), {}});
  }
  for (const fs::path& branch : branches) {
    std::error_code ignored;  // a branch of which checkpoints are left stays
    if (flags.dry_run) continue;
    fs::remove(branch / "latest", ignored);
    fs::remove(branch, ignored);
  }
  std::printf("%s%zu of %zu checkpoints, %s\n", flags.dry_run ? "would delete " : "deleted ", doomed.size(),
              all->size(), bytes_text(bytes).c_str());
  return problems.empty() ? 0 : exit_with(ExitCode::RunFailed, problems);
}

/// Runs `run` with the flags and the folder of the command line.
template <class Flags>
int with_folder(CommandSpec (*spec)(Flags&), int (*run)(const Flags&, const std::string&),
                const std::vector<std::string>& args) {
  Flags flags;
  return run_command(spec(flags), args, [&](const Arguments& given, const Problems& problems) {
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    return run(flags, given.positionals().front());
  });
}

}  // namespace

CommandSpec checkpoint_ls_spec() {
  return without_targets<ListFlags>(ls_spec);
}
int checkpoint_ls_command(const std::vector<std::string>& args) {
  return with_folder(ls_spec, list, args);
}

CommandSpec checkpoint_verify_spec() {
  return without_targets<ListFlags>(verify_spec);
}
int checkpoint_verify_command(const std::vector<std::string>& args) {
  return with_folder(verify_spec, verify, args);
}

CommandSpec checkpoint_prune_spec() {
  return without_targets<PruneFlags>(prune_spec);
}
int checkpoint_prune_command(const std::vector<std::string>& args) {
  return with_folder(prune_spec, prune, args);
}

}  // namespace millrace
