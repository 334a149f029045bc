#include "runtime/counters/kernel_counts.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

Problem not_as_expected(const fs::path& file) {
  return {file.string(), "is not as Linux writes it", {}};
}

/// Returns the numbers among the words of `line`, starting at word `first`; stops at the first word that is
/// not a number.
std::vector<std::uint64_t> numbers_in(std::string_view line, std::size_t first) {
  std::vector<std::uint64_t> numbers;
  std::size_t word = 0;
  for (std::size_t at = line.find_first_not_of(" \t"); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(" \t", at), line.size());
    if (word++ >= first) {
      const auto number = number_of<std::uint64_t>(line.substr(at, end - at));
      if (!number) break;
      numbers.push_back(*number);
    }
    at = line.find_first_not_of(" \t", end);
  }
  return numbers;
}

/// Returns the value after "NAME:" in lines of "NAME: VALUE [kB]".
std::uint64_t value_of(const std::string& text, std::string_view name) {
  for (const std::string& line : split(text, '\n')) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    const std::vector<std::uint64_t> numbers = numbers_in(std::string_view(line).substr(name.size() + 1), 0);
    return numbers.empty() ? 0 : numbers.front() * (line.ends_with("kB") ? 1024 : 1);
  }
  return 0;
}

}  // namespace

KernelCounts::KernelCounts(fs::path proc, fs::path sys) : proc_(std::move(proc)), sys_(std::move(sys)) {}

double KernelCounts::seconds(std::uint64_t ticks) {
  static const auto of_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return static_cast<double>(ticks) / of_second;
}

Result<std::string> KernelCounts::read(const fs::path& file) {
  Result<std::string> text = read_file(file);
  if (text) bytes_read_ += text->size();
  return text;
}

Result<std::vector<CpuTicks>> KernelCounts::cpu() {
  const fs::path file = proc_ / "stat";
  const Result<std::string> text = read(file);
  if (!text) return text.problems();
  std::vector<CpuTicks> all;
  for (const std::string& line : split(*text, '\n')) {
    if (!line.starts_with("cpu")) break;
    const std::vector<std::uint64_t> numbers = numbers_in(line, 1);
    if (numbers.size() < 4) return not_as_expected(file);
    CpuTicks ticks;
    std::copy_n(numbers.begin(), std::min<std::size_t>(numbers.size(), 10), ticks.of);
    // The kernel counts guest time twice: also in user and nice.
    ticks.of[CpuTicks::User] -= std::min(ticks.of[CpuTicks::User], ticks.of[CpuTicks::Guest]);
    ticks.of[CpuTicks::Nice] -= std::min(ticks.of[CpuTicks::Nice], ticks.of[CpuTicks::GuestNice]);
    all.push_back(ticks);
  }
  if (all.empty()) return not_as_expected(file);
  return all;
}

Result<std::map<std::string, DiskCounts>> KernelCounts::disks() {
  const Result<std::string> text = read(proc_ / "diskstats");
  if (!text) return text.problems();
  std::map<std::string, DiskCounts> disks;
  for (const std::string& line : split(*text, '\n')) {
    const std::vector<std::string> words = words_of(line, ' ');
    if (words.size() < 14) continue;
    const std::string& name = words[2];
    std::error_code error;
    if (name.starts_with("loop") || name.starts_with("ram") || !fs::exists(sys_ / "block" / name, error))
      continue;
    const std::vector<std::uint64_t> n = numbers_in(line, 3);
    if (n.size() < 11) continue;
    disks[name] = {.reads = n[0],
                   .read_sectors = n[2],
                   .read_ms = n[3],
                   .writes = n[4],
                   .written_sectors = n[6],
                   .write_ms = n[7],
                   .busy_ms = n[9],
                   .in_flight_ms = n[10]};
  }
  return disks;
}

Result<std::map<std::string, NetworkCounts>> KernelCounts::networks() {
  const fs::path file = proc_ / "net/dev";
  const Result<std::string> text = read(file);
  if (!text) return text.problems();
  std::map<std::string, NetworkCounts> networks;
  for (const std::string& line : split(*text, '\n')) {
    const std::size_t colon = line.rfind(':');
    if (colon == std::string::npos) continue;
    const std::vector<std::uint64_t> n = numbers_in(std::string_view(line).substr(colon + 1), 0);
    if (n.size() < 16) return not_as_expected(file);
    const std::size_t begin = line.find_first_not_of(' ');
    networks[line.substr(begin, colon - begin)] = {.received_bytes = n[0],
                                                   .received_packets = n[1],
                                                   .sent_bytes = n[8],
                                                   .sent_packets = n[9],
                                                   .errors = n[2] + n[3] + n[10] + n[11]};
  }
  return networks;
}

Result<MemoryCounts> KernelCounts::memory() {
  const fs::path file = proc_ / "meminfo";
  const Result<std::string> text = read(file);
  if (!text) return text.problems();
  const MemoryCounts memory{.total = value_of(*text, "MemTotal"),
                            .available = value_of(*text, "MemAvailable"),
                            .cached = value_of(*text, "Cached"),
                            .dirty = value_of(*text, "Dirty")};
  if (memory.total == 0) return not_as_expected(file);
  return memory;
}

Result<ProcessCounts> KernelCounts::process(const std::string& process) {
  const fs::path file = proc_ / process / "stat";
  const Result<std::string> text = read(file);
  if (!text) return text.problems();
  const std::size_t open = text->find('('), close = text->rfind(')');
  if (open == std::string::npos || close == std::string::npos) return not_as_expected(file);
  // proc(5): state is the third field, and the first after the name. The numbers start with the fourth field;
  // some of them are negative.
  const std::vector<std::string> words = words_of(text->substr(close + 1), ' ');
  if (words.size() < 22) return not_as_expected(file);
  bool is_known = true;
  const auto field = [&](std::size_t number) {
    const auto value = number_of<std::uint64_t>(words[number - 3]);
    is_known = is_known && value;
    return value.value_or(0);
  };
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const ProcessCounts counts{.name = text->substr(open + 1, close - open - 1),
                             .cpu_s = seconds(field(14) + field(15)),
                             .threads = field(20),
                             .minor_faults = field(10),
                             .major_faults = field(12),
                             .resident = field(24) * page};
  if (!is_known) return not_as_expected(file);
  return counts;
}

Result<ProcessIo> KernelCounts::process_io(const std::string& process) {
  const fs::path file = proc_ / process / "io";
  const Result<std::string> text = read(file);
  if (!text) return text.problems();
  if (!text->starts_with("rchar:")) return not_as_expected(file);
  return ProcessIo{.read_by_calls = value_of(*text, "rchar"),
                   .written_by_calls = value_of(*text, "wchar"),
                   .read_from_disk = value_of(*text, "read_bytes"),
                   .written_to_disk = value_of(*text, "write_bytes")};
}

}  // namespace millrace
