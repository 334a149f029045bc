#include "runtime/base/here_and_now.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>

#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return escaped(line.substr(colon + 2));
  }
  return "";
}

std::vector<int> core_numbers_here() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

int cores_here() {
  return static_cast<int>(core_numbers_here().size());
}

std::chrono::duration<double> process_age() {
  // index of the start time among the fields after the name, in ticks since boot
  constexpr std::size_t kStart = 19;
  std::string stat;
  std::getline(std::ifstream("/proc/self/stat"), stat);
  const std::vector<std::string> fields =
      words_of(stat.substr(std::min(stat.rfind(") ") + 2, stat.size())), ' ');
  const auto ticks = number_of<double>(fields.size() > kStart ? fields[kStart] : "");
  std::timespec now{};
  if (!ticks || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return {};
  const double started = *ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return std::chrono::duration<double>(
      std::max(0.0, static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - started));
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace millrace
