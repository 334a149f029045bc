#include "experiments/io/capture/file_table.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace millrace {
namespace {

std::string of_process(std::uint32_t process, const char* folder, std::int64_t descriptor) {
  return "/proc/" + std::to_string(process) + "/" + folder + "/" + std::to_string(descriptor);
}

/// The position that an inherited descriptor has.
std::int64_t position_of(std::uint32_t process, std::int64_t descriptor) {
  std::ifstream info(of_process(process, "fdinfo", descriptor));
  std::string key;
  std::int64_t position = 0;
  return info >> key >> position && key == "pos:" ? position : 0;
}

bool is_regular(const std::filesystem::path& path) {
  struct stat about {};
  return stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode);
}

/// Not what the kernel makes up.
bool is_data(const std::string& path) {
  return !path.starts_with("/proc/") && !path.starts_with("/sys/") && !path.starts_with("/dev/");
}

}  // namespace

FileTable::File* FileTable::find(std::uint32_t process, std::int64_t descriptor, std::int64_t moved) {
  const auto [found, is_new] = files_.try_emplace({process, descriptor});
  File& file = found->second;
  if (is_new) look_up(process, descriptor, moved, file);
  return file.path.empty() ? nullptr : &file;
}

void FileTable::look_up(std::uint32_t process, std::int64_t descriptor, std::int64_t moved, File& file) {
  if (const auto parent = parents_.find(process); parent != parents_.end()) {
    if (const auto inherited = files_.find({parent->second, descriptor}); inherited != files_.end()) {
      file = inherited->second;
      return;
    }
  }
  const std::string link = of_process(process, "fd", descriptor);
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink(link, error);
  if (error) {
    ++unknown_;
  } else if (path.is_absolute() && is_data(path.native()) && is_regular(link)) {
    file.path = path.native();
    file.position = std::max<std::int64_t>(position_of(process, descriptor) - moved, 0);
  }
}

const FileTable::File* FileTable::open(std::uint32_t process, std::int64_t descriptor,
                                       const std::string& name) {
  File& file = files_[{process, descriptor}] = {};
  std::filesystem::path path = name;
  if (!path.is_absolute()) {
    std::error_code error;
    const auto folder = std::filesystem::read_symlink("/proc/" + std::to_string(process) + "/cwd", error);
    if (!error) path = (folder / path).lexically_normal();
  }
  std::error_code error;
  // A file that is gone by now was one.
  if (is_data(path.native()) && (is_regular(path) || !std::filesystem::exists(path, error)))
    file.path = path.native();
  return file.path.empty() ? nullptr : &file;
}

const FileTable::File* FileTable::known(std::uint32_t process, std::int64_t descriptor) const {
  const auto found = files_.find({process, descriptor});
  return found == files_.end() || found->second.path.empty() ? nullptr : &found->second;
}

void FileTable::duplicate(std::uint32_t process, std::int64_t from, std::int64_t to) {
  forget(process, to);
  find(process, from);
  if (const auto found = files_.find({process, from}); found != files_.end()) {
    const File file = found->second;
    files_[{process, to}] = file;
  }
}

void FileTable::forget(std::uint32_t process, std::int64_t descriptor) {
  files_.erase({process, descriptor});
}

void FileTable::forget(std::uint32_t process) {
  files_.erase(files_.lower_bound({process, INT64_MIN}), files_.upper_bound({process, INT64_MAX}));
  parents_.erase(process);
}

}  // namespace millrace
