// A journal of a sweep or a search. Each thing that is done is one line of JSON, on disk before the next
// thing begins. A program that starts again reads it and goes on. LibTorch-free.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

class Journal {
 public:
  /// Opens DIR/journal.jsonl, or begins it. `format` ("millrace-sweep-1") and `spec` are its first line; one
  /// of another format or spec is a Problem that says what differs. Only the number `kGrowingTrials` may be
  /// greater than the journal's, which then takes it. A last line that was cut off is dropped.
  static Result<Journal> open(const std::filesystem::path& folder, const std::string& format,
                              const Json& spec);

  /// nullptr: not done.
  const Json* find(const std::string& key) const;
  /// Later records of a key win. A Problem if the disk is full.
  Status record(const std::string& key, Json result);
  std::size_t size() const { return done_.size(); }

 private:
  std::map<std::string, Json> done_;
  LineFile file_;
};

inline constexpr const char* kJournal = "journal.jsonl";
/// The member of a spec that may grow: results of a trial do not depend on how many trials there are.
inline constexpr const char* kGrowingTrials = "trials";

/// A Problem if `folder` holds anything that is no part of a journal's folder: it is somebody else's.
Status check_journal_folder(const std::filesystem::path& folder, const std::string& format, const Json& spec);

}  // namespace millrace
