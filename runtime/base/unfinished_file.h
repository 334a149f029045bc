// Names of files that are being written; a signal that ends the process removes them.
#pragma once

#include <sys/types.h>

#include <string>

namespace millrace {

/// Makes SIGINT and SIGTERM print `note` before they end this process ("nothing was written"). Signals that
/// the program handles are unaffected. A later note replaces an earlier one. Thread-safe.
void tell_when_interrupted(const std::string& note);

/// Holds the name of an incomplete file. During its lifetime, SIGINT, SIGTERM and SIGHUP remove that file and
/// then end the process as they otherwise would. A thread that registers a file during that handling waits
/// for the process to end. Signals that the program handles, blocks or ignores are unaffected. SIGKILL
/// removes nothing; callers therefore write under a temporary name and rename the complete file. A forked
/// child removes none of its parent's files. Objects may be created and destroyed in any thread.
class UnfinishedFile {
 public:
  UnfinishedFile() = default;
  /// Registers `path`. Callers create this object before the file.
  explicit UnfinishedFile(const std::string& path);
  UnfinishedFile(UnfinishedFile&& other) noexcept;
  UnfinishedFile& operator=(UnfinishedFile&& other) noexcept;
  ~UnfinishedFile();

 private:
  struct Entry;
  friend void remove_unfinished_files(int signal);
  static bool remove_all(pid_t process);
  static Entry* claim();
  Entry* entry_ = nullptr;
};

}  // namespace millrace
