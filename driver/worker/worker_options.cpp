#include "driver/worker/worker_options.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "driver/cli/command_support.h"
#include "driver/launch/program_paths.h"
#include "runtime/base/failure_text.h"
#include "runtime/device/failures.h"
#include "runtime/device/host_memory.h"

namespace millrace {

Result<std::shared_ptr<Device>> device_from(ComputeDevice kind, int local_rank,
                                            const Accelerator& accelerator) {
  if (kind == ComputeDevice::Cpu) return make_cpu_device();
  if (!accelerator.make_device) {
    return Problem{"--device cuda", "this program computes on the CPU only",
                   "`millrace` starts millrace-worker-cuda for it (" + worker_hint(kind) + ")"};
  }
  return accelerator.make_device(local_rank);
}

void set_compute_threads(int threads, bool deterministic, Missing missing) {
  install_host_allocator();
  if (threads > 0) at::set_num_threads(threads);
  if (deterministic)
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/missing == Missing::Warn);
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

int report_problems(const Problems& problems, ExitCode code) {
  for (const Problem& problem : problems) std::fprintf(stderr, "error: %s\n", to_string(problem).c_str());
  return static_cast<int>(code);
}

int guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    if (!error.hint().empty()) std::fprintf(stderr, "Hint: %s\n", error.hint().c_str());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: %s\nHint: %s\n", out_of_memory_text().c_str(), kLessMemory);
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "error: the system refuses a thread or another resource: %s\nHint: %s\n",
                 error.what(),
                 "look at the limits of the shell (ulimit -a): -u processes, -v address space, -n files");
  } catch (...) {
    std::fprintf(stderr, "error: %s\n", text_of_failure().c_str());
  }
  return static_cast<int>(ExitCode::RunFailed);
}

int worker_program(const std::vector<std::string>& args, const Accelerator& accelerator) {
  ::signal(SIGXFSZ, SIG_IGN);  // a file that grows over a limit is an error of its write, not the end
  const std::string command = args.empty() ? "" : args[0];
  const std::vector<std::string> rest(args.empty() ? args.end() : args.begin() + 1, args.end());
  if (command == "train") return code_after_output(train_command(rest, accelerator));
  if (command == "profile") return code_after_output(profile_command(rest, accelerator));
  if (command == "fuse") return code_after_output(fuse_command(rest));
  if (command == "split") return code_after_output(split_command(rest));
  if (command == "translate") return code_after_output(translate_command(rest));
  if (command == "models") return code_after_output(models_command(rest));
  std::fprintf(
      stderr,
      "millrace-worker: '%s' is not a command of the worker (train, profile, translate, fuse, split, "
      "models).\nHint: type `millrace "
      "--help`\n",
      command.c_str());
  return static_cast<int>(ExitCode::Usage);
}

}  // namespace millrace
