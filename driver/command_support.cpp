#include "driver/command_support.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace millrace {

int exit_with(ExitCode code, const Problems& problems) {
  for (const Problem& problem : problems) std::fprintf(stderr, "%s\n", to_string(problem).c_str());
  return static_cast<int>(code);
}

int code_after_output(int code) {
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!lost) return code;
  std::fprintf(stderr, "error: stdout: the result could not be written%s%s\nHint: is the disk full?\n",
               errno ? ": " : "", errno ? std::strerror(errno) : "");
  return code == 0 ? static_cast<int>(ExitCode::RunFailed) : code;
}

std::string long_name(const char* flag) {
  std::string name = "--";
  return name.append(flag);
}

OutputFormat output_format(const Arguments& arguments, Problems& problems) {
  const std::string format = arguments.string("format");
  if (format == "json") return OutputFormat::Json;
  if (format != "text") problems.push_back({"--format", "unknown format '" + format + "'", "text or json"});
  return OutputFormat::Text;
}

Result<ClusterSpec> cluster_of(const Arguments& arguments, int ranks) {
  if (arguments.has("cluster")) return ClusterSpec::load(arguments.string("cluster"));
  return ClusterSpec::local(ranks);
}

}  // namespace millrace
