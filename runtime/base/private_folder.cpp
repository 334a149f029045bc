#include "runtime/base/private_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/files.h"

namespace millrace {

Status make_private_folder(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path plain = path.has_filename() ? path : path.parent_path();  // "out/"
  const fs::path parent = plain.has_parent_path() ? plain.parent_path() : fs::path(".");
  fs::create_directories(parent, ignored);
  struct stat info {};
  if (::stat(parent.c_str(), &info) == 0 && info.st_uid == ::geteuid() && ::mkdir(plain.c_str(), 0700) == 0)
    ::chmod(plain.c_str(), 0700);  // the umask may have removed the owner's own permissions
  return make_writable_folder(path);
}

}  // namespace millrace
