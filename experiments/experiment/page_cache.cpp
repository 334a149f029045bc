#include "experiments/experiment/page_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace millrace {
namespace {

template <class Use>
void each_opened(const std::vector<std::string>& files, Use use) {
  for (const std::string& file : files) {
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    use(fd);
    ::close(fd);
  }
}

}  // namespace

std::vector<std::string> files_below(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  std::error_code error;
  for (const std::string& path : paths) {
    if (fs::is_regular_file(path, error)) files.push_back(path);
    if (!fs::is_directory(path, error)) continue;
    const auto options = fs::directory_options::skip_permission_denied;
    for (auto entry = fs::recursive_directory_iterator(path, options, error);
         !error && entry != fs::recursive_directory_iterator(); entry.increment(error))
      if (std::error_code ignored; entry->is_regular_file(ignored)) files.push_back(entry->path().string());
  }
  std::ranges::sort(files);
  return files;
}

void warm_cache(const std::vector<std::string>& files) {
  std::string buffer(1 << 20, '\0');
  each_opened(files, [&](int fd) {
    for (ssize_t got = 1; got > 0 || (got < 0 && errno == EINTR);)
      got = ::read(fd, buffer.data(), buffer.size());
  });
}

void drop_cache(const std::vector<std::string>& files) {
  each_opened(files, [](int fd) {
    ::fdatasync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  });
}

}  // namespace millrace
