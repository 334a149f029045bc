#include "runtime/counters/page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>

namespace millrace {
namespace {

namespace fs = std::filesystem;

template <class Use>
void each_opened(const std::vector<std::string>& files, Use use) {
  for (const std::string& file : files) {
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    use(fd);
    ::close(fd);
  }
}

/// Calls `use` for each regular file among `paths` and in the folders among them, until it returns false.
/// Returns whether all files were visited.
bool each_file(const std::vector<std::string>& paths, const std::function<bool(const std::string&)>& use) {
  std::error_code error;
  for (const std::string& path : paths) {
    if (fs::is_regular_file(path, error) && !use(path)) return false;
    if (!fs::is_directory(path, error)) continue;
    const auto options = fs::directory_options::skip_permission_denied;
    for (auto entry = fs::recursive_directory_iterator(path, options, error);
         !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      std::error_code ignored;
      if (entry->is_regular_file(ignored) && !use(entry->path().string())) return false;
    }
  }
  return true;
}

struct Pages {
  std::size_t bytes = 0, pages = 0, cached = 0;
};

/// Returns the pages of a file part that starts at `from`, a multiple of the page size; no pages if they
/// could not be checked.
Pages pages_of(int fd, std::size_t from, std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  Pages found;
  if (bytes == 0) return found;
  void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(from));
  if (mapped == MAP_FAILED) return found;
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  if (::mincore(mapped, bytes, resident.data()) == 0) {
    found.bytes = bytes;
    found.pages = resident.size();
    for (const unsigned char flag : resident) found.cached += flag & 1;
  }
  ::munmap(mapped, bytes);
  return found;
}

std::size_t size_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && info.st_size > 0 ? static_cast<std::size_t>(info.st_size) : 0;
}

}  // namespace

std::vector<std::string> files_below(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  each_file(paths, [&](const std::string& file) {
    files.push_back(file);
    return true;
  });
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

double cached_share(const std::vector<std::string>& files) {
  constexpr std::size_t kMostFiles = 64, kMostBytes = 64 << 20;
  std::vector<std::string> some;
  const std::size_t step = std::max<std::size_t>(1, files.size() / kMostFiles);
  for (std::size_t i = 0; i < files.size(); i += step) some.push_back(files[i]);
  std::size_t pages = 0, cached = 0;
  each_opened(some, [&](int fd) {
    const Pages found = pages_of(fd, 0, std::min(kMostBytes, size_of(fd)));
    pages += found.pages;
    cached += found.cached;
  });
  return pages == 0 ? -1 : static_cast<double>(cached) / static_cast<double>(pages);
}

CacheResidency cache_residency(const std::vector<std::string>& paths, std::chrono::milliseconds budget) {
  constexpr std::size_t kPart = std::size_t{1} << 28;  // bytes: 65,536 pages of 4 KiB take a fraction of a ms
  const auto end = std::chrono::steady_clock::now() + budget;
  const auto is_over = [&] { return std::chrono::steady_clock::now() >= end; };
  CacheResidency all;
  double resident = 0;
  const auto look_at = [&](const std::string& file) {
    if (is_over()) return false;
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ++all.unreadable, true;
    const std::size_t size = size_of(fd);
    std::size_t seen = 0;
    while (seen < size && !is_over()) {
      const Pages found = pages_of(fd, seen, std::min(kPart, size - seen));
      if (found.pages == 0) break;
      seen += found.bytes;
      resident += static_cast<double>(found.bytes) * static_cast<double>(found.cached) /
                  static_cast<double>(found.pages);
    }
    ::close(fd);
    all.bytes += static_cast<std::int64_t>(seen);
    if (seen == size) return ++all.files, true;
    if (is_over()) return false;
    return ++all.unreadable, true;
  };
  all.is_whole = each_file(paths, look_at);
  all.resident_bytes = static_cast<std::int64_t>(resident);
  return all;
}

}  // namespace millrace
