// A table of the descriptors of traced processes: the file's path and the position of the next read or write.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace millrace {

/// Not thread-safe.
class FileTable {
 public:
  struct File {
    std::string path;  ///< absolute; empty for what is no regular file
    std::int64_t position = 0;
  };

  /// The file behind a descriptor. A descriptor that is not known yet is looked up in /proc; its position is
  /// taken as it was before the last `moved` bytes. Null: no regular file, or the process has ended before it
  /// could be asked.
  File* find(std::uint32_t process, std::int64_t descriptor, std::int64_t moved = 0);

  /// The descriptor stands for the file of this name from now on. A name that is not absolute is looked for
  /// in the process's folder, if it has one still. Null: no regular file.
  const File* open(std::uint32_t process, std::int64_t descriptor, const std::string& name);
  /// The child has its parent's files, until it opens or closes some.
  void fork(std::uint32_t parent, std::uint32_t child) { parents_[child] = parent; }

  /// The file, if it has been found before.
  const File* known(std::uint32_t process, std::int64_t descriptor) const;

  /// `to` stands for what `from` stands for. Each has its own position from now on.
  void duplicate(std::uint32_t process, std::int64_t from, std::int64_t to);

  /// The descriptor stands for another file from now on, which the next `find` looks up.
  void forget(std::uint32_t process, std::int64_t descriptor);
  /// All descriptors of the process: it ended, or runs another program.
  void forget(std::uint32_t process);

  /// Descriptors that could not be looked up.
  std::int64_t unknown() const { return unknown_; }

 private:
  void look_up(std::uint32_t process, std::int64_t descriptor, std::int64_t moved, File& file);

  std::map<std::pair<std::uint32_t, std::int64_t>, File> files_;
  std::map<std::uint32_t, std::uint32_t> parents_;  ///< of processes whose parent's files may be theirs
  std::int64_t unknown_ = 0;
};

}  // namespace millrace
