#include "data/text/output_files.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "data/text/text_jobs.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"

namespace millrace {
namespace {

const char* const kReplaceHint = "give another name, or --overwrite";

}  // namespace

OutputFiles::OutputFiles(std::vector<std::string> paths, const std::vector<std::string>& inputs,
                         Existing existing)
    : paths_(std::move(paths)), existing_(existing) {
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    const std::filesystem::path path = paths_[i];
    std::error_code error;
    const auto whole = [&](const std::string& p) { return std::filesystem::weakly_canonical(p, error); };
    for (std::size_t k = 0; k < i; ++k) {
      if (whole(paths_[k]) == whole(paths_[i]))
        throw ConfigError(paths_[i] + ": is the name of two outputs", "give each its own");
    }
    for (const std::string& input : inputs) {
      if (whole(input) == whole(paths_[i]))
        throw ConfigError(paths_[i] + ": is an input and an output", "give the output another name");
    }
    if (existing_ == Existing::Refused && std::filesystem::exists(path, error))
      throw ConfigError(paths_[i] + ": exists already", kReplaceHint);
    if (const Status status = make_place_for_file(path); !status)
      throw ConfigError(to_string(status.problems()));
    temporary_.push_back(paths_[i] + ".tmp." + std::to_string(::getpid()));
    unfinished_.emplace_back(temporary_.back());
  }
}

OutputFiles::~OutputFiles() {
  for (const std::string& path : temporary_) ::unlink(path.c_str());
}

void OutputFiles::publish() {
  const unsigned flags = existing_ == Existing::Refused ? RENAME_NOREPLACE : 0;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    const char *from = temporary_[i].c_str(), *to = paths_[i].c_str();
    int failed = ::renameat2(AT_FDCWD, from, AT_FDCWD, to, flags);
    if (failed != 0 && errno == EINVAL) failed = ::rename(from, to);  // a file system without the flag
    if (failed != 0 && errno == EEXIST) throw ConfigError(paths_[i] + ": was made meanwhile", kReplaceHint);
    if (failed != 0) throw DataError(paths_[i] + ": rename failed: " + std::strerror(errno));
  }
  for (const std::string& path : paths_) sync_folder(std::filesystem::path(path).parent_path());
  temporary_.clear();
  unfinished_.clear();
}

}  // namespace millrace
