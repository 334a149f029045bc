// The commands that `millrace` hands to millrace-io, as its lists of commands show them. Their flags are in
// millrace-io.
#pragma once

#include "driver/cli/cli.h"

namespace millrace {

struct IoCommand {
  const char* command;
  const char* summary;
  const char* example = nullptr;  ///< the first; of a command in a group, whose list shows it
};

inline constexpr IoCommand kIoData{
    "data", "Generate data sets of the I/O study in their exact formats, check them; text to token files."};
inline constexpr IoCommand kIoDataGenerate{
    "data generate",
    "Write a data set of a given size: the same bytes for the same seed, whatever the threads.",
    "millrace data generate --workload imseg --out data/unet3d --size 16GB"};
inline constexpr IoCommand kIoDataCheck{
    "data check", "Compare every byte of a generated data set with what its manifest says.",
    "millrace data check data/dlrm"};
inline constexpr IoCommand kIoDlio{
    "dlio", "Run DLIO's workloads: generate, train, evaluate, checkpoint, with emulated accelerators."};
inline constexpr IoCommand kIoTrace{
    "trace", "Traces of I/O, GPU and CPU: read the kit's raw runs, draw, compare, convert."};
inline constexpr IoCommand kIoInstrument{
    "instrument", "Step times of many runs: the kit's tables, charts, fitted distributions."};
inline constexpr IoCommand kIoExperiment{
    "experiment",
    "Run jobs in variants over ranks, batches and data: original, instrumented, sleeping and on generated "
    "data; compare them."};
inline constexpr IoCommand kIoStalls{
    "stalls", "Data stalls: where a training loop waits for its data, and what would cure it."};

/// Returns the line as a spec, to which the command itself adds its flags.
inline CommandSpec listed(const IoCommand& io) {
  CommandSpec spec{.command = io.command, .summary = io.summary};
  if (io.example) spec.examples = {io.example};
  return spec;
}

}  // namespace millrace
