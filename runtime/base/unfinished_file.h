// Names of files that are being written: a signal that ends the process removes those files.
#pragma once

#include <sys/types.h>

#include <string>

namespace millrace {

/// Has SIGINT and SIGTERM print `note` before they end this process ("nothing was written"). The signals of a
/// program that handles them are left alone. A later note takes the place of an earlier one. Thread-safe.
void tell_when_interrupted(const std::string& note);

/// Holds the name of a file that is not whole yet. While it does, SIGINT, SIGTERM and SIGHUP remove that file
/// and then end the process as they would have. A thread that registers a file meanwhile waits for that end.
/// Signals that the program handles, blocks or ignores stay as they are. SIGKILL removes nothing; callers
/// therefore write under a temporary name and rename the whole file. A child made by fork removes none of its
/// parent's files. Objects may be made and destroyed in any thread.
class UnfinishedFile {
 public:
  UnfinishedFile() = default;
  /// Registers `path`. Callers make this object before they create the file.
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
