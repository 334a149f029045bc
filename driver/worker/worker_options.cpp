#include "driver/worker/worker_options.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "driver/cli/command_support.h"
#include "driver/hosts/program_paths.h"
#include "runtime/base/failure_text.h"
#include "runtime/base/log.h"
#include "runtime/base/open_files.h"
#include "runtime/base/option_names.h"
#include "runtime/device/failures.h"
#include "runtime/device/host_memory.h"

namespace millrace {

Result<std::shared_ptr<Device>> device_from(ComputeDevice kind, int local_rank,
                                            const Accelerator& accelerator) {
  if (kind == ComputeDevice::Cpu) return make_cpu_device();
  if (kind == ComputeDevice::Emulated)
    return Problem{"--device emulated", "only `train` runs on emulated devices", "give cpu or cuda"};
  if (!accelerator.make_device) {
    return Problem{"--device cuda", "this program computes on the CPU only",
                   "`millrace` starts millrace-worker-cuda for it (" + worker_hint(kind) + ")"};
  }
  return accelerator.make_device(local_rank);
}

void set_compute_threads(int threads, bool deterministic, Missing missing) {
  install_host_allocator();
  if (threads > 0) at::set_num_threads(threads);
  if (!deterministic) return;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/missing == Missing::Warn);
  // cuBLAS promises it only with a workspace of a fixed size. LibTorch parses this text before every product,
  // which takes longer than to launch it: other runs go without.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
}

CommandSpec with_additions(CommandSpec spec, const Additions& own, GivenOptions& given) {
  if (const auto data = std::ranges::find(spec.flags, "data", &Flag::name);
      data != spec.flags.end() && !own.datasets.empty()) {
    data->help += " Of this program:";
    for (const NamedDataset& dataset : own.datasets) data->help += " " + dataset.name;
    data->help += ".";
  }
  return with_model_options(std::move(spec), model_descriptions(own.models), given);
}

std::string slow_precision(Precision precision, ComputeDevice device) {
  if (device != ComputeDevice::Cpu || precision == Precision::Float32) return "";
  __builtin_cpu_init();
  const bool is_brain = precision == Precision::BFloat16;
  const bool has_units =
      is_brain ? __builtin_cpu_supports("avx512bf16") != 0 : __builtin_cpu_supports("avx512fp16") != 0;
  if (has_units) return "";
  return "--precision " + to_string(precision) + ": this processor has no units for it (" +
         (is_brain ? "avx512_bf16" : "avx512_fp16") +
         "), so a step can take many times as long as in float32; the numbers are those of a processor that "
         "has";
}

int report_problems(const Problems& problems, ExitCode code) {
  for (const Problem& problem : problems) std::fprintf(stderr, "error: %s\n", to_string(problem).c_str());
  return static_cast<int>(code);
}

int guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s%s\n", job_mark().c_str(), error.what());
    if (!error.hint().empty()) std::fprintf(stderr, "Hint: %s\n", error.hint().c_str());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: %s%s\nHint: %s\n", job_mark().c_str(), out_of_memory_text().c_str(),
                 kLessMemory);
  } catch (const c10::OutOfMemoryError&) {  // of a GPU, outside of any layer
    std::fprintf(stderr, "error: %s%s\nHint: %s\n", job_mark().c_str(), text_of_failure().c_str(),
                 kLessMemory);
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "error: %sthe system refuses a thread or another resource: %s\nHint: %s\n",
                 job_mark().c_str(), error.what(),
                 "look at the limits of the shell (ulimit -a): -u processes, -v address space, -n files");
  } catch (...) {
    std::fprintf(stderr, "error: %s%s\n", job_mark().c_str(), text_of_failure().c_str());
  }
  return static_cast<int>(ExitCode::RunFailed);
}

namespace {

using Words = std::vector<std::string>;
struct WorkerCommand {
  const char* name;
  int (*run)(const Words& args, const Accelerator& accelerator);
};
constexpr WorkerCommand kWorkerCommands[] = {
    {"train", [](const Words& args, const Accelerator& of) { return train_command(args, of); }},
    {"evaluate", [](const Words& args, const Accelerator& of) { return evaluate_command(args, of); }},
    {"predict", [](const Words& args, const Accelerator& of) { return predict_command(args, of); }},
    {"profile", [](const Words& args, const Accelerator& of) { return profile_command(args, of); }},
    {"translate", [](const Words& args, const Accelerator&) { return translate_command(args); }},
    {"fuse", [](const Words& args, const Accelerator&) { return fuse_command(args); }},
    {"split", [](const Words& args, const Accelerator&) { return split_command(args); }},
    {"models", [](const Words& args, const Accelerator&) { return models_command(args); }},
};

}  // namespace

void prepare_process() {
  set_option_names(OptionNames::Flags);
  ::signal(SIGXFSZ, SIG_IGN);  // a file that grows over a limit is an error of its write, not the end
  raise_open_files();          // each peer of another host takes one
}

int worker_program(const std::vector<std::string>& args, const Accelerator& accelerator) {
  prepare_process();
  const std::string name = args.empty() ? "" : args[0];
  const std::vector<std::string> rest(args.empty() ? args.end() : args.begin() + 1, args.end());
  std::string names;
  for (const WorkerCommand& command : kWorkerCommands) {
    if (name == command.name) return code_after_output(command.run(rest, accelerator));
    names += (names.empty() ? "" : ", ") + std::string(command.name);
  }
  std::fprintf(stderr,
               "millrace-worker: '%s' is not a command of the worker (%s).\nHint: type `millrace --help`\n",
               name.c_str(), names.c_str());
  return static_cast<int>(ExitCode::Usage);
}

}  // namespace millrace
