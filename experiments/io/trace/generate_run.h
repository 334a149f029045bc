// Raw runs in the kit's layouts, from a seed: for tests, benchmarks and to try the tools without a traced
// machine.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "experiments/io/trace/app_log.h"
#include "runtime/base/choices.h"
#include "runtime/base/result.h"

namespace millrace {

/// How the run differs from a plain one.
enum class RawRunVariant {
  Plain,
  Foreign,   ///< another Python process reads files of its own beside it
  Emulated,  ///< the same data read in steps of constant length: what a benchmark makes of the run
};
constexpr auto names_of(RawRunVariant) {
  return std::to_array<std::string_view>({"plain", "foreign", "emulated"});
}

struct GenerateRunOptions {
  std::string folder;
  TracedWorkload workload = TracedWorkload::Unet3d;  ///< unet3d or dlrm
  RawRunVariant variant = RawRunVariant::Plain;
  int gpus = 2;
  std::int64_t rows = 20'000;  ///< of all four traces together, about
  double seconds = 0;          ///< of training; 0: as long as the rows suggest, 60 s at least
  int epochs = 3;
  std::uint64_t seed = 1;
  std::int64_t start_utc_s = 1676121078;  ///< when the tracers start: 2023-02-11 13:11:18
  int zone_offset_s = -5 * 3600;          ///< of the machine's clock
};

struct GeneratedRun {
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
};

/// Writes trace_{bio,openat,read,write,time_align}.out, gpu.out, cpu.out, iostat.json and the program's log.
/// The same options, the same bytes. Problem: options out of range, or files of a run are there already.
Result<GeneratedRun> generate_run(const GenerateRunOptions& options);

}  // namespace millrace
