// Helpers of the worker's commands: model flags, threads, and the translation of failures into exit codes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/loading/dataset.h"
#include "driver/cli/cli.h"
#include "driver/flags/compute_specs.h"
#include "driver/launch/model_flags.h"
#include "models/registry.h"
#include "runtime/base/error.h"
#include "runtime/comm/nccl_api.h"
#include "runtime/device/device.h"

namespace millrace {

/// The devices of a program besides the CPU. millrace-worker has none.
struct Accelerator {
  std::function<Result<std::shared_ptr<Device>>(int local_rank)> make_device;
  std::function<std::shared_ptr<NcclApi>(const Device& device)> make_nccl;  ///< empty: built without NCCL
};

/// Models and data sets that a program adds to those of millrace.
struct Additions {
  std::vector<Model> models;
  std::vector<NamedDataset> datasets;
};

/// The device of a rank. Problem: this program has none of that kind, or none is visible.
Result<std::shared_ptr<Device>> device_from(ComputeDevice kind, int local_rank,
                                            const Accelerator& accelerator);

/// --threads and --deterministic for this process. Some of LibTorch's CUDA kernels (backward of max pooling)
/// have no deterministic form: with `Missing::Warn` they run anyway, with a warning.
enum class Missing { Refuse, Warn };
void set_compute_threads(int threads, bool deterministic, Missing missing = Missing::Refuse);

/// Returns a warning if this processor has no units for `precision` and so computes slowly in it. Returns an
/// empty text if it has them, or if another device computes.
std::string slow_precision(Precision precision, ComputeDevice device);

/// Prints `problems` to stderr and returns `code`, so that a command can end with it.
int report_problems(const Problems& problems, ExitCode code);
/// Runs a command's body. Returns its exit code, or that of an exception, whose message it prints.
int guarded(const std::function<int()>& body);

/// Prepares the process for the worker's commands. Call it once, before the first command. Not thread-safe.
void prepare_process();

/// main() of the workers: `args` without the program's name.
int worker_program(const std::vector<std::string>& args, const Accelerator& accelerator);
int train_command(const std::vector<std::string>& args, const Accelerator& accelerator,
                  const Additions& own = {});
int evaluate_command(const std::vector<std::string>& args, const Accelerator& accelerator,
                     const Additions& own = {});
int predict_command(const std::vector<std::string>& args, const Accelerator& accelerator,
                    const Additions& own = {});
int profile_command(const std::vector<std::string>& args, const Accelerator& accelerator,
                    const Additions& own = {});
int fuse_command(const std::vector<std::string>& args);
int split_command(const std::vector<std::string>& args);
int translate_command(const std::vector<std::string>& args);
int models_command(const std::vector<std::string>& args, const Additions& own = {});

/// `spec` of `train` or `profile` with the options of all models, and with the names of `own` in its help.
CommandSpec with_additions(CommandSpec spec, const Additions& own, GivenOptions& given);

}  // namespace millrace
