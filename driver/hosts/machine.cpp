#include "driver/hosts/machine.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>

#include "runtime/base/here_and_now.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"
#include "runtime/plan/plan.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr double kSlower = 0.8;  // of the fastest host: below it a plan for equal hosts is far off

/// Returns what stands behind `name:` in a file of /proc.
std::string line_of(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const std::size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? "" : escaped(line.substr(first));
  }
  return "";
}

double speed_here() {
  using Clock = std::chrono::steady_clock;
  constexpr int kRound = 20'000, kLanes = 16;
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(i);
  double best = 0;  // of five: another process may have had the core meanwhile
  for (int block = 0; block < 5; ++block) {
    const auto start = Clock::now();
    int rounds = 0;
    while (Clock::now() - start < std::chrono::milliseconds(10)) {
      for (int i = 0; i < kRound; ++i)
        for (float& lane : lanes) lane = lane * 0.999f + 0.5f;
      ++rounds;
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, 2.0 * rounds * kRound * kLanes / seconds / 1e9);
  }
  // The compiler must not leave the loop out.
  return std::any_of(lanes, lanes + kLanes, [](float lane) { return lane < 0; }) ? 0 : best;
}

std::string gib(Bytes bytes) {
  return printed("%.1f GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}

std::string counted(int count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// Bytes that the plan's stages need on each rank.
std::map<int, Bytes> needs_of_ranks(const Plan& plan) {
  std::map<int, Bytes> needs;
  for (const PlanStage& stage : plan.stages)
    for (const RankId rank : stage.ranks) needs[rank.value] += stage.peak_bytes;
  return needs;
}

}  // namespace

int gpus_of_this_machine() {
  int count = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    const bool numbered = name.size() > 6 && std::ranges::all_of(name.substr(6), [](unsigned char c) {
                            return std::isdigit(c) != 0;
                          });
    count += name.starts_with("nvidia") && numbered ? 1 : 0;
  }
  return count;
}

Bytes free_memory() {
  return number_of<Bytes>(split(line_of("/proc/meminfo", "MemAvailable"), ' ').front()).value_or(0) * kKiB;
}

Machine this_machine() {
  return {.processor = processor_name(),
          .cores = cores_here(),
          .memory = free_memory(),
          .gpus = gpus_of_this_machine(),
          .speed = speed_here()};
}

Json to_json(const Machine& machine) {
  return Json::object({{"processor", machine.processor},
                       {"cores", machine.cores},
                       {"memory", machine.memory},
                       {"gpus", machine.gpus},
                       {"speed", machine.speed}});
}

Machine machine_from(const Json& json) {
  const auto number = [&](const char* name) {
    const Json* member = json.find(name);
    return member && member->is_number() && member->as_double() >= 0 ? member->as_double() : 0;
  };
  const Json* processor = json.find("processor");
  return {.processor = processor && processor->is_string() ? escaped(processor->as_string()) : "",
          .cores = static_cast<int>(std::min(number("cores"), 1e6)),
          .memory = static_cast<Bytes>(std::min(number("memory"), 1e18)),
          .gpus = static_cast<int>(std::min(number("gpus"), 1e6)),
          .speed = number("speed")};
}

std::string to_string(const Machine& machine) {
  return (machine.processor.empty() ? "unknown processor" : machine.processor) + ", " +
         counted(machine.cores, "core") + ", " + gib(machine.memory) + " free" +
         (machine.gpus > 0 ? ", " + counted(machine.gpus, "GPU") : "");
}

std::vector<std::string> warnings_on(const std::vector<HostEntry>& hosts, const std::vector<int>& ranks,
                                     const std::vector<Machine>& machines, const Plan* plan, bool on_gpu) {
  std::vector<std::string> warnings, here;
  for (std::size_t h = 0; h < hosts.size(); ++h)
    here.push_back(hosts[h].name + ":" + std::to_string(ranks[h]));
  if (plan && !plan->planned_for.hosts.empty() && plan->planned_for.hosts != here)
    warnings.push_back("the plan was made for the hosts " + joined(plan->planned_for.hosts) +
                       ", the job has " + joined(here) + ": its predictions may not hold");
  const std::map<int, Bytes> needs = plan ? needs_of_ranks(*plan) : std::map<int, Bytes>{};
  int rank = 0;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    const Machine& machine = machines[h];
    Bytes need = 0;
    for (int local = 0; local < ranks[h]; ++local, ++rank) {
      const auto found = needs.find(rank);
      need += found == needs.end() ? 0 : found->second;
    }
    if (on_gpu) continue;
    if (machine.cores > 0 && ranks[h] > machine.cores)
      warnings.push_back(hosts[h].name + " has " + counted(machine.cores, "core") + " for " +
                         counted(ranks[h], "rank") + ": they will wait for each other");
    if (machine.memory > 0 && need > machine.memory)
      warnings.push_back("the plan needs " + gib(need) + " on " + hosts[h].name + ", where " +
                         gib(machine.memory) + " are free");
  }
  const auto fastest = std::ranges::max_element(machines, {}, &Machine::speed);
  for (std::size_t h = 0; !on_gpu && h < hosts.size(); ++h) {
    const Machine& machine = machines[h];
    if (machine.speed <= 0 || machine.speed >= kSlower * fastest->speed) continue;
    warnings.push_back(hosts[h].name + " (" + machine.processor + ") computes at " +
                       printed("%.2f", machine.speed / fastest->speed) + " of the speed of " +
                       hosts[fastest - machines.begin()].name + " (" + fastest->processor +
                       "); `millrace profile --network --job` writes speeds into the cluster file, and the "
                       "planner sizes stages by them");
  }
  return warnings;
}

}  // namespace millrace
