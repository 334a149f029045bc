#include "driver/command_support.h"

#include <cstdio>

namespace millrace {

int exit_with(ExitCode code, const Problems& problems) {
  for (const Problem& problem : problems) std::fprintf(stderr, "%s\n", to_string(problem).c_str());
  return static_cast<int>(code);
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
