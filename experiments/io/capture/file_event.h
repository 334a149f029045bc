// One call of a traced process into the kernel that has to do with files.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace millrace {

inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

enum class FileCall : std::uint8_t {
  Read,
  Write,
  Copy,  ///< from one descriptor to another inside the kernel: sendfile, copy_file_range, splice
  Open,
  Close,
  Make,    ///< a folder
  Remove,  ///< a folder
  Unlink,  ///< a file
  Map,     ///< a file into memory
  Seek,
  Duplicate,
  Rename,  ///< the thread gives itself a name; no event has it
  Clone,   ///< a file shares another's blocks (ioctl FICLONE)
  Unseen,  ///< work handed to the kernel whose calls cannot be seen one by one (io_uring, aio)
};

/// The values are as the kernel gives them; which of them a call has is said at each.
struct FileEvent {
  FileCall call = FileCall::Read;
  std::int64_t end_ns = 0;          ///< CLOCK_MONOTONIC, when the call returned
  std::int64_t latency_ns = 0;      ///< from the call to its return
  std::uint32_t process = 0;        ///< the thread group ("PID")
  std::string command;              ///< name of the thread, at most 15 characters
  std::int64_t result = 0;          ///< bytes, a descriptor, or a negative errno
  std::int64_t descriptor = -1;     ///< all but Open, Make, Remove, Unlink
  std::int64_t offset = -1;         ///< Read, Write and Copy that name one; -1: at the file's position
  std::int64_t target = -1;         ///< Copy: the descriptor written to; -1: memory
  std::int64_t target_offset = -1;  ///< Copy: as `offset`
  std::int64_t bytes = 0;           ///< Map: the length
  std::uint64_t address = 0;        ///< Map
  std::int64_t mode = 0;            ///< Make
  std::string path;                 ///< Make, Remove, Unlink; Open may have it: as the program wrote it
};

}  // namespace millrace
