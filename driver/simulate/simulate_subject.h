// The flags of `millrace simulate`, and the plan or shape that it simulates. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "driver/cli/cli.h"
#include "runtime/schedule/simulate.h"

namespace millrace {

constexpr std::int64_t kMostSimulatedMicrobatches = 1 << 20;
constexpr std::int64_t kMostSimulatedArrays = 1024;

struct SimulationSubject {
  ScheduleKind kind = ScheduleKind::OneFOneB;
  PipelineShape shape;
  ScheduleCosts costs;
  SimulationOptions options;
  std::optional<Schedule> schedule;  ///< read from a file, or ordered already; none: to be made
  std::vector<int> stash_cap;        ///< list_schedule's; by rank
  std::vector<std::string> notes;    ///< for the user
  double spread = 0;                 ///< Measured::spread of the profile that the costs are of; 0: not known
};

enum class Sending { Overlap, Block, Rendezvous };
constexpr auto names_of(Sending) {
  return std::to_array<std::string_view>({"overlap", "block", "rendezvous"});
}
/// The order of auto-order's stages on the ranks.
enum class Placement { Loop, V };
constexpr auto names_of(Placement) {
  return std::to_array<std::string_view>({"loop", "v"});
}

/// The flags of `millrace simulate`. A list of seconds or bytes has one value for all places, or one for
/// each.
struct SimulateFlags {
  std::optional<std::string> schedule_file, plan, profile, cluster;
  std::vector<ScheduleKind> schedules{ScheduleKind::OneFOneB};  ///< several: with `sweep`
  std::vector<int> stages{4}, microbatches{4};                  ///< likewise
  bool sweep = false;
  // -- shape --
  std::vector<int> replicas{1};
  std::optional<int> chunks, update_every;
  Placement placement = Placement::Loop;
  int arrays = 1;  ///< of `microbatches` each
  std::vector<double> stash_limit;
  // -- costs --
  ScheduleCosts costs{.forward = {1},
                      .backward_input = {1},
                      .backward_weight = {1},
                      .reduce = {0},
                      .update = {0},
                      .transfer = {0}};
  std::vector<double> backward{2};
  std::vector<double> stash_bytes, weight_bytes;  ///< see StageBytes
  SimulationOptions options;
  // -- conditions --
  Sending sends = Sending::Overlap;
  int ranks_per_host = 0;
  std::vector<std::string> stragglers;
  // -- output --
  std::optional<std::string> draw, write_csv;
  bool csv_transfers = false, critical_path = false, print_schedule = false;
  OutputFormat format = OutputFormat::Text;
};

/// The only one of a list; a Problem with `flag` if there are more.
template <class T>
T only(const std::vector<T>& values, const char* flag, const std::string& hint, Problems& problems) {
  if (values.size() > 1) problems.push_back({flag, "is given a list", hint});
  return values.front();
}

/// A pipeline of `stages` places with `microbatches`; the rest from the flags. One value of a cost is that of
/// a rank's layers and is divided among its chunks; a list has one for each stage. `given`: the flags that
/// were given.
SimulationSubject subject_from_flags(const SimulateFlags& flags, const Arguments& given, ScheduleKind kind,
                                     int stages, int microbatches, Problems& problems);

/// --schedule-file without a plan; costs from flags. Sets `code` for a wrong file.
Result<SimulationSubject> subject_from_file(const SimulateFlags& flags, const Arguments& given, int& code);

/// --plan with --profile, --cluster, --schedule or --schedule-file, --microbatches. Sets `code` for wrong
/// data files.
Result<SimulationSubject> subject_from_plan(const SimulateFlags& flags, const Arguments& given, int& code);

/// Heading of the flags that a plan answers by itself.
constexpr char kShapeFlags[] = "Shape and costs";
std::vector<Flag> simulation_subject_flags(SimulateFlags& flags);

}  // namespace millrace
