#include "experiments/sweep/journal.h"

#include <algorithm>

#include "runtime/base/run_files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// "job: lr was 0.1, is 0.2": the first member that differs.
std::string difference(const Json& before, const Json& now, const std::string& path = "") {
  if (before.is_object() && now.is_object()) {
    for (const auto& [key, value] : now.members()) {
      const Json* old = before.find(key);
      const std::string name = path.empty() ? key : path + "." + key;
      if (!old) return name + " was not set";
      if (old->dump() != value.dump()) return difference(*old, value, name);
    }
    for (const auto& [key, value] : before.members()) {
      if (!now.find(key)) return (path.empty() ? key : path + "." + key) + " was " + value.dump();
    }
  }
  if (before.is_array() && now.is_array() && before.items().size() == now.items().size()) {
    for (std::size_t i = 0; i < now.items().size(); ++i) {
      const Json &old = before.items()[i], &value = now.items()[i];
      if (old.is_object() && old.dump() != value.dump())
        return difference(old, value, path + "[" + std::to_string(i) + "]");
    }
  }
  constexpr std::size_t kMost = 60;
  const auto shortened = [](std::string text) {
    return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
  };
  return path + " was " + shortened(before.dump()) + ", is " + shortened(now.dump());
}

struct Contents {
  bool exists = false;
  Json header;
  std::vector<std::pair<std::string, Json>> records;
  std::string lines;  ///< the records that can be read
};

Result<Contents> read_contents(const fs::path& path) {
  Contents contents;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return contents;
  const Result<std::string> text = read_regular_file(path, kGiB);
  if (!text) return text.problems();
  contents.exists = true;
  std::size_t line = 0;
  for (std::size_t at = 0, end; (end = text->find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string one = text->substr(at, end - at);
    const Result<Json> json = parse_json(one, path.string() + ":" + std::to_string(++line));
    if (!json || !json->is_object())
      return json ? Problem{path.string(), "is damaged", {}} : json.problems()[0];
    if (line == 1) {
      contents.header = *json;
    } else {
      const Json* key = json->find("key");
      const Json* result = json->find("result");
      if (!key || !key->is_string() || !result)
        return Problem{path.string() + ":" + std::to_string(line), "is no record", "give another folder"};
      contents.records.emplace_back(key->as_string(), *result);
      contents.lines += one + "\n";
    }
  }
  return contents;
}

Status check_header(const fs::path& path, const Contents& contents, const std::string& format,
                    const Json& spec) {
  const Json* found = contents.header.find("format");
  const Json* theirs = contents.header.find("spec");
  const std::string hint = "give another --output-dir, or --overwrite to delete what is there";
  if (!found || !found->is_string() || found->as_string() != format || !theirs)
    return Problem{path.parent_path().string(),
                   "holds the results of something else (" +
                       (found && found->is_string() ? found->as_string() : std::string("unknown")) + ")",
                   hint};
  Json before = spec;
  const Json *old = theirs->find(kGrowingTrials), *now = spec.find(kGrowingTrials);
  if (old && now && old->is_number() && old->as_double() < now->as_double()) before[kGrowingTrials] = *old;
  if (theirs->dump() != before.dump())
    return Problem{path.parent_path().string(),
                   "holds the results of another file: " + difference(*theirs, spec), hint};
  return Ok{};
}

}  // namespace

Status check_journal_folder(const fs::path& folder, const std::string& format, const Json& spec) {
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) return Ok{};
  if (!fs::is_directory(folder, ignored)) return Problem{folder.string(), "is not a folder", {}};
  const Result<Contents> contents = read_contents(folder / kJournal);
  if (!contents) return contents.problems();
  if (contents->exists && !contents->header.is_null())
    return check_header(folder / kJournal, *contents, format, spec);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name != run_files::kLock && name != kJournal && !name.starts_with("."))
      return Problem{folder.string(), "is not empty: it holds " + escaped(name), "give a new --output-dir"};
  }
  return Ok{};
}

Result<Journal> Journal::open(const fs::path& folder, const std::string& format, const Json& spec) {
  const fs::path path = folder / kJournal;
  Result<Contents> contents = read_contents(path);
  if (!contents) return contents.problems();
  if (!contents->header.is_null()) {
    if (Status same = check_header(path, *contents, format, spec); !same) return same.problems();
  }
  // Without a line that was not finished.
  const std::string header = Json::object({{"format", format}, {"spec", spec}}).dump() + "\n";
  if (Status written = write_file_atomically(path, header + contents->lines); !written)
    return written.problems();
  Journal journal;
  for (auto& [key, result] : contents->records) journal.done_[key] = std::move(result);
  journal.file_ = LineFile(path, /*append=*/true);
  return journal;
}

const Json* Journal::find(const std::string& key) const {
  const auto found = done_.find(key);
  return found == done_.end() ? nullptr : &found->second;
}

Status Journal::record(const std::string& key, Json result) {
  const Status written = file_.write_line(Json::object({{"key", key}, {"result", result}}).dump());
  done_[key] = std::move(result);
  return written;
}

}  // namespace millrace
