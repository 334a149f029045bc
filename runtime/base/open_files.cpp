#include "runtime/base/open_files.h"

#include <sys/resource.h>

#include "runtime/base/error.h"

namespace millrace {
namespace {

rlimit limit_of_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit = {RLIM_INFINITY, RLIM_INFINITY};
  return limit;
}

std::string how_to_raise(const std::string& number) {
  return "raise the hard limit on this host: `ulimit -Hn " + number +
         "` as root, limits.conf, or LimitNOFILE of the service that starts the ranks";
}

}  // namespace

void raise_open_files() noexcept {
  rlimit limit = limit_of_open_files();
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void require_open_files(std::size_t needed, const std::string& who) {
  const rlimit limit = limit_of_open_files();
  if (limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed)
    throw ConfigError(
        who + " opens " + std::to_string(needed) + " files, and may open " + std::to_string(limit.rlim_max),
        how_to_raise(std::to_string(needed)));
  raise_open_files();
}

void throw_no_open_files(const std::string& what) {
  throw ConfigError(what + " needs one more open file, and the limit (ulimit -n) is " +
                        std::to_string(limit_of_open_files().rlim_cur),
                    how_to_raise("NUMBER"));
}

}  // namespace millrace
